/** Receive the messages of the escrow relayer, apply each event once, and sign commands for it. */
export { type Command, CommandError, commandId, type CreateArgs, problems, type Sign, signCommand, signer } from "./command.js";
export { type Argument, decode, MalformedError, type Message, MessageError, SchemaError, integer, text } from "./message.js";
export { apply, type Database, type Effect, forget, prune, PrunedError, SCHEMA } from "./subscriber.js";
