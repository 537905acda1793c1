package chain

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
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
	end := watchMemory()
	require.EqualValues(t, blocks+1, backlog(t, s, chain, 1, blocks, 2*time.Minute))
	peak := end()
	t.Logf("peak %d MiB, %d answers too large, %d MB of them sent", peak>>20, large.Load(), sent.Load()>>20)
	require.Less(t, peak, uint64(384<<20), "the server of this test included")
	require.LessOrEqual(t, large.Load(), int64(20))
}

// watchMemory starts to look at what this process has of the system; the function that it returns ends
// that, and says how much it was at most, in bytes.
func watchMemory() (end func() uint64) {
	debug.FreeOSMemory()
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

	return func() uint64 {
		close(stop)
		<-stopped

		return peak
	}
}

// Each block has 1.9 MB of logs that are wanted, and two watches read them: the first ranges have 64
// blocks each, 120 MB, before it is known how much that is. No more of one is held than of others.
func TestRangesOfLargeBlocks(t *testing.T) {
	const blocks, logs = 256, 3000
	chain := newChain(blocks, 0, 0)
	n := startNode(t, chain)
	n.finalized = blocks
	n.http = func(w http.ResponseWriter, r *http.Request) bool {
		b, _ := io.ReadAll(r.Body)
		var list []testRequest
		if json.Unmarshal(b, &list) != nil || list[0].Method != rpc.GetLogs {
			_, _ = w.Write(n.serve(b, nil))
			return true
		}

		q := parseQuery(t, list[0].Params[0])
		body := bufio.NewWriterSize(w, 64<<10)
		_, _ = fmt.Fprintf(body, `[{"jsonrpc":"2.0","id":%s,"result":[`, list[0].ID)
		for k := q.FromBlock; k <= q.ToBlock; k++ {
			log := fmt.Sprintf(`{"address":%q,"topics":[%q],"data":"0x%064x","blockNumber":"0x%x","transactionHash":"0x%064x",`+
				`"transactionIndex":"0x0","blockHash":%q,"blockTimestamp":"0x5","removed":false,"logIndex":"0x`,
				emitter.Hex(), topicA.Hex(), 1, uint64(k), 7, chain.headers[k].Hash.Hex())
			for i := range logs {
				if k > q.FromBlock || i > 0 {
					_ = body.WriteByte(',')
				}

				_, _ = fmt.Fprintf(body, `%s%x"}`, log, i)
			}
		}

		_, _ = body.WriteString("]}")
		for _, head := range list[1:] {
			var number hexutil.Uint64
			_ = json.Unmarshal(head.Params[0], &number)
			_, _ = fmt.Fprintf(body, `,{"jsonrpc":"2.0","id":%s,"result":%s}`, head.ID,
				marshal(blockJSON(chain.headers[number])))
		}

		_ = body.WriteByte(']')
		_ = body.Flush()

		return true
	}
	s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest, Timeout: time.Minute})
	await(t, s, func(v View) bool { return v.Final == blocks })
	end := watchMemory()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for next, f := uint64(1), filterA(); next <= 80 && t.Context().Err() == nil; {
				for b, err := range s.Read(t.Context(), next, 80, f) {
					if err != nil {
						break
					}

					next = b.To + 1
				}
			}
		})
	}

	wg.Wait()
	peak := end()
	t.Logf("peak %d MiB", peak>>20)
	require.Less(t, peak, uint64(100<<20), "the server of this test included")
}
