// Package message is the wire format of the escrow relayer: what it publishes, and how a consumer reads it. It imports
// only the standard library, so a consumer's dependencies stay unchanged.
//
// # The message
//
// The body is a JSON object: an envelope, the event's arguments under "args", and the same arguments once more at the
// top level, where a name of the envelope wins (EscrowReleased has an argument timestamp; the envelope's timestamp is
// when the message was published). Addresses are in EIP-55 mixed case, integers of any size are decimal strings, and
// null does not occur. Attributes repeat what subscriptions filter by. schema.json, embedded as Schema, describes the
// body; testdata has an example of each event.
//
// # What a consumer can rely on
//
// Messages of one escrow are published in the order of the chain, EscrowDeployed first. Pub/Sub keeps that order only
// for subscriptions with message ordering switched on. Delivery is at least once, and rarely a message is published
// twice (Pub/Sub stored it just before the relayer died): so apply an event once per EventID and ChainID, in the
// transaction that has the effect. Package subscriber does that on Postgres; README.md shows it in Go, Python and
// TypeScript.
//
// A retraction means that an event was published and that a reorganisation has removed it. Retractions have a separate
// topic, and occur only if the relayer publishes blocks before they are final. The topics are unordered relative to
// each other, so a retraction may arrive before its event. But an EventID stands for one content only, and is dead
// once it is retracted: if the transaction is mined again with other logs before it, the event has another EventID
// ({transaction_hash}:{log_index} with another index, or followed by :1, :2 …). So remember the retracted EventIDs,
// ignore an event whose EventID is among them, and undo one that is already applied: what remains are the events of
// the chain, in their order, however the two topics interleave (subscriber.Apply). An event that reappears in another
// block with equal content, while its escrow's earlier events are unchanged, keeps its one message: its BlockNumber
// and BlockHash are then those of the first block.
//
// A replay is a message that is published once more on request, with the attribute replay: the same event under the
// same EventID. A consumer that wants its history again forgets what it has applied (subscriber.Forget) before it asks
// for a replay; other consumers drop it like any duplicate.
//
// # Traces
//
// A relayer that traces adds the attributes traceparent (W3C; the span "send TOPIC" of this message) and
// googclient_traceparent. Pass the attributes to propagation.TraceContext as its carrier (propagation.MapCarrier). Use
// them for tracing only: they differ when a message is published again.
//
// # Decode
//
// Decode returns ErrMalformed for a message that is not the relayer's or is inconsistent, and ErrSchema for one that a
// later relayer wrote under another schema. Leave both unacknowledged: then a dead-letter topic keeps them for a
// person.
package message
