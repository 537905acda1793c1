// Package message is the wire format of the escrow relayer: what it publishes, and how a consumer
// reads it. It imports only the standard library, so that a consumer can import it without any
// further dependency.
//
// # The message
//
// The body is a JSON object: an envelope, the event's arguments under "args", and the same
// arguments once more at the top level, where a name of the envelope wins (EscrowReleased has an
// argument timestamp; the envelope's timestamp is when the message was published). Addresses are in
// EIP-55 mixed case, integers are decimal strings whatever their size, and nothing is null.
// Attributes repeat what subscriptions filter by. schema.json, embedded as Schema, describes the
// body; testdata has an example of each event.
//
// # What a consumer can rely on
//
// Messages of one escrow are published in the order of the chain, EscrowDeployed first. Pub/Sub
// keeps that order only for subscriptions that have message ordering switched on. Delivery is at
// least once, and rarely a message is published twice (Pub/Sub had stored it when the relayer died
// before it learnt that): so apply an event once per EventID and ChainID, in the transaction that has
// the effect. Package subscriber does that on Postgres; README.md shows it in Go, Python and TypeScript.
//
// A retraction says that an event was published and that a reorganisation has removed it. Retractions
// have a topic of their own, and occur only if the relayer publishes blocks that are not final yet.
// There is no order between that topic and the others, so a retraction may arrive before its event.
// But an EventID is never used for two contents, and never again once it was retracted: if the
// transaction is mined again with other logs before it, the event has another EventID
// ({transaction_hash}:{log_index} with another index, or followed by :1, :2 …). So remember the
// EventIDs that were retracted, ignore an event whose EventID is among them, and take back one that is
// applied already: what remains are the events of the chain, in their order, however the two topics
// interleave (subscriber.Apply). An event that comes back in another block with equal content, before
// anything else of its escrow changed, is neither retracted nor published again; its BlockNumber and
// BlockHash are then those of the first block.
//
// A replay is a message that is published once more on request, with the attribute replay: the same
// event under the same EventID. A consumer that wants its history again forgets what it has applied
// (subscriber.Forget) before it asks for a replay; other consumers drop it like any message that they
// have seen.
//
// # Traces
//
// A relayer with tracing switched on (OTEL_TRACES_EXPORTER) adds the attribute traceparent, a W3C
// trace context: that of the span "send TOPIC" of this message, which belongs to the trace of the
// blocks in which the event was read. The attribute googclient_traceparent says the same to Google's
// client libraries. Pass the attributes to OpenTelemetry's propagation.TraceContext as its
// carrier (propagation.MapCarrier), and the consumer's spans join that trace. Nothing else may depend
// on the attributes: they depend on the relayer's configuration, and a message that is published again
// has other values.
//
// # Decode
//
// Decode returns ErrMalformed for what is not a message of the relayer or contradicts itself, and
// ErrSchema for what a later relayer wrote under another schema. Acknowledge neither: then a
// dead-letter topic keeps it for a person to look at.
package message
