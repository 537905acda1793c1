/** Keep what each escrow holds, in wei, in the table balances: an example of a consumer that is right. */
import { type Message as Received, PubSub } from "@google-cloud/pubsub";
import pg from "pg";

import { apply, decode, integer, type Message, SCHEMA } from "@fusion-prime/escrow-relayer";

const tables = `
    create table if not exists balances (
        chain_id text, escrow text, wei numeric(78) not null, primary key (chain_id, escrow))`;

const pool = new pg.Pool({ connectionString: process.env["DATABASE_URL"] });
pool.on("error", (error) => console.error("lost a connection, which waited for work", error)); // else the process ends
const pubsub = new PubSub({ projectId: process.env["PUBSUB_PROJECT_ID"]! });

await pool.query(SCHEMA + tables);
for (const name of ["EVENTS_SUBSCRIPTION", "RETRACTIONS_SUBSCRIPTION"]) {
  const subscription = pubsub.subscription(process.env[name]!);
  subscription.on("message", receive);
  subscription.on("error", (error) => {
    console.error(error);
    process.exit(1);
  });
}

/** Apply a message in a transaction, and acknowledge it when that has committed. */
async function receive(received: Received): Promise<void> {
  try {
    const message = decode(received.data, received.attributes);
    await transact((client) => apply(client, message, keepBalance));
  } catch (error) {
    console.error("message not applied", received.attributes["event_id"], error);
    // It comes again, and in the end goes to the dead-letter topic; with ordering, the escrow's later
    // messages wait for it.
    received.nack();
    return;
  }
  received.ack();
}

async function transact(work: (client: pg.PoolClient) => Promise<void>): Promise<void> {
  const client = await pool.connect();
  let broken: Error | undefined;
  try {
    await client.query("begin");
    await work(client);
    await client.query("commit");
  } catch (error) {
    await client.query("rollback").catch((e: Error) => { broken = e; });
    throw error;
  } finally {
    client.release(broken);
  }
}

/**
 * The effect of a message: what an escrow got is added, what it paid is subtracted, and a retraction does
 * the opposite. Sums do not depend on the order of their parts.
 */
async function keepBalance(client: pg.PoolClient, m: Message): Promise<void> {
  const paid = m.eventType === "EscrowReleased" || m.eventType === "EscrowRefunded";
  if (!paid && m.eventType !== "EscrowDeployed") {
    return;
  }
  const wei = integer(m, "amount");
  await client.query(`
      insert into balances (chain_id, escrow, wei) values ($1, $2, $3)
          on conflict (chain_id, escrow) do update set wei = balances.wei + excluded.wei`,
    [m.chainId, m.escrow, paid !== m.retracted ? -wei : wei]);
}
