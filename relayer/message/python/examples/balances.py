"""Keep what each escrow holds, in wei, in the table balances: an example of a consumer that is right.

It needs, in the repository: pip install './relayer/message/python[postgres]' 'psycopg[binary]' google-cloud-pubsub
"""

import logging
import os

import psycopg
from google.cloud import pubsub_v1

from escrow_relayer import SCHEMA, Message, apply, decode

TABLES = """
    create table if not exists balances (
        chain_id text, escrow text, wei numeric(78) not null, primary key (chain_id, escrow))"""


def receive(received: pubsub_v1.subscriber.message.Message) -> None:
    """Apply a message in a transaction, and acknowledge it when that has committed."""
    try:
        message = decode(received.data, received.attributes)
        # Callbacks run in several threads. A connection pool (psycopg_pool) saves the connecting.
        with psycopg.connect(os.environ["DATABASE_URL"]) as db:  # commits at its end
            apply(db, message, keep_balance)
    except Exception:
        logging.exception("message not applied: %s", received.attributes.get("event_id"))
        # It comes again, and in the end goes to the dead-letter topic; with ordering, the escrow's later
        # messages wait for it.
        received.nack()
    else:
        received.ack()


def keep_balance(db: psycopg.Connection, m: Message) -> None:
    """The effect of a message: what an escrow got is added, what it paid is subtracted, and a retraction
    does the opposite. Sums do not depend on the order of their parts."""
    paid = m.event_type in ("EscrowReleased", "EscrowRefunded")
    if not paid and m.event_type != "EscrowDeployed":
        return
    wei = m.integer("amount")
    db.execute("""
        insert into balances (chain_id, escrow, wei) values (%s, %s, %s)
            on conflict (chain_id, escrow) do update set wei = balances.wei + excluded.wei""",
               (m.chain_id, m.escrow, -wei if paid != m.retracted else wei))


def main() -> None:
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as db:
        db.execute(SCHEMA)
        db.execute(TABLES)
    client = pubsub_v1.SubscriberClient()
    receiving = []
    for name in ("EVENTS_SUBSCRIPTION", "RETRACTIONS_SUBSCRIPTION"):
        path = client.subscription_path(os.environ["PUBSUB_PROJECT_ID"], os.environ[name])
        receiving.append(client.subscribe(path, callback=receive))
    for future in receiving:
        future.result()


if __name__ == "__main__":
    main()
