import asyncio
import json
import os
import threading
import unittest
from datetime import datetime, timedelta, timezone
from pathlib import Path

import psycopg

from escrow_relayer import SCHEMA, PrunedError, apply, apply_async, decode, forget, prune

TESTDATA = Path(__file__).parents[2] / "testdata"
STORIES = json.loads((TESTDATA / "stories.json").read_text("utf-8"))


def messages(story):
    return [decode(m["data"], m["attributes"]) for m in story["messages"]]


def keep(connection, message):
    """The effect: a row per event. An event that is taken back must be there."""
    change = "delete from kept where id = %s" if message.retracted else "insert into kept (id) values (%s)"
    cursor = connection.execute(change, (f"{message.chain_id}/{message.event_id}",))
    assert cursor.rowcount == 1, "taken back without being there"


async def keep_async(connection, message):
    change = "delete from kept where id = %s" if message.retracted else "insert into kept (id) values (%s)"
    await connection.execute(change, (f"{message.chain_id}/{message.event_id}",))


# TestPython beside the Go package subscriber runs these, with a database of its own.
class Subscriber(unittest.TestCase):
    def setUp(self):
        self.db = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
        self.addCleanup(self.db.close)
        self.db.execute("drop table if exists escrow_messages, kept")
        self.db.execute(SCHEMA)
        self.db.execute("create table kept (n bigserial, id text primary key)")

    def deliver(self, message, effect=keep):
        with self.db.transaction():
            apply(self.db, message, effect)

    def kept(self):
        return [id for id, in self.db.execute("select id from kept order by n")]

    def prune(self):
        with self.db.transaction():
            return prune(self.db, datetime.now(timezone.utc) - timedelta(days=31))

    def age(self):
        self.db.execute("update escrow_messages set at = at - interval '40 days'")

    def test_every_order_ends_with_the_chain(self):
        self.assertGreater(len(STORIES), 10)
        for story in STORIES:
            with self.subTest(story["name"]):
                decoded = messages(story)
                for sequence in story["sequences"]:
                    self.db.execute("delete from escrow_messages")
                    self.db.execute("delete from kept")
                    for digit in sequence:
                        self.deliver(decoded[int(digit, 36)])
                    kept = self.kept()
                    if not story["in_order"]:
                        kept.sort()
                    self.assertEqual(kept, story["keep"], sequence)

    def test_async(self):
        async def run():
            async with await psycopg.AsyncConnection.connect(os.environ["DATABASE_URL"]) as connection:
                for digit in STORIES[-1]["sequences"][0]:
                    async with connection.transaction():
                        await apply_async(connection, messages(STORIES[-1])[int(digit, 36)], keep_async)
        asyncio.run(run())
        self.assertEqual(self.kept(), STORIES[-1]["keep"])

    def test_concurrent_deliveries(self):
        retracted = next(s for s in STORIES if s["name"] == "an event that is replayed, and then retracted")
        failures = []

        def work(message):
            try:
                with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
                    apply(connection, message, keep)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(m,)) for m in messages(retracted) * 6]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((failures, self.kept()), ([], []))

    def test_failed_effect_is_applied_later(self):
        event = messages(STORIES[0])[0]

        def fail(connection, message):
            keep(connection, message)
            raise RuntimeError("failed")

        with self.assertRaises(RuntimeError):
            self.deliver(event, fail)
        self.assertEqual(self.kept(), [])
        self.deliver(event)
        self.assertEqual(self.kept(), STORIES[0]["keep"])

    def test_outside_a_transaction(self):
        with self.assertRaisesRegex(RuntimeError, "connection.transaction"):
            apply(self.db, messages(STORIES[0])[0], keep)  # the connection is in autocommit

    def test_prune_and_forget(self):
        story = next(s for s in STORIES if s["name"] == "an event that is replayed, and then retracted")
        event, replay, retraction = messages(story)
        self.deliver(event)
        self.assertEqual(self.prune(), 0)
        self.age()
        self.assertEqual((self.prune(), self.prune()), (1, 0))
        kept = self.kept()
        self.deliver(replay)
        self.assertEqual(self.kept(), kept)
        with self.assertRaises(PrunedError):
            self.deliver(retraction)
        self.assertEqual(self.kept(), kept)

        with self.db.transaction():
            self.db.execute("delete from kept")
            forget(self.db, event.chain_id)
        self.deliver(replay)
        self.assertEqual(self.kept(), kept)
        self.deliver(retraction)
        with self.db.transaction():
            forget(self.db, event.chain_id)
        self.deliver(replay)
        self.assertEqual(self.kept(), [], "what was retracted is not forgotten")

    def test_schema_is_that_of_the_go_package(self):
        self.assertEqual(SCHEMA, (TESTDATA.parent / "subscriber/schema.sql").read_text("utf-8"))


if __name__ == "__main__":
    unittest.main()
