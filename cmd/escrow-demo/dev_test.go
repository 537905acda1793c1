package main

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"cloud.google.com/go/pubsub/v2"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/port"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
)

// A consumer is developed with messages that it has to refuse, too.
func TestDevGoesOnAfterPoison(t *testing.T) {
	t.Parallel()
	var reserved [2]*port.Reserved
	for i := range reserved {
		var err error
		reserved[i], err = port.Reserve()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, reserved[i].Close()) })
	}

	d := startDemo(t, "dev", "--interval", "200ms", "--pubsub", reserved[0].Addr(), "--port",
		strconv.Itoa(reserved[1].Number))
	_, url, _ := strings.Cut(d.until("ready   page "), "page ")
	url, _, _ = strings.Cut(url, " ")
	d.until("Ctrl-C ends it")
	client, err := pubsub.NewClient(t.Context(), "local", testpubsub.ClientOptions(reserved[0].Addr())...)
	require.NoError(t, err)
	defer client.Close()
	for topic, told := range map[string]string{
		"settlement.events.v1": `{"event_id":"0xpoison:1"}`, "settlement.dead.v1": "dead letter: 0xpoison:1",
	} {
		p := client.Publisher(topic)
		_, err := p.Publish(t.Context(), &pubsub.Message{Data: []byte(`{"event_id": "0xpoison:1"}`),
			Attributes: map[string]string{"event_id": "0xpoison:1"}}).Get(t.Context())
		require.NoError(t, err)
		d.until(told)
		p.Stop()
	}

	d.until(`"event_type":"EscrowDeployed"`)
	require.NoError(t, d.cmd.Process.Signal(os.Interrupt))
	require.Zero(t, d.end(url), d.said.String())
}
