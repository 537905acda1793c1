"""Apply messages to a consumer's Postgres, each event once: see the Go package subscriber for the states.

The functions need psycopg connections and import nothing: the extra "postgres" installs psycopg.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timezone
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from .message import Message

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

# SCHEMA creates the table that apply needs, unless it is there.
SCHEMA: str = files(__package__).joinpath("schema.sql").read_text("utf-8")


class PrunedError(Exception):
    """A retraction is older than what prune deleted: whether its event was applied is no longer known."""


def apply(connection: Connection[Any], message: Message,
          effect: Callable[[Connection[Any], Message], None]) -> None:
    """Call effect if the message changes something: once for an event, and once more to take it back.

    Run it inside a transaction (with connection.transaction()), and acknowledge the message when that has
    committed. It does nothing for a message that came before, for a replay of a known event, and for an
    event whose retraction came first. If message.retracted is true, effect takes back what it did for the
    event with the same event_id; other events of the escrow may have been applied in between.
    """
    row = connection.execute(_NOTE_MESSAGE, _parameters(message)).fetchone()
    _require_transaction(connection)
    if _has_effect(message, row):
        effect(connection, message)


async def apply_async(connection: AsyncConnection[Any], message: Message,
                      effect: Callable[[AsyncConnection[Any], Message], Awaitable[None]]) -> None:
    """apply for an AsyncConnection."""
    cursor = await connection.execute(_NOTE_MESSAGE, _parameters(message))
    _require_transaction(connection)
    if _has_effect(message, await cursor.fetchone()):
        await effect(connection, message)


def _parameters(m: Message) -> dict[str, Any]:
    return {"chain": m.chain_id, "event": m.event_id, "block_time": m.block_timestamp,
            "retracted": m.retracted, "replay": m.replay}


def _require_transaction(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    """Outside a transaction the note would stay when the effect fails."""
    if connection.pgconn.transaction_status == 0:  # idle
        raise RuntimeError("apply needs a transaction; use connection.transaction()")


def _has_effect(m: Message, row: tuple[bool, bool] | None) -> bool:
    if row is None:
        return False
    applied, pruned = row
    if pruned and not applied:
        raise PrunedError(f"retraction of an event that is pruned: {m.event_id} of block time {m.block_timestamp}")
    return applied


# Moves an event id to its next state and returns whether an effect stands behind it. No row means that
# nothing changed. A replay from before the mark of prune changes nothing.
_NOTE_MESSAGE = """
    with pruned as (
        select from escrow_messages where chain_id = %(chain)s and event_id = '' and block_time >= %(block_time)s)
    insert into escrow_messages as known (chain_id, event_id, block_time, applied, retracted)
    select %(chain)s, %(event)s, %(block_time)s, not %(retracted)s::boolean, %(retracted)s
     where not (%(replay)s::boolean and exists (select from pruned))
        on conflict (chain_id, event_id) do update set retracted = true
     where excluded.retracted and not known.retracted
    returning known.applied, exists (select from pruned)"""


def prune(connection: Connection[Any], before: datetime) -> int:
    """Delete up to 10,000 rows of messages that came before the time given, and return how many.

    Run it inside a transaction, again until it returns 0; apply waits meanwhile. Keep what may still come
    again: the retention of the subscriptions (31 days at most), and what a reorganisation may still remove.
    A replay of a pruned event does nothing, as before; its retraction is a PrunedError.
    """
    connection.execute("lock table escrow_messages in share row exclusive mode")
    row = connection.execute(_PRUNE_MESSAGES, {"before": before.astimezone(timezone.utc)}).fetchone()
    return row[0] if row else 0


# Deletes the oldest and raises the mark of their chains. It needs the table's lock: a replay that saw
# neither the row nor the mark would be applied again.
_PRUNE_MESSAGES = """
    with old as (
        select chain_id, event_id from escrow_messages
         where at < %(before)s and event_id <> '' order by at limit 10000),
    gone as (
        delete from escrow_messages m using old where m.chain_id = old.chain_id and m.event_id = old.event_id
        returning m.chain_id, m.block_time),
    mark as (
        insert into escrow_messages as mark (chain_id, event_id, block_time, applied, retracted)
        select chain_id, '', max(block_time), false, false from gone group by chain_id
            on conflict (chain_id, event_id) do update set block_time = greatest(mark.block_time, excluded.block_time))
    select count(*) from gone"""


def forget(connection: Connection[Any], chain_id: str) -> None:
    """Make apply take every event of a chain for new, apart from retracted ones.

    A consumer that wants its history again undoes its effects in the same transaction, and then has it replayed.
    """
    connection.execute("delete from escrow_messages where chain_id = %s and not retracted", (chain_id,))
