/**
 * Commands to the relayer: what a service signs to have it act on an escrow (the Go package command). The id
 * of a command is its EIP-712 digest, which is also what is signed.
 */
import { secp256k1 } from "@noble/curves/secp256k1.js";
import { keccak_256 } from "@noble/hashes/sha3.js";
import { bytesToHex, concatBytes, hexToBytes, utf8ToBytes } from "@noble/hashes/utils.js";

/** Signs a digest of 32 bytes: r, s (the lower one) and v (27 or 28), 65 bytes. */
export type Sign = (digest: Uint8Array) => Uint8Array | Promise<Uint8Array>;

/** A request to act once. To ask for the same act again after it failed, use another salt. */
export interface Command {
  chainId: bigint;
  factory: string;
  kind: "approve" | "release" | "refund" | "create";
  /** The account that acts; its key is the relayer's. */
  sender: string;
  /** For create: the address that it will have. */
  escrow: string;
  /** Of create. */
  args?: CreateArgs;
  /** Unix seconds. */
  notBefore?: number;
  /** Unix seconds; nothing is signed by the relayer for the first time after it. */
  expiresAt: number;
  /** Wei: the most that may be paid for gas. */
  maxFee: bigint;
  /** The requester's own, at most 128 characters. */
  reference?: string;
  /** Echoed as an attribute of the answers, at most 128 printable ASCII characters. */
  replyTo?: string;
  /** 0x and 64 digits. */
  salt?: string;
}

/** The arguments of createEscrowDeterministic. amount, in wei, is sent along. */
export interface CreateArgs {
  payee: string;
  amount: bigint;
  /** Seconds. */
  releaseDelay: bigint;
  /** 1 to 255. */
  approvalsRequired: number;
  arbiter: string;
  /** 0x and 64 digits. */
  salt: string;
}

/** A command is malformed. It names every field that is wrong. */
export class CommandError extends Error {
  override name = "CommandError";
}

/** The EIP-712 digest, 0x and 64 digits. */
export function commandId(c: Command): string {
  return "0x" + bytesToHex(digest(c));
}

/** The message to send, as JSON, by Pub/Sub or to /commands. Throws CommandError. */
export async function signCommand(c: Command, sign: Sign): Promise<{ [name: string]: unknown }> {
  const wrong = problems(c);
  if (wrong.length > 0) {
    throw new CommandError(`malformed command: ${wrong.join("; ")}`);
  }
  const signature = await sign(digest(c));
  if (signature.length !== 65) {
    throw new CommandError(`the signature has ${signature.length} bytes; it must have 65: r, s and v`);
  }
  const a = c.args;
  return {
    version: 1, chain_id: c.chainId.toString(), factory: c.factory, kind: c.kind, sender: c.sender, escrow: c.escrow,
    ...(a && {
      args: {
        payee: a.payee, amount: a.amount.toString(), releaseDelay: a.releaseDelay.toString(),
        approvalsRequired: a.approvalsRequired, arbiter: a.arbiter, salt: a.salt,
      },
    }),
    ...(c.notBefore && { not_before: c.notBefore }),
    expires_at: c.expiresAt, max_fee: c.maxFee.toString(),
    ...(c.reference && { reference: c.reference }),
    ...(c.replyTo && { reply_to: c.replyTo }),
    salt: c.salt ?? zeroWord, signature: "0x" + bytesToHex(signature),
  };
}

/** Sign with a secp256k1 private key, 0x and 64 digits. A key in a KMS or a wallet needs a function of its own. */
export function signer(key: string): Sign {
  const secret = hexToBytes(key.replace(/^0x/, ""));
  return (hash) => {
    const signature = secp256k1.sign(hash, secret, { prehash: false, format: "recovered" }); // recovery, r, s
    return concatBytes(signature.subarray(1), Uint8Array.of(27 + signature[0]!));
  };
}

const zeroWord = "0x" + "0".repeat(64);
const zeroAddress = "0x" + "0".repeat(40);
const addressForm = /^0x[0-9a-fA-F]{40}$/;
const wordForm = /^0x[0-9a-fA-F]{64}$/;
const textForm = /^[^\p{Cc}\p{Cs}]{0,128}$/u;
const printableForm = /^[ -~]{0,128}$/;
const maxTime = 214748364700;
const maxUint = 2n ** 256n - 1n;

