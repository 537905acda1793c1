/** Keep the approvals of each escrow in the table approvals: an example of a consumer that is right. */
import { type Message as Received, PubSub } from "@google-cloud/pubsub";
import pg from "pg";

import { apply, decode, type Message, SCHEMA, text } from "@fusion-prime/escrow-relayer";

const tables = `
    create table if not exists approvals (
        chain_id text, event_id text, escrow text not null, approver text not null, primary key (chain_id, event_id))`;

const pool = new pg.Pool({ connectionString: process.env["DATABASE_URL"] });
pool.on("error", (error) => console.error("lost a connection, which waited for work", error)); // else the process ends
const pubsub = new PubSub({ projectId: process.env["PUBSUB_PROJECT_ID"]! });

await pool.query(SCHEMA + tables);
for (const name of ["EVENTS_SUBSCRIPTION", "RETRACTIONS_SUBSCRIPTION"]) {
  const subscription = pubsub.subscription(process.env[name]!);
  subscription.on("message", receive);
  subscription.on("error", (error) => {
    console.error(error);
    process.exit(1);
  });
}

/** Apply a message in a transaction, and acknowledge it when that has committed. */
async function receive(received: Received): Promise<void> {
  try {
    const message = decode(received.data, received.attributes);
    await transact((client) => apply(client, message, keepApproval));
  } catch (error) {
    console.error("message not applied", received.attributes["event_id"], error);
    // It comes again, and in the end goes to the dead-letter topic; with ordering, the escrow's later
    // messages wait for it.
    received.nack();
    return;
  }
  received.ack();
}

async function transact(work: (client: pg.PoolClient) => Promise<void>): Promise<void> {
  const client = await pool.connect();
  let broken: Error | undefined;
  try {
    await client.query("begin");
    await work(client);
    await client.query("commit");
  } catch (error) {
    await client.query("rollback").catch((e: Error) => { broken = e; });
    throw error;
  } finally {
    client.release(broken);
  }
}

/** The effect of a message: a row per approval. */
async function keepApproval(client: pg.PoolClient, m: Message): Promise<void> {
  if (m.eventType !== "Approved") {
    return;
  }
  if (m.retracted) {
    await client.query("delete from approvals where chain_id = $1 and event_id = $2", [m.chainId, m.eventId]);
  } else {
    await client.query("insert into approvals (chain_id, event_id, escrow, approver) values ($1, $2, $3, $4)",
      [m.chainId, m.eventId, m.escrow, text(m, "approver")]);
  }
}
