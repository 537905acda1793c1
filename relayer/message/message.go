package message

import (
	_ "embed"
)

// Version is the attribute schema of every message. It changes when consumers must change; names
// may be added under the same version.
const Version = "1"

// Schema is the JSON Schema of the body.
//
//go:embed schema.json
var Schema []byte

// Kind is the reason why a message is published. The values are those of the outbox.
type Kind int16

const (
	// Original is the first publication of an event.
	Original Kind = 0
	// Retraction withdraws a published event that a reorganisation removed.
	Retraction Kind = 1
	// Replay is the publication of an event once more, on request.
	Replay Kind = 2
)

// Attributes of a message.
const (
	AttrEventID     = "event_id"
	AttrEventType   = "event_type"
	AttrEventName   = "event_name" // the same as event_type: consumers exist for both
	AttrChainID     = "chain_id"
	AttrEscrow      = "escrow"  // lower case
	AttrFactory     = "factory" // lower case
	AttrBlockNumber = "block_number"
	AttrSchema      = "schema"
	AttrRetracted   = "retracted" // "true", on retractions only
	AttrReplay      = "replay"    // "true", on replays only
	// AttrTraceParent is the W3C trace context of the span that published the message; only if the relayer traces.
	AttrTraceParent = "traceparent"
	// AttrGoogleTraceParent has the value of AttrTraceParent, where Google's client libraries look for it.
	AttrGoogleTraceParent = "googclient_traceparent"
)

// MaxArgs bounds the arguments of a message, in bytes of JSON. Pub/Sub accepts 10 MB per request, and a message has
// them twice.
const MaxArgs = 4_800_000

// Reorganised is the reason of every retraction so far.
const Reorganised = "reorganisation"

// deployed is the one event that the factory emits: contract.Deployed, which this package must not
// import.
const deployed = "EscrowDeployed"

// reserved reports whether an argument of this name appears only under args. The names are reserved
// in every message, so that a name means the same in all of them.
func reserved(name string) bool {
	switch name {
	case "event_id", "event_type", "event_name", "chain_id", "contract_address", "escrow", "factory", "block_number",
		"block_hash", "block_timestamp", "transaction_hash", "log_index", "timestamp", "args", "truncated", "retracted",
		"reason", "original_block_hash":
		return true
	}

	return false
}
