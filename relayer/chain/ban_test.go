package chain

import (
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A limit that lets nothing through for a while once it was exceeded, which begins anew with each
// request that comes meanwhile, is waited out.
func TestBanThatEachRequestProlongs(t *testing.T) {
	for _, long := range []time.Duration{10 * time.Second, time.Minute} {
		t.Run(long.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const blocks = 3000
				chain := newChain(blocks, 10, 0)
				var p pipes
				n, _ := p.node(t, chain)
				n.finalized = blocks
				limit := &meter{rate: 10, burst: 10}
				var mu sync.Mutex
				var banned time.Time // until when
				n.http = func(w http.ResponseWriter, r *http.Request) bool {
					b, _ := io.ReadAll(r.Body)
					var batch []testRequest
					if json.Unmarshal(b, &batch) != nil {
						batch = make([]testRequest, 1)
					}

					mu.Lock()
					refused := time.Now().Before(banned) || !limit.take(len(batch))
					if refused {
						banned = time.Now().Add(long)
					}

					mu.Unlock()
					if refused {
						w.WriteHeader(http.StatusTooManyRequests)
					} else {
						_, _ = w.Write(n.serve(b, nil))
					}

					return true
				}
				s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest, MaxRange: 100,
					PollInterval: time.Second, Dial: p.dial})
				next := uint64(1)
				for range 30 {
					if s.View().Final == blocks {
						next = backlog(t, s, chain, next, blocks, time.Minute)
					} else {
						<-time.After(time.Minute)
					}
				}

				require.EqualValues(t, blocks+1, next, "%+v", s.Endpoints())
			})
		})
	}
}
