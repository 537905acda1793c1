package chain

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// A gateway that remembers for long that a block was not there yet does not hold it up: it is asked for
// by the hash that its child has for it.
func TestNullsThatAGatewayRemembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := grow(t, "http", 250*time.Millisecond, time.Minute)
		begun := time.Now()
		var mu sync.Mutex
		first := map[string]time.Time{}
		g.n.set(func() {
			g.n.lie = func(method string, params []json.RawMessage) (any, error) {
				if method != rpc.GetByNumber || !strings.Contains(string(params[0]), "0x") {
					return nil, nil
				}

				mu.Lock()
				defer mu.Unlock()
				asked, again := first[string(params[0])]
				if !again {
					asked = time.Now()
					first[string(params[0])] = asked
				}

				if time.Since(asked) < 30*time.Second {
					return null, nil
				}

				return nil, nil
			}
		})
		g.read(t, 20+4*30, begun.Add(31*time.Second))
		require.Greater(t, g.next, uint64(20+4*30), "%+v", g.s.Endpoints())
		require.NotEmpty(t, first)
	})
}

// A head that is larger than any header speaks against the endpoint: it is said, and asked for again after a pause.
func TestHeadThatIsTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := grow(t, "http", time.Second, time.Minute)
		g.read(t, 25, time.Now().Add(10*time.Second))
		before := g.n.count(rpc.GetByNumber)
		g.n.set(func() {
			g.n.lie = func(method string, _ []json.RawMessage) (any, error) {
				if method == rpc.GetByNumber {
					return strings.Repeat("0", 9<<20), nil
				}

				return nil, nil
			}
		})
		<-time.After(15 * time.Second)
		require.Contains(t, g.s.Endpoints()[0].LastError, rpc.ErrOversized.Error())
		require.Less(t, g.n.count(rpc.GetByNumber)-before, 60) // 80 without pauses
	})
}

// An endpoint that announces blocks and refuses requests for their rate is not asked while its pause lasts.
func TestAnnouncementsAreNoCauseToAskDuringAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := grow(t, "ws", time.Second, 2*time.Minute)
		g.read(t, 1000, time.Now().Add(20*time.Second))
		g.n.set(func() {
			g.n.limit = func([]byte, func()) []byte {
				<-time.After(50 * time.Millisecond) // requests that are in flight together are refused together

				return []byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"rate limit exceeded"}}`)
			}
		})
		ends := time.Now().Add(40 * time.Second)
		time.AfterFunc(time.Until(ends), func() { g.n.set(func() { g.n.limit = nil }) })
		g.read(t, 20+20+40, ends.Add(45*time.Second)) // a pause is as long as those before it together
		require.Greater(t, g.next, uint64(20+20+40), "%+v", g.s.Endpoints())
	})
}

// A subscription that says nothing, again and again, is the endpoint's last error, which the log repeats
// at most once a minute; blocks are found by looking.
func TestSubscriptionsThatStaySilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := grow(t, "ws", time.Second, 2*time.Minute)
		g.read(t, 1000, time.Now().Add(20*time.Second))
		g.n.set(func() {
			g.n.limit = func(b []byte, _ func()) []byte { return g.n.serve(b, func() {}) }
			for c := range g.n.sockets {
				g.n.sockets[c] = nil
			}
		})
		g.read(t, 1000, time.Now().Add(40*time.Second))
		require.Greater(t, g.next, uint64(20+20+35))
		require.Contains(t, g.s.Endpoints()[0].LastError, errSilent.Error())
		require.Greater(t, g.n.count(rpc.Subscribe), 3)
	})
}

// A node that takes requests for receipts and never answers them is read without, where it shows that it
// answers others.
func TestReceiptsThatAreNeverAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, over := grow(t, "http", time.Second, time.Minute)
		g.n.set(func() {
			for i := range g.chain.headers {
				g.chain.headers[i].Bloom = types.Bloom{}
			}

			g.chain.logs = map[common.Hash][]types.Log{}
		})
		g.hang("http", time.Minute, over, func(b []byte) bool { return strings.Contains(string(b), rpc.GetReceipts) })
		g.read(t, 1000, time.Now().Add(30*time.Second))
		require.Greater(t, g.next, uint64(20+28), "%+v", g.s.Endpoints())
		require.Zero(t, g.n.count(rpc.GetReceipts)) // that were answered
	})
}
