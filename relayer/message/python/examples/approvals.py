"""Keep the approvals of each escrow in the table approvals: an example of a consumer that is right.

It needs: pip install 'escrow-relayer[postgres]' google-cloud-pubsub
"""

import logging
import os

import psycopg
from google.cloud import pubsub_v1

from escrow_relayer import SCHEMA, Message, apply, decode

TABLES = """
    create table if not exists approvals (
        chain_id text, event_id text, escrow text not null, approver text not null, primary key (chain_id, event_id))"""


def receive(received: pubsub_v1.subscriber.message.Message) -> None:
    """Apply a message in a transaction, and acknowledge it when that has committed."""
    try:
        message = decode(received.data, received.attributes)
        # Callbacks run in several threads. A connection pool (psycopg_pool) saves the connecting.
        with psycopg.connect(os.environ["DATABASE_URL"]) as db:  # commits at its end
            apply(db, message, keep_approval)
    except Exception:
        logging.exception("message not applied: %s", received.attributes.get("event_id"))
        # It comes again, and in the end goes to the dead-letter topic; with ordering, the escrow's later
        # messages wait for it.
        received.nack()
    else:
        received.ack()


def keep_approval(db: psycopg.Connection, m: Message) -> None:
    """The effect of a message: a row per approval."""
    if m.event_type != "Approved":
        return
    if m.retracted:
        db.execute("delete from approvals where chain_id = %s and event_id = %s", (m.chain_id, m.event_id))
    else:
        db.execute("insert into approvals (chain_id, event_id, escrow, approver) values (%s, %s, %s, %s)",
                   (m.chain_id, m.event_id, m.escrow, m.text("approver")))


def main() -> None:
    with psycopg.connect(os.environ["DATABASE_URL"]) as db:
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
