import dataclasses
import json
import unittest
from pathlib import Path

from escrow_relayer import Command, CommandError, CreateArgs, keccak256, signer
from escrow_relayer.command import _recover

VECTORS = json.loads((Path(__file__).parents[3] / "command/testdata/vectors.json").read_text("utf-8"))


def command(message) -> Command:
    """The command that a message of the vectors holds."""
    args = message.get("args")
    return Command(
        chain_id=int(message["chain_id"]), factory=message["factory"], kind=message["kind"], sender=message["sender"],
        escrow=message["escrow"], expires_at=message["expires_at"], max_fee=int(message["max_fee"]),
        args=args and CreateArgs(args["payee"], int(args["amount"]), int(args["releaseDelay"]),
                                 args["approvalsRequired"], args["arbiter"], bytes.fromhex(args["salt"][2:])),
        not_before=message.get("not_before", 0), reference=message.get("reference", ""),
        reply_to=message.get("reply_to", ""), salt=bytes.fromhex(message.get("salt", "0x" + "00" * 32)[2:]))


class Commands(unittest.TestCase):
    def test_vectors(self):
        sign = signer(VECTORS["requester_private_key"])
        for vector in VECTORS["vectors"]:
            with self.subTest(vector["name"]):
                c = command(vector["message"])
                self.assertEqual(c.id(), vector["command_id"])
                message = c.sign(sign)
                signature = bytes.fromhex(message["signature"][2:])
                del message["signature"]
                self.assertEqual(message, {k: v for k, v in vector["message"].items() if k != "signature"})
                self.assertEqual(address(bytes.fromhex(c.id()[2:]), signature), VECTORS["requester"].lower())

    def test_recovery_finds_who_signed_the_vectors(self):
        for vector in VECTORS["vectors"]:
            signature = bytes.fromhex(vector["message"]["signature"][2:])
            digest = bytes.fromhex(vector["command_id"][2:])
            self.assertEqual(address(digest, signature), VECTORS["requester"].lower())

    def test_keccak_of_lengths_around_a_block(self):
        encoded = bytes.fromhex(VECTORS["vectors"][0]["command_encoded"][2:])
        self.assertEqual(keccak256(encoded).hex(), VECTORS["vectors"][0]["command_hash"][2:])
        # From go-ethereum's crypto.Keccak256, of so many zero bytes.
        for length, want in ZEROS.items():
            self.assertEqual(keccak256(bytes(length)).hex(), want, length)

    def test_problems(self):
        good = command(VECTORS["vectors"][0]["message"])
        for field, value in {
            "chain_id": 0, "factory": "0x" + "0" * 40, "sender": "0x12", "escrow": "", "kind": "steal", "max_fee": 0,
            "expires_at": 0, "not_before": 1_900_000_000, "reference": "a\nb", "reply_to": "ä", "salt": b"",
            "args": CreateArgs(good.sender, 1, 1, 1, good.sender, bytes(32)),
        }.items():
            bad = dataclasses.replace(good, **{field: value})
            with self.subTest(field), self.assertRaisesRegex(CommandError, field):
                bad.sign(lambda digest: bytes(65))
        create = command(next(v for v in VECTORS["vectors"] if v["message"]["kind"] == "create")["message"])
        for field, value in {"payee": "", "amount": -1, "release_delay": 2**40, "approvals_required": 256,
                             "arbiter": "x", "salt": bytes(31)}.items():
            bad = dataclasses.replace(create, args=dataclasses.replace(create.args, **{field: value}))
            with self.subTest(field), self.assertRaisesRegex(CommandError, "args"):
                bad.sign(lambda digest: bytes(65))


ZEROS = {
    0: "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470",
    1: "bc36789e7a1e281436464229828f817d6612f7b477d66591ff96a9e064bcc98a",
    134: "20926439d7d1663c4d224931643bb513f3ebf181ab353278b24399f518dc5f97",
    135: "29e3704feeca7fb9ba229f0fa04d9b36449cf3ad6e1d85d9cfff3a10df9abc3e",
    136: "3a5912a7c5faa06ee4fe906253e339467a9ce87d533c65be3c15cb231cdb25f9",
    137: "bee7fbb405cb0d91a8775e338c4a5e4b5d6b2d051f687fa942043cffdc73bd28",
    271: "3bb611e98ca876adc01436a582979ecfd012389033aca7dbf76dcb424fe02a0c",
    272: "a8005c7a3125b6c3629b4181eca54d18721e41fef639718d205beb00b366ed7d",
    273: "20494ff4ca5f71c4edb30f159611d235a403fdd6beb95a7c386176842c3fd109",
}


def address(digest: bytes, signature: bytes) -> str:
    public = _recover(digest, int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big"),
                      signature[64])
    assert public
    return "0x" + keccak256(public[0].to_bytes(32, "big") + public[1].to_bytes(32, "big"))[12:].hex()


if __name__ == "__main__":
    unittest.main()
