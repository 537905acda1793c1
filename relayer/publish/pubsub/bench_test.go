package pubsub_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
)

// BenchmarkRequest sends requests of one message, 256 at once: what a key per escrow costs. It
// reports the processor time of client and server together, which a busy machine changes less than the time.
func BenchmarkRequest(b *testing.B) {
	server, err := testpubsub.Start(b.Context(), testpubsub.Options{Forget: true})
	require.NoError(b, err)
	defer func() { require.NoError(b, server.Stop()) }()
	client, err := pubsub.New(b.Context(), pubsub.Config{Project: project, Options: options(server.Addr())})
	require.NoError(b, err)
	defer func() { require.NoError(b, client.Close()) }()

	message := []pubsub.Message{{Data: []byte(strings.Repeat("x", 800)), Attributes: map[string]string{
		"event_id": strings.Repeat("i", 68), "event_type": "Approved", "event_name": "Approved", "chain_id": "11155111",
		"escrow": strings.Repeat("e", 42), "block_number": "6000000", "schema": "1"}}}
	const atOnce = 256
	b.ReportAllocs()
	before := processorTime(b)
	b.ResetTimer()
	var left atomic.Int64
	left.Store(int64(b.N))
	var senders sync.WaitGroup
	for range atOnce {
		senders.Go(func() {
			for left.Add(-1) >= 0 {
				if _, err := client.Publish(b.Context(), settlement, "11155111:0xe5c0", message); err != nil {
					panic(err)
				}
			}
		})
	}

	senders.Wait()
	b.StopTimer()
	b.ReportMetric(float64((processorTime(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
}

// processorTime is what this process has used.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
