package chain

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
)

// Whatever the only other endpoint says instead of a reading, in passing, the endpoint that gave the first reading does
// not give the second one: it waits, and is told why. Said for over a minute it is for good, and the one endpoint that
// gives the reading is enough. So it is with the header by which a block is proved.
func TestTheSecondReadingIsAnothersWord(t *testing.T) {
	t.Parallel()
	sim, first, head, want, _ := hostileChain(t)
	require.NoError(t, sim.Mine(t.Context(), 700))
	f := &Filter{Topics: topicsOf(want)}
	for _, says := range []faults.Fault{
		{Mode: faults.Pruned, N: head + 100},
		{Mode: faults.Forgotten, N: head + 100},
		{Mode: faults.Unindexed, N: head + 100},
		{Mode: faults.Refused, Method: "eth_getLogs", Words: "eth_getLogs is not in your plan"},
		{Mode: faults.Refused, Method: "eth_getLogs", Words: "Please specify an address in your request"},
	} {
		for _, passes := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s %s, passes %t", says.Mode, says.Words, passes), func(t *testing.T) {
				t.Parallel()
				liar, err := faults.NewNode(sim.HTTP(), sim.WS(), 1)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, liar.Close()) })
				other, err := faults.NewNode(sim.HTTP(), sim.WS(), 1)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, other.Close()) })
				cfg, ahead := hurried(Config{URLs: []string{liar.HTTP(), other.HTTP()}, ChainID: 1337, believeAfter: time.Hour})
				s := start(t, cfg)
				await(t, s, func(v View) bool { return v.Trust == Agreed && v.Final > head+100 && allUp(s) })
				liar.Inject(faults.Fault{Mode: faults.Omit, N: 2})
				var batch Batch
				for b, err := range s.ReadOther(t.Context(), Batch{From: first, To: head, Filter: f}) {
					require.NoError(t, err)
					batch = b
				}

				require.Equal(t, head, batch.To, "all in one")
				require.Less(t, len(batch.Logs), len(want))
				again := func() (by *endpoint.Node, logs []types.Log, err error) {
					for b, err := range s.ReadOther(Later(t.Context()), batch) {
						if err != nil {
							return nil, nil, err
						}

						by, logs = b.By, append(logs, b.Logs...)
					}

					return by, logs, nil
				}
				refuses, began := other.Inject(says), cfg.Now()
				for removed := false; ; {
					since := cfg.Now().Sub(began)
					_, _, err := s.Prove(t.Context(), head, f)
					if !removed && err == nil && (says.Mode == faults.Pruned || says.Mode == faults.Forgotten) {
						require.Greater(t, since, time.Minute)
					}

					by, logs, err := again()
					if err == nil && !passes && by == batch.By {
						require.Greater(t, since, time.Minute)
						return
					}

					if err == nil {
						require.NotSame(t, batch.By, by, "after %s", since)
						require.True(t, slices.EqualFunc(want, logs, SameLog))
						require.True(t, passes)

						return
					}

					require.ErrorContains(t, err, s.nodes[1].Name(), "why it waits")
					require.Less(t, since, time.Hour)
					if passes && since > 30*time.Second {
						refuses.Remove()
						removed = true
					}

					ahead.Add(int64(10 * time.Second))
				}
			})
		}
	}
}
