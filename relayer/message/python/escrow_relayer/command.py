"""Commands to the relayer: what a service signs to have it act on an escrow (the Go package command).

The id of a command is its EIP-712 digest, which is also what is signed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Sign = Callable[[bytes], bytes]  # of a digest of 32 bytes: r, s (the lower one) and v (27 or 28), 65 bytes


class CommandError(ValueError):
    """A command is malformed. It names every field that is wrong."""


@dataclass(frozen=True)
class CreateArgs:
    """The arguments of createEscrowDeterministic. amount, in wei, is sent along."""

    payee: str
    amount: int
    release_delay: int  # seconds
    approvals_required: int  # 1 to 255
    arbiter: str
    salt: bytes  # 32


@dataclass(frozen=True)
class Command:
    """A request to act once. To ask for the same act again after it failed, use another salt."""

    chain_id: int
    factory: str
    kind: str  # approve, release, refund or create
    sender: str  # the account that acts; its key is the relayer's
    escrow: str  # for create: the address that it will have
    expires_at: int  # unix seconds; nothing is signed by the relayer for the first time after it
    max_fee: int  # wei: the most that may be paid for gas
    args: CreateArgs | None = None  # of create
    not_before: int = 0  # unix seconds
    reference: str = ""  # the requester's own, at most 128 characters
    reply_to: str = ""  # echoed as an attribute of the answers, at most 128 printable ASCII characters
    salt: bytes = bytes(32)

    def id(self) -> str:
        """The EIP-712 digest, 0x and 64 digits."""
        return "0x" + self._digest().hex()

    def sign(self, sign: Sign) -> dict[str, Any]:
        """The message to send, as JSON, by Pub/Sub or to /commands. Raises CommandError."""
        if problems := self.problems():
            raise CommandError("malformed command: " + "; ".join(problems))
        signature = sign(self._digest())
        if len(signature) != 65:
            raise CommandError(f"the signature has {len(signature)} bytes; it must have 65: r, s and v")
        message: dict[str, Any] = {
            "version": 1, "chain_id": str(self.chain_id), "factory": self.factory, "kind": self.kind,
            "sender": self.sender, "escrow": self.escrow, "expires_at": self.expires_at, "max_fee": str(self.max_fee),
            "salt": "0x" + self.salt.hex(), "signature": "0x" + signature.hex(),
        }
        optional = {"not_before": self.not_before, "reference": self.reference, "reply_to": self.reply_to}
        message |= {name: value for name, value in optional.items() if value}
        if a := self.args:
            message["args"] = {
                "payee": a.payee, "amount": str(a.amount), "releaseDelay": str(a.release_delay),
                "approvalsRequired": a.approvals_required, "arbiter": a.arbiter, "salt": "0x" + a.salt.hex(),
            }
        return message

    def problems(self) -> list[str]:
        """Everything that is wrong with the command in itself."""
        a = self.args
        checks = [
            (_between(self.chain_id, 1, 2**63 - 1), "chain_id must be 1 to 9223372036854775807"),
            (_address(self.factory), "factory must be an address other than zero"),
            (_address(self.sender), "sender must be an address other than zero"),
            (_address(self.escrow), "escrow must be an address other than zero"),
            (self.kind in ("approve", "release", "refund", "create"), "kind must be approve, release, refund or create"),
            ((a is not None) == (self.kind == "create"), "args belongs to create, which needs them"),
            (_between(self.expires_at, 1, _MAX_TIME), "expires_at must be a time in unix seconds"),
            (_between(self.not_before, 0, _MAX_TIME), "not_before must be a time in unix seconds"),
            (self.not_before < self.expires_at, "not_before must be before expires_at"),
            (_between(self.max_fee, 1, 2**256 - 1), "max_fee must be 1 to 2^256-1"),
            (_TEXT.fullmatch(self.reference), "reference must be at most 128 characters, without control characters"),
            (_PRINTABLE.fullmatch(self.reply_to), "reply_to must be at most 128 printable ASCII characters"),
            (len(self.salt) == 32, "salt must have 32 bytes"),
        ]
        if a:
            checks += [
                (_address(a.payee), "args.payee must be an address other than zero"),
                (_between(a.amount, 0, 2**256 - 1), "args.amount must be 0 to 2^256-1"),
                (_between(a.release_delay, 0, _MAX_TIME), "args.releaseDelay must be seconds"),
                (_between(a.approvals_required, 1, 255), "args.approvalsRequired must be 1 to 255"),
                (_ADDRESS.fullmatch(a.arbiter), "args.arbiter must be an address"),
                (len(a.salt) == 32, "args.salt must have 32 bytes"),
            ]
        return [problem for holds, problem in checks if not holds]

    def _digest(self) -> bytes:
        a = self.args or CreateArgs(_ZERO, 0, 0, 0, _ZERO, bytes(32))
        domain = _hash_all(_DOMAIN, keccak256(b"Escrow Relayer Command"), keccak256(b"1"), self.chain_id, self.factory)
        create = _hash_all(_CREATE, a.payee, a.amount, a.release_delay, a.approvals_required, a.arbiter, a.salt)
        command = _hash_all(
            _COMMAND, keccak256(self.kind.encode()), self.sender, self.escrow, create, self.not_before, self.expires_at,
            self.max_fee, keccak256(self.reference.encode()), keccak256(self.reply_to.encode()), self.salt)
        return keccak256(b"\x19\x01" + domain + command)


_ZERO = "0x" + "0" * 40
_MAX_TIME = 214748364700
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}")
_TEXT = re.compile("[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{0,128}")
_PRINTABLE = re.compile("[ -~]{0,128}")


def _between(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _address(value: str) -> bool:
    return value != _ZERO and _ADDRESS.fullmatch(value) is not None


def _hash_all(*words: bytes | int | str) -> bytes:
    """The hash of a struct: numbers and addresses are words of 32 bytes."""
    return keccak256(b"".join(
        w if isinstance(w, bytes) else (w if isinstance(w, int) else int(w, 16)).to_bytes(32, "big") for w in words))


def signer(key: str | bytes) -> Sign:
    """Sign with a secp256k1 private key of 32 bytes, or 0x and 64 digits. It needs cryptography (the extra "sign").

    A key in a KMS or a wallet needs a function of its own with the same result.
    """
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.utils import Prehashed, decode_dss_signature

    secret = key if isinstance(key, bytes) else bytes.fromhex(key.removeprefix("0x"))
    if len(secret) != 32:
        raise ValueError(f"a private key has 32 bytes, this one has {len(secret)}")
    private = ec.derive_private_key(int.from_bytes(secret, "big"), ec.SECP256K1())
    numbers = private.public_key().public_numbers()
    public = (numbers.x, numbers.y)

    def sign(digest: bytes) -> bytes:
        # Prehashed needs some algorithm with 32 bytes; the digest is keccak's.
        while True:
            r, s = decode_dss_signature(private.sign(digest, ec.ECDSA(Prehashed(hashes.SHA256()))))
            s = min(s, _N - s)  # EIP-2
            for v in (27, 28):
                if _recover(digest, r, s, v) == public:
                    return r.to_bytes(32, "big") + s.to_bytes(32, "big") + bytes([v])
            # The point's x was above the curve's order, which v cannot say: once in 2^127 signatures.

    return sign


# secp256k1, for what is public: which of the two points with the x of r a signature means.
_P = 2**256 - 2**32 - 977
_N = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
_G = (0x79BE667EF9DCBBAC55A06295CE870B07029BFCDB2DCE28D959F2815B16F81798,
      0x483ADA7726A3C4655DA4FBFC0E1108A8FD17B448A68554199C47D08FFB10D4B8)


def _add(a: tuple[int, int] | None, b: tuple[int, int] | None) -> tuple[int, int] | None:
    if a is None or b is None:
        return a or b
    if a[0] == b[0] and (a[1] + b[1]) % _P == 0:
        return None
    if a == b:
        slope = 3 * a[0] * a[0] * pow(2 * a[1], -1, _P) % _P
    else:
        slope = (b[1] - a[1]) * pow(b[0] - a[0], -1, _P) % _P
    x = (slope * slope - a[0] - b[0]) % _P
    return x, (slope * (a[0] - x) - a[1]) % _P


def _multiply(point: tuple[int, int], n: int) -> tuple[int, int] | None:
    result, power = None, point
    while n:
        if n & 1:
            result = _add(result, power)
        power, n = _add(power, power), n >> 1
    return result


def _recover(digest: bytes, r: int, s: int, v: int) -> tuple[int, int] | None:
    """The public key that made a signature; None: there is none."""
    y = pow(pow(r, 3, _P) + 7, (_P + 1) // 4, _P)
    if y * y % _P != (pow(r, 3, _P) + 7) % _P:
        return None
    if y % 2 != v - 27:
        y = _P - y
    inverse = pow(r, -1, _N)
    z = int.from_bytes(digest, "big")
    return _add(_multiply((r, y), s * inverse % _N), _multiply(_G, -z * inverse % _N))


_ROUNDS = (
    0x1, 0x8082, 0x800000000000808A, 0x8000000080008000, 0x808B, 0x80000001, 0x8000000080008081, 0x8000000000008009,
    0x8A, 0x88, 0x80008009, 0x8000000A, 0x8000808B, 0x800000000000008B, 0x8000000000008089, 0x8000000000008003,
    0x8000000000008002, 0x8000000000000080, 0x800A, 0x800000008000000A, 0x8000000080008081, 0x8000000000008080,
    0x80000001, 0x8000000080008008)
_RATE, _MASK = 136, 2**64 - 1


def _rotate(lane: int, by: int) -> int:
    return (lane << by | lane >> (64 - by)) & _MASK


def _permute(a: list[int]) -> None:
    """Keccak-f[1600] of 25 lanes, of which lane x + 5y is at (x, y)."""
    for constant in _ROUNDS:
        c = [a[x] ^ a[x + 5] ^ a[x + 10] ^ a[x + 15] ^ a[x + 20] for x in range(5)]
        d = [c[x - 1] ^ _rotate(c[(x + 1) % 5], 1) for x in range(5)]
        lane, x, y = a[1] ^ d[1], 1, 0
        b = [a[0] ^ d[0]] * 25
        for t in range(24):
            x, y = y, (2 * x + 3 * y) % 5
            b[x + 5 * y], lane = _rotate(lane, (t + 1) * (t + 2) // 2 % 64), a[x + 5 * y] ^ d[x]
        for i in range(25):
            row = i - i % 5
            a[i] = b[i] ^ (~b[row + (i + 1) % 5] & b[row + (i + 2) % 5])
        a[0] ^= constant


def keccak256(data: bytes) -> bytes:
    """The hash that Ethereum uses. hashlib's sha3_256 pads differently."""
    padded = bytearray(data) + bytearray(_RATE - len(data) % _RATE)
    padded[len(data)] ^= 0x01
    padded[-1] ^= 0x80
    state = [0] * 25
    for start in range(0, len(padded), _RATE):
        for i in range(_RATE // 8):
            state[i] ^= int.from_bytes(padded[start + 8 * i:start + 8 * i + 8], "little")
        _permute(state)
    return b"".join(lane.to_bytes(8, "little") for lane in state[:4])


_DOMAIN = keccak256(b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)")
_CREATE_TYPE = (b"Create(address payee,uint256 amount,uint256 releaseDelay,uint8 approvalsRequired,address arbiter,"
                b"bytes32 salt)")
_CREATE = keccak256(_CREATE_TYPE)
_COMMAND = keccak256(b"Command(string kind,address sender,address escrow,Create args,uint64 notBefore,"
                     b"uint64 expiresAt,uint256 maxFee,string reference,string replyTo,bytes32 salt)" + _CREATE_TYPE)
