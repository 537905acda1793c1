import json
import unittest
from datetime import datetime, timezone
from pathlib import Path

from escrow_relayer import MalformedError, SchemaError, decode
from escrow_relayer.message import ENVELOPE

MESSAGE = Path(__file__).parents[2]
TESTDATA = MESSAGE / "testdata"


def golden(name: str):
    body = (TESTDATA / f"{name}.json").read_bytes()
    return body, json.loads((TESTDATA / f"{name}.attributes.json").read_text("utf-8"))


class Decode(unittest.TestCase):
    def test_every_golden_message(self):
        names = sorted(p.name.removesuffix(".attributes.json") for p in TESTDATA.glob("*.attributes.json"))
        self.assertGreater(len(names), 8)
        for name in names:
            with self.subTest(name):
                body, attributes = golden(name)
                message, top = decode(body, attributes), json.loads(body)
                self.assertEqual(message.args, top["args"])
                self.assertEqual((message.event_id, message.block_number), (top["event_id"], top["block_number"]))
                self.assertEqual(message.retracted, name == "retraction")
                self.assertEqual(message.replay, name == "replay")

    def test_fields(self):
        message = decode(*golden("retraction"))
        self.assertEqual(message.block_timestamp, datetime(2026, 11, 21, 5, 20, tzinfo=timezone.utc))
        self.assertEqual(message.timestamp.microsecond, 123000)
        self.assertEqual(message.reason, "reorganisation")
        self.assertEqual(message.original_block_hash, message.block_hash)

    def test_arguments(self):
        message = decode(*golden("EscrowDeployed"))
        self.assertEqual(message.integer("amount"), 10**18)
        self.assertEqual(message.text("amount"), "1000000000000000000")
        for call, want in ((lambda: message.integer("payee"), "argument payee of EscrowDeployed 0x7a.* is no integer: '0x"),
                           (lambda: message.integer("nothing"), "argument nothing of EscrowDeployed 0x7a.* is missing")):
            self.assertRaisesRegex(MalformedError, want, call)
        with self.assertRaisesRegex(MalformedError, "argument ok of Noted 0x7a.* is no string: True"):
            decode(*golden("every_type")).text("ok")

    def test_refusals(self):
        refused = json.loads((TESTDATA / "refused.json").read_text("utf-8"))
        self.assertGreater(len(refused), 30)
        for case in refused:
            with self.subTest(case["name"]), self.assertRaises(SchemaError if case["schema"] else MalformedError):
                decode(case["data"], case["attributes"])

    def test_other_bodies(self):
        body, attributes = golden("Approved")
        for other in (b"", b"\xff", b"null", b"[" * 100_000, b"NaN", body[:-2], b'{"a":' * 100_000,
                      body.replace(b'"log_index":12', b'"log_index":' + b"9" * 5000)):
            with self.assertRaises(MalformedError):
                decode(other, attributes)
        with self.assertRaises(MalformedError):
            decode(body, {})

    def test_envelope_is_that_of_the_schema(self):
        schema = json.loads((MESSAGE / "schema.json").read_text("utf-8"))
        self.assertEqual(ENVELOPE, schema["properties"].keys())


if __name__ == "__main__":
    unittest.main()
