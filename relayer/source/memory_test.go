package source

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/rpc"
)

// Ranges whose answers have 110 MB each, beyond 64 blocks, are not held in memory: smaller ones are asked for.
func TestLargeAnswers(t *testing.T) {
	const blocks = 2048
	chain := newChain(blocks, 0, 0)
	n := startNode(t, chain)
	n.finalized = blocks
	block := []byte(strings.Repeat(" ", 1<<20))
	var large, sent atomic.Int64
	n.http = func(w http.ResponseWriter, r *http.Request) bool {
		b, _ := io.ReadAll(r.Body)
		var list []testRequest
		if json.Unmarshal(b, &list) == nil && len(list) == 2 && list[0].Method == rpc.GetLogs {
			if q := parseQuery(t, list[0].Params[0]); q.ToBlock-q.FromBlock >= 64 {
				large.Add(1)
				_, _ = fmt.Fprintf(w, `[{"jsonrpc":"2.0","id":%s,"result":[`, list[0].ID)
				for range 110 {
					written, err := w.Write(block)
					if sent.Add(int64(written)); err != nil {
						return true
					}
				}

				_, _ = fmt.Fprintf(w, `]},{"jsonrpc":"2.0","id":%s,"result":%s}]`, list[1].ID,
					marshal(blockJSON(chain.headers[q.ToBlock])))

				return true
			}
		}

		_, _ = w.Write(n.serve(b, nil))

		return true
	}
	s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest, Timeout: time.Minute})
	await(t, s, func(v View) bool { return v.Final == blocks })
	runtime.GC()
	var peak uint64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		var m runtime.MemStats
		for {
			select {
			case <-stop:
				return
			case <-ticker.C:
				runtime.ReadMemStats(&m)
				peak = max(peak, m.Sys-m.HeapReleased)
			}
		}
	}()
	require.EqualValues(t, blocks+1, backlog(t, s, chain, 1, blocks, 2*time.Minute))
	close(stop)
	<-stopped
	t.Logf("peak %d MiB, %d answers too large, %d MB of them sent", peak>>20, large.Load(), sent.Load()>>20)
	require.Less(t, peak, uint64(384<<20), "the server of this test included")
	require.LessOrEqual(t, large.Load(), int64(20))
}
