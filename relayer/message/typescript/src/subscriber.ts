/** Apply messages to a consumer's Postgres, each event once: see the Go package subscriber for the states. */
import type { Message } from "./message.js";

/** A connection inside a transaction: a Client of pg, or anything that has its query. */
export interface Database {
  /** A Pool has this. Its query uses any connection, and so no transaction. */
  totalCount?: never;
  query(statement: string, values?: unknown[]): Promise<{ rows: { [column: string]: unknown }[] }>;
}

/**
 * Changes the consumer's own tables for an event, in the transaction. If m.retracted is true, it takes back
 * what it did for the event with the same eventId; other events of the escrow may have been applied in between.
 */
export type Effect<D extends Database> = (database: D, m: Message) => Promise<void>;

/** A retraction is older than what prune deleted: whether its event was applied is no longer known. */
export class PrunedError extends Error {
  override name = "PrunedError";
}

/** Creates the table that apply needs, unless it is there. */
export const SCHEMA = `\
-- What a consumer remembers of the relayer's messages. Package subscriber of the escrow relayer writes it.
create table if not exists escrow_messages (
    chain_id   text        not null,
    event_id   text        not null, -- empty: the mark of Prune, up to whose block_time events are forgotten
    block_time timestamptz not null, -- of the event
    applied    boolean     not null, -- the event came before its retraction, and its effect was made
    retracted  boolean     not null, -- a reorganisation removed the event: it never takes effect again
    at         timestamptz not null default now(), -- when the first message about the event came
    primary key (chain_id, event_id)
);
create index if not exists escrow_messages_at on escrow_messages (at);
`;

/**
 * Call effect if the message changes something: once for an event, and once more to take it back. Commit the
 * transaction, then acknowledge the message; after an error roll back and do not acknowledge. It does nothing
 * for a message that came before, for a replay of a known event, and for an event whose retraction came first.
 */
export async function apply<D extends Database>(database: D, m: Message, effect: Effect<D>): Promise<void> {
  const { rows } = await database.query(noteMessage,
    [m.chainId, m.eventId, m.blockTimestamp.toISOString(), m.retracted, m.replay]);
  const row = rows[0];
  if (row === undefined) {
    return;
  }
  if (row["applied"] === true) {
    await effect(database, m);
  } else if (row["pruned"] === true) {
    throw new PrunedError(
      `retraction of an event that is pruned: ${m.eventId} of block time ${m.blockTimestamp.toISOString()}`);
  }
}

// Moves an event id to its next state and returns whether an effect stands behind it. No row means that
// nothing changed. A replay from before the mark of prune changes nothing.
const noteMessage = `
    with pruned as (
        select from escrow_messages where chain_id = $1 and event_id = '' and block_time >= $3::timestamptz)
    insert into escrow_messages as known (chain_id, event_id, block_time, applied, retracted)
    select $1, $2, $3::timestamptz, not $4::boolean, $4
     where not ($5::boolean and exists (select from pruned))
        on conflict (chain_id, event_id) do update set retracted = true
     where excluded.retracted and not known.retracted
    returning known.applied, exists (select from pruned) as pruned`;

/**
 * Delete up to 10,000 rows of messages that came before the time given, and return how many. Run it inside a
 * transaction, again until it returns 0; apply waits meanwhile. Keep what may still come again: the retention
 * of the subscriptions (31 days at most), and what a reorganisation may still remove. A replay of a pruned
 * event does nothing, as before; its retraction is a PrunedError.
 */
export async function prune(database: Database, before: Date): Promise<number> {
  await database.query("lock table escrow_messages in share row exclusive mode");
  const { rows } = await database.query(pruneMessages, [before.toISOString()]);
  return Number(rows[0]?.["n"]);
}

// Deletes the oldest and raises the mark of their chains. It needs the table's lock: a replay that saw
// neither the row nor the mark would be applied again.
const pruneMessages = `
    with old as (
        select chain_id, event_id from escrow_messages
         where at < $1 and event_id <> '' order by at limit 10000),
    gone as (
        delete from escrow_messages m using old where m.chain_id = old.chain_id and m.event_id = old.event_id
        returning m.chain_id, m.block_time),
    mark as (
        insert into escrow_messages as mark (chain_id, event_id, block_time, applied, retracted)
        select chain_id, '', max(block_time), false, false from gone group by chain_id
            on conflict (chain_id, event_id) do update set block_time = greatest(mark.block_time, excluded.block_time))
    select count(*) as n from gone`;

/**
 * Make apply take every event of a chain for new, apart from retracted ones. A consumer that wants its history
 * again undoes its effects in the same transaction, and then has it replayed.
 */
export async function forget(database: Database, chainId: string): Promise<void> {
  await database.query("delete from escrow_messages where chain_id = $1 and not retracted", [chainId]);
}
