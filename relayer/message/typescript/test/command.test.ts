import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { type Command, CommandError, commandId, problems, signCommand, signer } from "../src/index.js";

const vectors = JSON.parse(
  readFileSync(new URL("../../../../command/testdata/vectors.json", import.meta.url), "utf8"));

/** The command that a message of the vectors holds. */
function command(m: any): Command {
  return {
    chainId: BigInt(m.chain_id), factory: m.factory, kind: m.kind, sender: m.sender, escrow: m.escrow,
    expiresAt: m.expires_at, maxFee: BigInt(m.max_fee), notBefore: m.not_before, reference: m.reference,
    replyTo: m.reply_to, salt: m.salt,
    ...(m.args && {
      args: { ...m.args, amount: BigInt(m.args.amount), releaseDelay: BigInt(m.args.releaseDelay) },
    }),
  };
}

test("vectors", async () => {
  assert.ok(vectors.vectors.length >= 2);
  for (const vector of vectors.vectors) {
    const c = command(vector.message);
    assert.equal(commandId(c), vector.command_id, vector.name);
    assert.deepEqual(await signCommand(c, signer(vectors.requester_private_key)), vector.message, vector.name);
  }
});

test("problems", async () => {
  const good = command(vectors.vectors[0].message);
  assert.deepEqual(problems(good), []);
  for (const [name, change] of Object.entries<Partial<Command>>({
    chain_id: { chainId: 0n }, factory: { factory: "0x" + "0".repeat(40) }, sender: { sender: "0x12" },
    escrow: { escrow: "" }, kind: { kind: "steal" as "approve" }, max_fee: { maxFee: 0n },
    expires_at: { expiresAt: 0.5 }, not_before: { notBefore: 1_900_000_000 }, reference: { reference: "a\nb" },
    reply_to: { replyTo: "ä" }, salt: { salt: "0x" }, args: { kind: "create" },
  })) {
    await assert.rejects(signCommand({ ...good, ...change }, () => new Uint8Array(65)), (error: Error) =>
      error instanceof CommandError && error.message.includes(name), name);
  }
  const create = command(vectors.vectors.find((v: any) => v.message.kind === "create").message);
  for (const change of [{ payee: "" }, { amount: -1n }, { releaseDelay: 2n ** 40n }, { approvalsRequired: 256 },
    { arbiter: "x" }, { salt: "0x00" }]) {
    const [problem] = problems({ ...create, args: { ...create.args!, ...change } });
    assert.match(problem ?? "", new RegExp(`^args.${Object.keys(change)[0]} must`));
  }
  await assert.rejects(signCommand(good, () => new Uint8Array(64)), CommandError);
});
