package chain

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"
)

// split is two machines behind one URL whose chains differ above a block for good, each with a head of its
// own. turn says by the number of the request whether the second one answers.
func split(t *testing.T, a, b *testChain, final uint64, turn func(int64) bool) *testNode {
	first, second := startNode(t, a), startNode(t, b)
	first.finalized, second.finalized = final, final
	var requests atomic.Int64
	first.http = func(w http.ResponseWriter, r *http.Request) bool {
		if !turn(requests.Add(1)) {
			return false
		}

		body, err := io.ReadAll(r.Body)
		if err == nil {
			_, _ = w.Write(second.serve(body, nil))
		}

		return true
	}

	return first
}

// A backlog that is read of two branches in turn is of one branch: each range follows the one before.
func TestRangesOfTwoBranches(t *testing.T) {
	const fork, last = 1000, 2800
	a := newChain(3000, 10, 0)
	b := a.fork(fork, 10, 1)
	for name, turn := range map[string]func(int64) bool{
		"by request":     func(n int64) bool { return n%2 == 0 },
		"three in a row": func(n int64) bool { return n/3%2 == 0 },
	} {
		t.Run(name, func(t *testing.T) {
			front := split(t, a, b, last+100, turn)
			s := start(t, Config{URLs: []string{front.server.URL}, ChainID: 1, Finality: Finalized, MaxRange: 100})
			await(t, s, func(v View) bool { return v.Final >= last })
			before, at := uint64(0), common.Hash{} // as a watch has it
			for limit := time.Now().Add(time.Minute); before < last; {
				require.Less(t, time.Now(), limit, "block %d", before)
				fresh := true
				for batch, err := range s.Read(t.Context(), before+1, last, filterA()) {
					if err != nil {
						require.True(t, errors.Is(err, ErrDisagree) || errors.Is(err, ErrBehind), err)
						break
					}

					if fresh && at != (common.Hash{}) && batch.Parent != at {
						break
					}

					require.True(t, fresh || batch.Parent == at, "block %d", batch.From)
					fresh = false

					before, at = batch.To, batch.Last.Hash
					chain := a
					if batch.Last.Hash == b.headers[batch.To].Hash {
						chain = b
					}

					require.Equal(t, chain.matching(batch.From, batch.To), batch.Logs)
				}
			}
		})
	}
}

// While one machine behind a URL still has a block, what was processed is not taken back, and it is when
// none has it, or only one that is behind. The block a fork is looked for below is of the same answer.
func TestSomeStillHaveTheBlock(t *testing.T) {
	a := newChain(3000, 10, 0)
	b := a.fork(1000, 10, 1)
	var left atomic.Bool
	front := split(t, a, b, 2900, func(n int64) bool { return left.Load() || n%4 > 0 })
	s := start(t, Config{URLs: []string{front.server.URL}, ChainID: 1, Finality: Finalized})
	await(t, s, func(v View) bool { return v.Final >= 2900 })
	for range 10 {
		h, err := s.Canonical(t.Context(), 1500, a.headers[1500].Hash)
		if err == nil {
			require.Equal(t, a.headers[1500].Hash, h.Hash)
			continue
		}

		require.ErrorIs(t, err, ErrDisagree)
	}

	for range 10 {
		list, err := s.Branch(t.Context(), b.headers[1500], 900, 1400)
		if err == nil {
			require.Equal(t, []Header{a.headers[900], b.headers[1400]}, list)
			continue
		}

		require.ErrorIs(t, err, ErrDisagree)
	}

	left.Store(true)
	h, err := s.Canonical(t.Context(), 1500, a.headers[1500].Hash)
	require.NoError(t, err)
	require.Equal(t, b.headers[1500].Hash, h.Hash)

	left.Store(false)
	front.set(func() { front.head = 2500 }) // it has stayed behind: whether it will leave its branch is not known
	for range 10 {
		if h, err = s.Canonical(t.Context(), 1500, a.headers[1500].Hash); err == nil && h.Hash == b.headers[1500].Hash {
			return
		}
	}

	require.Fail(t, "a machine that is behind keeps what was left", "%v", err)
}
