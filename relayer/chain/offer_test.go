package chain

import (
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// offered is two endpoints of which the second answers a transaction when it is told to, one for each value.
func offered(t *testing.T, timeout time.Duration) (s *Source, hanging *testNode, answer chan struct{}) {
	t.Helper()
	chain := newChain(20, 1, 0)
	var p pipes
	quick, _ := p.node(t, chain)
	hanging, _ = p.node(t, chain)
	answer = make(chan struct{})
	ended := make(chan struct{})
	t.Cleanup(func() { close(ended) })
	for _, n := range []*testNode{quick, hanging} {
		n.lie = func(method string, _ []json.RawMessage) (any, error) {
			if n == hanging && method == sendRaw {
				select {
				case <-answer:
				case <-ended:
				}
			}

			return "0x01", nil
		}
	}

	return New(Config{URLs: []string{quick.server.URL, hanging.server.URL}, ChainID: 1, Timeout: timeout, Dial: p.dial}),
		hanging, answer
}

// What hangs at one endpoint delays nobody who offers, and Close waits for it.
func TestCloseWaitsForWhatWasOffered(t *testing.T) {
	for name, ends := range map[string]struct {
		timeout time.Duration
		answers bool
	}{
		"until the endpoint answers": {time.Hour, true},
		"until its time is over":     {2 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, hanging, answer := offered(t, ends.timeout)
				require.NoError(t, s.Offer(t.Context(), []byte{1}))
				synctest.Wait()
				require.Equal(t, 1, hanging.count(sendRaw))
				closed := make(chan struct{})
				go func() { defer close(closed); s.Close() }()
				synctest.Wait()
				select {
				case <-closed:
					require.Fail(t, "what was offered is on its way")
				default:
				}

				if ends.answers {
					answer <- struct{}{}
				}

				<-closed
				require.NoError(t, s.Offer(t.Context(), []byte{2}), "the next request opens new connections")
				go func() { answer <- struct{}{} }()
				s.Close()
			})
		})
	}
}

// An endpoint that hangs has twelve transactions at a time, and is read from beside them. The others wait in their
// order.
func TestOffersAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most, all = 12, 20
		s, hanging, answer := offered(t, time.Hour)
		for i := range all {
			require.NoError(t, s.Offer(t.Context(), fmt.Appendf(nil, "%d", i)))
		}

		began := time.Now()
		for i := range all {
			synctest.Wait()
			require.Equal(t, min(most+i, all), hanging.count(sendRaw))
			require.NoError(t, s.nodes[1].Do(t.Context(), rpc.ByTag("latest")))
			answer <- struct{}{}
		}

		require.Equal(t, began, time.Now(), "nobody waits for a place")
		s.Close()
	})
}
