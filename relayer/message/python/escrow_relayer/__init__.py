"""Receive the messages of the escrow relayer, apply each event once, and sign commands for it."""

from .command import Command, CommandError, CreateArgs, keccak256, signer
from .message import MalformedError, Message, MessageError, SchemaError, decode
from .subscriber import SCHEMA, PrunedError, apply, apply_async, forget, prune

__all__ = [
    "SCHEMA", "Command", "CommandError", "CreateArgs", "MalformedError", "Message", "MessageError", "PrunedError",
    "SchemaError", "apply", "apply_async", "decode", "forget", "keccak256", "prune", "signer",
]
