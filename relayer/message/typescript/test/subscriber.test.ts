import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, beforeEach, test } from "node:test";

import pg from "pg";

import { apply, decode, type Effect, forget, type Message, prune, PrunedError, SCHEMA } from "../src/index.js";

interface Story {
  name: string;
  messages: { data: string; attributes: { [name: string]: string } }[];
  keep: string[];
  in_order: boolean;
  sequences: string[];
}

const read = (name: string): string => readFileSync(new URL(`../../../${name}`, import.meta.url), "utf8");
const stories: Story[] = JSON.parse(read("testdata/stories.json"));
const messages = (s: Story): Message[] => s.messages.map((m) => decode(m.data, m.attributes));
const story = (name: string): Story => stories.find((s) => s.name === name)!;

// TestTypeScript beside the Go package subscriber runs these, with a database of its own.
const url = process.env["DATABASE_URL"];
assert.ok(url, "DATABASE_URL names no database");
const db = new pg.Client(url);
await db.connect();
after(() => db.end());

beforeEach(async () => {
  await db.query("drop table if exists escrow_messages, kept");
  await db.query(SCHEMA);
  await db.query("create table kept (n bigserial, id text primary key)");
});

/** The effect: a row per event. An event that is taken back must be there. */
const keep: Effect<pg.Client> = async (client, m) => {
  const { rowCount } = await client.query(
    m.retracted ? "delete from kept where id = $1" : "insert into kept (id) values ($1)", [`${m.chainId}/${m.eventId}`]);
  assert.equal(rowCount, 1, "taken back without being there");
};

async function transact(client: pg.Client, work: () => Promise<void>): Promise<void> {
  await client.query("begin");
  try {
    await work();
    await client.query("commit");
  } catch (error) {
    await client.query("rollback");
    throw error;
  }
}

const deliver = (m: Message, effect = keep): Promise<void> => transact(db, () => apply(db, m, effect));
const kept = async (): Promise<string[]> => (await db.query("select id from kept order by n")).rows.map((r) => r.id);

test("every order ends with the chain", async () => {
  assert.ok(stories.length > 10);
  for (const s of stories) {
    const decoded = messages(s);
    for (const sequence of s.sequences) {
      await db.query("delete from escrow_messages");
      await db.query("delete from kept");
      for (const digit of sequence) {
        await deliver(decoded[parseInt(digit, 36)]!);
      }
      const got = await kept();
      assert.deepEqual(s.in_order ? got : got.sort(), s.keep, `${s.name}: ${sequence}`);
    }
  }
});

test("concurrent deliveries", async () => {
  const all = messages(story("an event that is replayed, and then retracted"));
  await Promise.all([...all, ...all, ...all, ...all].map(async (m) => {
    const client = new pg.Client(url);
    await client.connect();
    try {
      await transact(client, () => apply(client, m, keep));
    } finally {
      await client.end();
    }
  }));
  assert.deepEqual(await kept(), []);
});

test("a failed effect is applied later", async () => {
  const [event] = messages(story("an event"));
  await assert.rejects(deliver(event!, async (client, m) => {
    await keep(client, m);
    throw new Error("failed");
  }), /failed/);
  assert.deepEqual(await kept(), []);
  await deliver(event!);
  assert.deepEqual(await kept(), story("an event").keep);
});

test("prune and forget", async () => {
  const [event, replay, retraction] = messages(story("an event that is replayed, and then retracted"));
  const pruned = async (): Promise<number> => {
    let n = 0;
    await transact(db, async () => { n = await prune(db, new Date(Date.now() - 31 * 86_400_000)); });
    return n;
  };
  await deliver(event!);
  assert.equal(await pruned(), 0);
  await db.query("update escrow_messages set at = at - interval '40 days'");
  assert.deepEqual([await pruned(), await pruned()], [1, 0]);
  const before = await kept();
  await deliver(replay!);
  assert.deepEqual(await kept(), before);
  await assert.rejects(deliver(retraction!), PrunedError);
  assert.deepEqual(await kept(), before);

  await transact(db, async () => {
    await db.query("delete from kept");
    await forget(db, event!.chainId);
  });
  await deliver(replay!);
  assert.deepEqual(await kept(), before);
  await deliver(retraction!);
  await transact(db, () => forget(db, event!.chainId));
  await deliver(replay!);
  assert.deepEqual(await kept(), [], "what was retracted is not forgotten");
});

test("the schema is that of the Go package", () => {
  assert.equal(SCHEMA, read("subscriber/schema.sql"));
});
