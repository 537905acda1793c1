//go:build long

package chain

import (
	"context"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Blocks above finality are read one by one, however large: what is in flight, and what is remembered
// of them for other readers, is bounded in bytes. The container has 512 MiB.
func TestLargeBlocks(t *testing.T) {
	for name, test := range map[string]struct {
		blocks, logs uint64
	}{
		"20 MB each":  {blocks: 3, logs: 40_000},
		"110 MB each": {blocks: 1, logs: 220_000},
	} {
		t.Run(name, func(t *testing.T) {
			defer debug.SetGCPercent(debug.SetGCPercent(40))
			chain := crowd{ChainID: 1, Head: 100, Final: 1, Logs: test.logs, Topic: topicA}
			server := httptest.NewServer(chain)
			s := New(Config{URLs: []string{server.URL}, ChainID: 1, Finality: Latest,
				Timeout: time.Minute})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- s.Run(ctx) }()
			defer func() {
				cancel()
				require.NoError(t, <-done)
				server.Close()
			}()
			for changed := s.Changed(); s.View().Head != 100; changed = s.Changed() {
				<-changed
			}

			peak := watchMemory()
			var read, logs uint64
			for b, err := range s.Read(ctx, 101-test.blocks, 100, filterA()) {
				require.NoError(t, err)
				read += b.To - b.From + 1
				logs += uint64(len(b.Logs))
			}

			most := peak()
			require.Equal(t, test.blocks, read)
			require.Equal(t, test.blocks*test.logs, logs)
			debug.FreeOSMemory()
			var after runtime.MemStats
			runtime.ReadMemStats(&after)
			t.Logf("peak %d MiB, kept %d MiB", most>>20, after.HeapAlloc>>20)
			require.Less(t, most>>20, uint64(256))
			require.Less(t, after.HeapAlloc>>20, uint64(64))
		})
	}
}
