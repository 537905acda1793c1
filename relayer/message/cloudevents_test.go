package message_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

func TestCloudEvents(t *testing.T) {
	var schema struct {
		ID string `json:"$id"`
	}
	require.NoError(t, json.Unmarshal(message.Schema, &schema))
	e := event("Approved", `{"approver":"`+payer+`"}`)
	added := func(k message.Kind) map[string]string {
		body, attributes := encode(t, k, e)
		_, before := encode(t, k, e)
		message.AddCloudEvents(attributes, k, e)
		_, err := message.Decode(body, attributes)
		require.NoError(t, err)
		for name := range before {
			require.Equal(t, before[name], attributes[name])
			delete(attributes, name)
		}

		return attributes
	}
	id := message.EventID(e.TransactionHash, e.LogIndex, 0)
	want := map[string]string{
		"ce-specversion": "1.0", "ce-id": id, "ce-source": "/eip155/11155111",
		"ce-type":    "com.github.fusion-prime.escrow-relayer.Approved.v1",
		"ce-subject": "0xe3d2980084b291fba9684208ebdb5a4cb03bbd29", "ce-time": "2026-11-21T05:20:00Z",
		"ce-dataschema": schema.ID, "content-type": "application/json",
	}
	require.Equal(t, want, added(message.Original))
	require.Equal(t, want, added(message.Replay), "a replay is the same event")
	want["ce-id"], want["ce-type"] = id+":retracted", "com.github.fusion-prime.escrow-relayer.Approved.retracted.v1"
	require.Equal(t, want, added(message.Retraction))
}
