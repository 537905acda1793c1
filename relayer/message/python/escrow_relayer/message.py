"""The message of the relayer, and how to read it. schema.json beside the Go package describes it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Union

VERSION = "1"  # the attribute schema of every message that this package knows

# The names of the envelope. An argument with one of these names appears under args only.
ENVELOPE = frozenset({
    "event_id", "event_type", "event_name", "chain_id", "contract_address", "escrow", "factory", "block_number",
    "block_hash", "block_timestamp", "transaction_hash", "log_index", "timestamp", "args", "truncated", "retracted",
    "reason", "original_block_hash",
})

Argument = Union[str, bool, "list[Argument]", "dict[str, Argument]"]


class MessageError(ValueError):
    """A message cannot be read. Do not acknowledge it: then a dead-letter topic keeps it."""


class MalformedError(MessageError):
    """The message is not one of the relayer's, or contradicts itself."""


class SchemaError(MessageError):
    """The message has a schema that this package does not know: update the package."""


@dataclass(frozen=True)
class Message:
    """What a consumer gets. Integers are exact; times are UTC."""

    event_id: str  # {transaction_hash}:{log_index}, sometimes :{n}; with chain_id it identifies the event
    event_type: str  # EscrowDeployed, Approved, EscrowReleased, EscrowRefunded, or what EVENT_NAMES adds
    chain_id: str  # decimal
    escrow: str  # lower case
    contract_address: str  # the emitter, EIP-55: the factory for EscrowDeployed, else the escrow
    block_number: int
    block_hash: str
    block_timestamp: datetime
    transaction_hash: str
    log_index: int
    timestamp: datetime  # when the message was published
    args: Mapping[str, Argument]  # by ABI name; integers are decimal strings, see integer()
    replay: bool = False  # published once more on request
    retracted: bool = False  # a reorganisation removed the event, which had been published
    factory: str = ""  # that has deployed the escrow, EIP-55; empty in messages of versions that followed one factory
    reason: str = ""  # of a retraction
    original_block_hash: str = ""  # of a retraction: the block that the event was published from
    truncated: bool = False  # the arguments are left out: the message would be larger than Pub/Sub accepts

    def text(self, name: str) -> str:
        """An argument that is a string: an address, an integer, bytes, or a text. Else MalformedError."""
        if name not in self.args and self.truncated:
            raise MalformedError(
                f"argument {name} of {self.event_type} {self.event_id} is left out: the message is truncated")
        if name not in self.args:
            raise MalformedError(f"argument {name} of {self.event_type} {self.event_id} is missing")
        value = self.args[name]
        if not isinstance(value, str):
            raise MalformedError(
                f"argument {name} of {self.event_type} {self.event_id} is no string: {value!r:.100}")
        return value

    def integer(self, name: str) -> int:
        """An argument that is an integer. Else MalformedError."""
        text = self.text(name)
        if not _INTEGER.fullmatch(text):
            raise MalformedError(
                f"argument {name} of {self.event_type} {self.event_id} is no integer: {text!r:.100}")
        return int(text)


_EVENT_ID = re.compile(r"0x[0-9a-f]{64}:(0|[1-9][0-9]{0,19})(:[1-9][0-9]{0,4})?")
_HASH = re.compile(r"0x[0-9a-f]{64}")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}")
_NATURAL = re.compile(r"0|[1-9][0-9]*")
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,77}")  # 2^256 has 78 digits
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{3})?Z")


def decode(body: bytes | str, attributes: Mapping[str, str]) -> Message:
    """Read a message, and verify that its body agrees with itself and with the attributes.

    Names that this package does not know are ignored. Raises SchemaError or MalformedError.
    """
    schema = attributes.get("schema", "")
    if not schema:
        raise MalformedError("attribute schema is missing, which each message of the relayer has")
    if schema != VERSION:
        raise SchemaError(f"attribute schema is {schema!r:.100}, this package knows {VERSION!r}; update it")
    top = _parse(body)
    retracted = "retracted" in top
    message = Message(
        event_id=_string(top, "event_id", _EVENT_ID),
        event_type=_string(top, "event_type"),
        chain_id=_string(top, "chain_id", _NATURAL),
        escrow=_string(top, "escrow", _ADDRESS).lower(),
        contract_address=_string(top, "contract_address", _ADDRESS),
        block_number=_uint64(top, "block_number"),
        block_hash=_string(top, "block_hash", _HASH),
        block_timestamp=_time(top, "block_timestamp"),
        transaction_hash=_string(top, "transaction_hash", _HASH),
        log_index=_uint64(top, "log_index"),
        timestamp=_time(top, "timestamp"),
        args=_arguments(top),
        replay=attributes.get("replay") == "true",
        retracted=retracted,
        factory=_string(top, "factory", _ADDRESS) if attributes.get("factory") else "",
        reason=_string(top, "reason") if retracted else "",
        original_block_hash=_string(top, "original_block_hash", _HASH) if retracted else "",
        truncated="truncated" in top,
    )
    _verify(message, top, attributes)
    return message


