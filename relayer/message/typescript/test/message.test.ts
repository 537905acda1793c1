import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

import { decode, integer, MalformedError, type Message, SchemaError, text } from "../src/index.js";
import { ENVELOPE } from "../src/message.js";

// Tests run compiled, in dist/test.
const testdata = new URL("../../../testdata/", import.meta.url);
const json = (name: string) => JSON.parse(readFileSync(new URL(name, testdata), "utf8"));
const golden = (name: string): Message =>
  decode(readFileSync(new URL(`${name}.json`, testdata)), json(`${name}.attributes.json`));

test("every golden message", () => {
  const names = readdirSync(testdata).filter((n) => n.endsWith(".attributes.json"))
    .map((n) => n.replace(".attributes.json", ""));
  assert.ok(names.length > 8);
  for (const name of names) {
    const m = golden(name);
    const top = json(`${name}.json`);
    assert.deepEqual(m.args, top.args, name);
    assert.deepEqual([m.eventId, m.blockNumber], [top.event_id, top.block_number]);
    assert.deepEqual([m.retracted, m.replay], [name === "retraction", name === "replay"]);
  }
});

test("fields", () => {
  const m = golden("retraction");
  assert.equal(m.blockTimestamp.toISOString(), "2026-11-21T05:20:00.000Z");
  assert.equal(m.timestamp.getUTCMilliseconds(), 123);
  assert.equal(m.reason, "reorganisation");
  assert.equal(m.originalBlockHash, m.blockHash);
});

test("arguments", () => {
  const m = golden("EscrowDeployed");
  assert.equal(integer(m, "amount"), 10n ** 18n);
  assert.equal(text(m, "amount"), "1000000000000000000");
  assert.throws(() => integer(m, "payee"), /argument payee of EscrowDeployed 0x7a.* is no integer: "0x/);
  assert.throws(() => integer(m, "nothing"), /argument nothing of EscrowDeployed 0x7a.* is missing/);
  assert.throws(() => text(m, "toString"), MalformedError);
  assert.throws(() => text(golden("every_type"), "ok"), /argument ok of Noted 0x7a.* is no string: true/);
});

test("refusals", () => {
  const refused: { name: string; data: string; attributes: { [name: string]: string }; schema: boolean }[] =
    json("refused.json");
  assert.ok(refused.length > 30);
  for (const { name, data, attributes, schema } of refused) {
    assert.throws(() => decode(data, attributes), schema ? SchemaError : MalformedError, name);
  }
});

test("other bodies", () => {
  const body = readFileSync(new URL("Approved.json", testdata), "utf8");
  const attributes = json("Approved.attributes.json");
  for (const other of ["", "null", "[".repeat(100_000), "NaN", body.slice(0, -2), Uint8Array.of(0xff),
    body.replace('"block_number":7654321', '"block_number":9007199254740993')]) {
    assert.throws(() => decode(other, attributes), MalformedError, String(other).slice(0, 40));
  }
  assert.throws(() => decode(body, {}), MalformedError);
});

test("the envelope is that of the schema", () => {
  assert.deepEqual([...ENVELOPE].sort(), Object.keys(json("../schema.json").properties).sort());
});
