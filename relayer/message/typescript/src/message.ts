/** The message of the relayer, and how to read it. schema.json beside the Go package describes it. */

/** The attribute schema of every message that this package knows. */
export const VERSION = "1";

/** The names of the envelope. An argument with one of these names appears under args only. */
export const ENVELOPE: ReadonlySet<string> = new Set([
  "event_id", "event_type", "event_name", "chain_id", "contract_address", "escrow", "factory", "block_number",
  "block_hash", "block_timestamp", "transaction_hash", "log_index", "timestamp", "args", "truncated", "retracted",
  "reason", "original_block_hash",
]);

/** An argument of an event: addresses, bytes and integers (decimal) are strings. */
export type Argument = string | boolean | Argument[] | { [name: string]: Argument };

/** What a consumer gets. */
export interface Message {
  /** {transaction_hash}:{log_index}, sometimes :{n}; with chainId it identifies the event. */
  eventId: string;
  /** EscrowDeployed, Approved, EscrowReleased, EscrowRefunded, or what EVENT_NAMES adds. */
  eventType: string;
  /** Decimal. */
  chainId: string;
  /** Lower case. */
  escrow: string;
  /** The emitter, EIP-55: the factory for EscrowDeployed, else the escrow. */
  contractAddress: string;
  /** The factory that has deployed the escrow, EIP-55; empty in messages of versions that followed one factory. */
  factory: string;
  blockNumber: number;
  blockHash: string;
  blockTimestamp: Date;
  transactionHash: string;
  logIndex: number;
  /** When the message was published. */
  timestamp: Date;
  /** By ABI name: see text and integer. */
  args: { [name: string]: Argument };
  /** Published once more on request. */
  replay: boolean;
  /** A reorganisation removed the event, which had been published. */
  retracted: boolean;
  /** Of a retraction. */
  reason: string;
  /** Of a retraction: the block that the event was published from. */
  originalBlockHash: string;
  /** The arguments are left out: the message would be larger than Pub/Sub accepts. */
  truncated: boolean;
}

/** A message cannot be read. Do not acknowledge it: then a dead-letter topic keeps it. */
export class MessageError extends Error {
  override name = "MessageError";
}

/** The message is not one of the relayer's, or contradicts itself. */
export class MalformedError extends MessageError {
  override name = "MalformedError";
}

/** The message has a schema that this package does not know: update the package. */
export class SchemaError extends MessageError {
  override name = "SchemaError";
}

const eventId = /^0x[0-9a-f]{64}:(0|[1-9][0-9]{0,19})(:[1-9][0-9]{0,4})?$/;
const hash = /^0x[0-9a-f]{64}$/;
const address = /^0x[0-9a-fA-F]{40}$/;
const natural = /^(0|[1-9][0-9]*)$/;
const whole = /^(0|-?[1-9][0-9]{0,77})$/; // 2^256 has 78 digits
const time = /^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{3})?Z$/;

/** An argument that is a string: an address, an integer, bytes, or a text. Else MalformedError. */
export function text(m: Message, name: string): string {
  if (!Object.hasOwn(m.args, name)) {
    const why = m.truncated ? "left out: the message is truncated" : "missing";
    throw new MalformedError(`argument ${name} of ${m.eventType} ${m.eventId} is ${why}`);
  }
  const value = m.args[name];
  if (typeof value !== "string") {
    throw new MalformedError(`argument ${name} of ${m.eventType} ${m.eventId} is no string: ${show(value)}`);
  }
  return value;
}

/** An argument that is an integer. Else MalformedError. */
export function integer(m: Message, name: string): bigint {
  const digits = text(m, name);
  if (!whole.test(digits)) {
    throw new MalformedError(`argument ${name} of ${m.eventType} ${m.eventId} is no integer: ${show(digits)}`);
  }
  return BigInt(digits);
}

/**
 * Read a message, and verify that its body agrees with itself and with the attributes. Names that this
 * package does not know are ignored. Throws SchemaError or MalformedError.
 */
export function decode(body: Uint8Array | string, attributes: { readonly [name: string]: string }): Message {
  const attribute = (name: string): string => (Object.hasOwn(attributes, name) && attributes[name]) || "";
  if (!attribute("schema")) {
    throw new MalformedError("attribute schema is missing, which each message of the relayer has");
  }
  if (attribute("schema") !== VERSION) {
    throw new SchemaError(
      `attribute schema is ${show(attribute("schema"))}, this package knows "${VERSION}"; update it`);
  }
  const top = parse(body);
  const retracted = Object.hasOwn(top, "retracted");
  const m: Message = {
    eventId: string(top, "event_id", eventId),
    eventType: string(top, "event_type"),
    chainId: string(top, "chain_id", natural),
    escrow: string(top, "escrow", address).toLowerCase(),
    contractAddress: string(top, "contract_address", address),
    factory: attribute("factory") === "" ? "" : string(top, "factory", address),
    blockNumber: count(top, "block_number"),
    blockHash: string(top, "block_hash", hash),
    blockTimestamp: date(top, "block_timestamp"),
    transactionHash: string(top, "transaction_hash", hash),
    logIndex: count(top, "log_index"),
    timestamp: date(top, "timestamp"),
    args: readArguments(top),
    replay: attribute("replay") === "true",
    retracted,
    reason: retracted ? string(top, "reason") : "",
    originalBlockHash: retracted ? string(top, "original_block_hash", hash) : "",
    truncated: Object.hasOwn(top, "truncated"),
  };
  verify(m, top, attribute);
  return m;
}