def _parse(body: bytes | str) -> dict[str, Any]:
    try:
        top = json.loads(body if isinstance(body, str) else body.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"the body is not a JSON object: {error}") from error
    if not isinstance(top, dict):
        raise MalformedError("the body is not a JSON object")
    return top


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _field(top: dict[str, Any], name: str) -> Any:
    value = top.get(name)
    if value is None:
        raise MalformedError(f"{name} is missing")
    return value


def _string(top: dict[str, Any], name: str, form: re.Pattern[str] | None = None) -> str:
    value = _field(top, name)
    if not isinstance(value, str) or not value or form and not form.fullmatch(value):
        raise MalformedError(f"{name} is {value!r:.100}")
    return value


def _uint64(top: dict[str, Any], name: str) -> int:
    value = _field(top, name)
    if type(value) is not int or not 0 <= value < 2**64:  # bool is an int
        raise MalformedError(f"read {name}: {value!r:.100} is no whole number")
    return value


def _time(top: dict[str, Any], name: str) -> datetime:
    value = _field(top, name)
    try:
        if _TIME.fullmatch(value):
            return datetime.fromisoformat(value[:-1] + "+00:00")
    except (TypeError, ValueError):
        pass  # no string, or no such day
    raise MalformedError(f"read {name}: {value!r:.100} is no time in UTC")


def _arguments(top: dict[str, Any]) -> dict[str, Argument]:
    args = _field(top, "args")
    if not isinstance(args, dict):
        raise MalformedError("args is not an object")
    for name, value in args.items():
        if not _plain(value):
            raise MalformedError(f"argument {name}: neither string nor boolean, nor an array or object of these")
        if name not in ENVELOPE and (name not in top or top[name] != value):
            raise MalformedError(f"argument {name} is {value!r:.100} under args"
                                 f" and {top.get(name)!r:.100} at the top level")
    return args


def _plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_plain, value))
    if isinstance(value, dict):
        return all(map(_plain, value.values()))
    return isinstance(value, (str, bool))


def _verify(m: Message, top: dict[str, Any], attributes: Mapping[str, str]) -> None:
    """Check the message against itself and against the attributes."""
    if top.get("event_name") != m.event_type:
        raise MalformedError(f"event_type is {m.event_type!r:.100} and event_name is {top.get('event_name')!r:.100}")
    want = f"{m.transaction_hash}:{m.log_index}"
    if m.event_id != want and not m.event_id.startswith(want + ":"):
        raise MalformedError(f"event_id is {m.event_id}, but transaction_hash and log_index give {want}")
    if m.retracted and top["retracted"] is not True:
        raise MalformedError(f"read retracted: {top['retracted']!r:.100}")
    if m.truncated and top["truncated"] is not True:
        raise MalformedError(f"read truncated: {top['truncated']!r:.100}")
    if m.event_type != "EscrowDeployed" and top["escrow"] != m.contract_address:
        raise MalformedError(f"escrow is {top['escrow']}, and contract_address {m.contract_address}")
    for name, value in {
        "event_id": m.event_id, "event_type": m.event_type, "event_name": m.event_type, "chain_id": m.chain_id,
        "block_number": str(m.block_number), "escrow": m.escrow, "retracted": "true" if m.retracted else "",
        "factory": m.factory.lower(),
    }.items():
        if attributes.get(name, "") != value:
            raise MalformedError(f"attribute {name} is {attributes.get(name, '')!r:.100}, the body says {value!r}")