const isAddress = (value: string): boolean => addressForm.test(value) && value !== zeroAddress;
const isWithin = (value: number, least: number, most: number): boolean =>
  Number.isSafeInteger(value) && value >= least && value <= most;
const isUint = (value: bigint, least: bigint, most: bigint): boolean =>
  typeof value === "bigint" && value >= least && value <= most;

/** Everything that is wrong with a command in itself. */
export function problems(c: Command): string[] {
  const a = c.args;
  const checks: [boolean, string][] = [
    [isUint(c.chainId, 1n, 2n ** 63n - 1n), "chain_id must be 1 to 9223372036854775807"],
    [isAddress(c.factory), "factory must be an address other than zero"],
    [isAddress(c.sender), "sender must be an address other than zero"],
    [isAddress(c.escrow), "escrow must be an address other than zero"],
    [["approve", "release", "refund", "create"].includes(c.kind), "kind must be approve, release, refund or create"],
    [(a !== undefined) === (c.kind === "create"), "args belongs to create, which needs them"],
    [isWithin(c.expiresAt, 1, maxTime), "expires_at must be a time in unix seconds"],
    [isWithin(c.notBefore ?? 0, 0, maxTime), "not_before must be a time in unix seconds"],
    [(c.notBefore ?? 0) < c.expiresAt, "not_before must be before expires_at"],
    [isUint(c.maxFee, 1n, maxUint), "max_fee must be 1 to 2^256-1"],
    [textForm.test(c.reference ?? ""), "reference must be at most 128 characters, without control characters"],
    [printableForm.test(c.replyTo ?? ""), "reply_to must be at most 128 printable ASCII characters"],
    [wordForm.test(c.salt ?? zeroWord), "salt must be 0x and 64 digits"],
  ];
  if (a) {
    checks.push(
      [isAddress(a.payee), "args.payee must be an address other than zero"],
      [isUint(a.amount, 0n, maxUint), "args.amount must be 0 to 2^256-1"],
      [isUint(a.releaseDelay, 0n, BigInt(maxTime)), "args.releaseDelay must be seconds"],
      [isWithin(a.approvalsRequired, 1, 255), "args.approvalsRequired must be 1 to 255"],
      [addressForm.test(a.arbiter), "args.arbiter must be an address"],
      [wordForm.test(a.salt), "args.salt must be 0x and 64 digits"],
    );
  }
  return checks.filter(([holds]) => !holds).map(([, problem]) => problem);
}

const hashText = (value: string): Uint8Array => keccak_256(utf8ToBytes(value));

/** The hash of a struct: numbers and addresses are words of 32 bytes. */
function hashAll(...words: (Uint8Array | bigint | number | string)[]): Uint8Array {
  return keccak_256(concatBytes(...words.map((w) =>
    w instanceof Uint8Array ? w : hexToBytes(BigInt(w).toString(16).padStart(64, "0")))));
}

const createType = "Create(address payee,uint256 amount,uint256 releaseDelay,uint8 approvalsRequired,address arbiter," +
  "bytes32 salt)";
const domainHash = hashText("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");
const createHash = hashText(createType);
const commandHash = hashText("Command(string kind,address sender,address escrow,Create args,uint64 notBefore," +
  "uint64 expiresAt,uint256 maxFee,string reference,string replyTo,bytes32 salt)" + createType);
const noArgs: CreateArgs = {
  payee: zeroAddress, amount: 0n, releaseDelay: 0n, approvalsRequired: 0, arbiter: zeroAddress, salt: zeroWord,
};

function digest(c: Command): Uint8Array {
  const a = c.args ?? noArgs;
  const domain = hashAll(domainHash, hashText("Escrow Relayer Command"), hashText("1"), c.chainId, c.factory);
  const create = hashAll(createHash, a.payee, a.amount, a.releaseDelay, a.approvalsRequired, a.arbiter, a.salt);
  const command = hashAll(commandHash, hashText(c.kind), c.sender, c.escrow, create, c.notBefore ?? 0, c.expiresAt,
    c.maxFee, hashText(c.reference ?? ""), hashText(c.replyTo ?? ""), c.salt ?? zeroWord);
  return keccak_256(concatBytes(Uint8Array.of(0x19, 0x01), domain, command));
}
