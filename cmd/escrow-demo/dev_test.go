package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"cloud.google.com/go/pubsub/v2"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/port"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
)

// reserve reserves a port for Pub/Sub, and one for the page.
func reserve(t *testing.T) (reserved [2]*port.Reserved) {
	for i := range reserved {
		var err error
		reserved[i], err = port.Reserve()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, reserved[i].Close()) })
	}

	return reserved
}

// Why it could not run is told, and nothing is left.
func TestDevThatCannotStart(t *testing.T) {
	t.Parallel()
	reserved := reserve(t)
	taken, err := net.Listen("tcp", reserved[1].Addr())
	require.NoError(t, err)
	defer taken.Close()
	d := startDemo(t, "dev", "--pubsub", reserved[0].Addr(), "--port", strconv.Itoa(reserved[1].Number))
	require.Equal(t, exitRefused, d.end("http://"+reserved[0].Addr()))
	require.Contains(t, d.said.String(), "set PORT to a free port", "the end of the log")
}

// A consumer is developed with messages that it has to refuse, and with events that are published on request.
func TestDevGoesOnAfterPoison(t *testing.T) {
	t.Setenv("EVENT_NAMES", "EscrowCreated")
	t.Setenv("OTHER_EVENTS_TOPIC_ID", "settlement.other.v1")
	reserved := reserve(t)
	d := startDemo(t, "dev", "--interval", "200ms", "--pubsub", reserved[0].Addr(), "--port",
		strconv.Itoa(reserved[1].Number))
	_, url, _ := strings.Cut(d.until("ready   page "), "page ")
	url, _, _ = strings.Cut(url, " ")
	_, settings, _ := strings.Cut(d.until("need its settings: . "), "settings: ")
	d.until("Ctrl-C ends it")
	client, err := pubsub.NewClient(t.Context(), "local", testpubsub.ClientOptions(reserved[0].Addr())...)
	require.NoError(t, err)
	defer client.Close()
	for _, c := range []struct {
		topic, told string
		attributes  map[string]string
	}{
		{"settlement.events.v1", `{"event_id":"0xpoison:1"}`, nil},
		{"settlement.dead.v1", "dead letter: EscrowReleased 0xpoison:1, refused 5 times by x",
			map[string]string{"event_id": "0xpoison:1", "event_type": "EscrowReleased",
				"CloudPubSubDeadLetterSourceDeliveryCount": "5", "CloudPubSubDeadLetterSourceSubscription": "x"}},
		{"settlement.dead.v1", `dead letter: unknown "{\"event_id\": \"0xpoison:1\"}", refused`, nil},
	} {
		p := client.Publisher(c.topic)
		_, err := p.Publish(t.Context(), &pubsub.Message{Data: []byte(`{"event_id": "0xpoison:1"}`),
			Attributes: c.attributes}).Get(t.Context())
		require.NoError(t, err)
		d.until(c.told)
		p.Stop()
	}

	d.until(`"event_type":"EscrowDeployed"`)
	d.until(`"event_type":"EscrowCreated"`)
	relayer := filepath.Join(programs, "escrow-relayer")
	out, err := exec.CommandContext(t.Context(), "sh", "-c",
		settings+"; exec "+relayer+" replay --from 1 --to 1000000 --dry-run").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, d.cmd.Process.Signal(os.Interrupt))
	require.Zero(t, d.end(url), d.said.String())
}
