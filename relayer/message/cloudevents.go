package message

import (
	"time"
)

// cloudEventType begins the type of each event: {prefix}EscrowDeployed.v1, and {prefix}EscrowDeployed.retracted.v1.
const cloudEventType = "com.github.fusion-prime.escrow-relayer."

// AddCloudEvents adds the attributes of CloudEvents 1.0 to those that Encode returned, in the
// binary mode of its binding to Pub/Sub (googleapis/google-cloudevents, docs/spec/pubsub.md). The
// body is unchanged. A replay has the id of its event; a retraction is an event with a separate id
// and type.
func AddCloudEvents(attributes map[string]string, k Kind, e *Event) {
	id, name := attributes[AttrEventID], e.Name
	if k == Retraction {
		id, name = id+":retracted", name+".retracted"
	}

	attributes["ce-specversion"] = "1.0"
	attributes["ce-id"] = id
	attributes["ce-source"] = "/eip155/" + attributes[AttrChainID]
	attributes["ce-type"] = cloudEventType + name + ".v" + Version
	attributes["ce-subject"] = attributes[AttrEscrow]
	attributes["ce-time"] = time.Unix(int64(e.BlockTime), 0).UTC().Format(time.RFC3339)
	attributes["ce-dataschema"] = schemaID
	attributes["content-type"] = "application/json"
}

// schemaID is the $id of schema.json.
const schemaID = "https://github.com/fusion-prime/escrow-relayer/relayer/message/schema.json"