type Fields = { [name: string]: unknown };

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function parse(body: Uint8Array | string): Fields {
  let top: unknown;
  try {
    top = JSON.parse(typeof body === "string" ? body : utf8.decode(body));
  } catch (error) {
    throw new MalformedError(`the body is not a JSON object: ${String(error).slice(0, 200)}`);
  }
  if (!isObject(top)) {
    throw new MalformedError("the body is not a JSON object");
  }
  return top;
}

function isObject(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function show(value: unknown): string {
  return (JSON.stringify(value) ?? "nothing").slice(0, 100);
}

function field(top: Fields, name: string): unknown {
  const value = Object.hasOwn(top, name) ? top[name] : null;
  if (value === null) {
    throw new MalformedError(`${name} is missing`);
  }
  return value;
}

function string(top: Fields, name: string, form?: RegExp): string {
  const value = field(top, name);
  if (typeof value !== "string" || value === "" || (form && !form.test(value))) {
    throw new MalformedError(`${name} is ${show(value)}`);
  }
  return value;
}

/** JSON.parse rounds numbers above 2^53, so they are refused: no block number or log index is that large. */
function count(top: Fields, name: string): number {
  const value = field(top, name);
  if (!Number.isSafeInteger(value) || (value as number) < 0) {
    throw new MalformedError(`read ${name}: ${show(value)} is no whole number`);
  }
  return value as number;
}

function date(top: Fields, name: string): Date {
  const value = field(top, name);
  const read = new Date(typeof value === "string" && time.test(value) ? value : NaN);
  // Date takes 30 February for 2 March.
  if (Number.isNaN(read.getTime()) || read.toISOString().slice(0, 19) !== (value as string).slice(0, 19)) {
    throw new MalformedError(`read ${name}: ${show(value)} is no time in UTC`);
  }
  return read;
}

function readArguments(top: Fields): { [name: string]: Argument } {
  const args = field(top, "args");
  if (!isObject(args)) {
    throw new MalformedError("read args: not an object");
  }
  for (const [name, value] of Object.entries(args)) {
    if (!isPlain(value)) {
      throw new MalformedError(`argument ${name}: neither string nor boolean, nor an array or object of these`);
    }
    if (!ENVELOPE.has(name) && !(Object.hasOwn(top, name) && same(top[name], value))) {
      throw new MalformedError(`argument ${name} is ${show(value)} under args and ${show(top[name])} at the top level`);
    }
  }
  return args as { [name: string]: Argument };
}

function isPlain(value: unknown): value is Argument {
  switch (typeof value) {
    case "string":
    case "boolean":
      return true;
    case "object":
      return value !== null && Object.values(value).every(isPlain);
    default:
      return false;
  }
}

/** Both come from JSON, and the relayer writes the one as a copy of the other. */
function same(a: unknown, b: unknown): boolean {
  return JSON.stringify(a) === JSON.stringify(b);
}

function verify(m: Message, top: Fields, attribute: (name: string) => string): void {
  if (top["event_name"] !== m.eventType) {
    throw new MalformedError(`event_type is ${show(m.eventType)} and event_name is ${show(top["event_name"])}`);
  }
  const id = `${m.transactionHash}:${m.logIndex}`;
  if (m.eventId !== id && !m.eventId.startsWith(`${id}:`)) {
    throw new MalformedError(`event_id is ${m.eventId}, but transaction_hash and log_index give ${id}`);
  }
  if (m.retracted && top["retracted"] !== true) {
    throw new MalformedError(`read retracted: ${show(top["retracted"])}`);
  }
  if (m.truncated && top["truncated"] !== true) {
    throw new MalformedError(`read truncated: ${show(top["truncated"])}`);
  }
  if (m.eventType !== "EscrowDeployed" && top["escrow"] !== m.contractAddress) {
    throw new MalformedError(`escrow is ${show(top["escrow"])}, and contract_address ${m.contractAddress}`);
  }
  for (const [name, want] of [
    ["event_id", m.eventId], ["event_type", m.eventType], ["event_name", m.eventType], ["chain_id", m.chainId],
    ["block_number", String(m.blockNumber)], ["escrow", m.escrow],
    ["retracted", m.retracted ? "true" : ""], ["factory", m.factory.toLowerCase()],
  ] as const) {
    if (attribute(name) !== want) {
      throw new MalformedError(`attribute ${name} is ${show(attribute(name))}, the body says ${show(want)}`);
    }
  }
}
