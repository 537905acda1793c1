package chain

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/long"
	"github.com/fusion-prime/escrow-relayer/internal/race"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
)

// hostileChain has events, and an invented one in a block that has others.
func hostileChain(t *testing.T) (sim *testchain.Sim, first, head uint64, want []types.Log, invented types.Log) {
	sim, d := testchain.NewContracts(t, testchain.Options{Seed: 5})
	traffic, err := testchain.NewTraffic(t.Context(), testchain.TrafficConfig{URL: sim.HTTP(), Deployment: d,
		Accounts: sim.Accounts()[1:], Seed: 5})
	require.NoError(t, err)
	t.Cleanup(traffic.Close)
	require.NoError(t, sim.Mine(t.Context(), 4))
	first = d.Block + 1
	for range 6 {
		require.NoError(t, traffic.Step(t.Context(), 8))
		require.NoError(t, sim.Mine(t.Context(), 1))
	}

	truth := start(t, Config{URLs: []string{sim.HTTP()}, ChainID: 1337, Finality: Latest})
	head = await(t, truth, func(v View) bool { return v.Target >= d.Block+10 }).Head
	all, _ := collect(t, truth, first, head, &Filter{})
	want, _ = collect(t, truth, first, head, &Filter{Topics: topicsOf(all)})
	require.Greater(t, len(want), 20)
	invented = want[len(want)/2]
	invented.Address, invented.Topics = common.Address{0xba, 0xd0}, []common.Hash{invented.Topics[0], {0xba, 0xd0}}
	invented.Index, invented.TxHash, invented.Data = 4000, common.Hash{0xba, 0xd0}, []byte{0xba, 0xd0}

	return sim, first, head, want, invented
}

// hurried has a Source's clock jump over the pauses for which it would wait.
func hurried(cfg Config) (Config, *atomic.Int64) {
	var ahead atomic.Int64
	cfg.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	cfg.wait = func(ctx context.Context, pause time.Duration) error {
		ahead.Add(int64(pause))
		return context.Cause(ctx)
	}

	return cfg, &ahead
}

// lieOf is one lie, with what it takes. An endpoint that is asked alone, and none of whose receipts has ever proved
// anything, is a chain that makes roots otherwise: Changed, which leaves none intact, begins behind some.
func lieOf(mode faults.Mode, first uint64, invented types.Log) faults.Fault {
	f := faults.Fault{Mode: mode, N: invented.BlockNumber, Logs: []types.Log{invented}}
	if mode == faults.Blank || mode == faults.Own || mode == faults.Odd || mode == faults.Withheld {
		f.N = first
	}

	return f
}

// lies are all of them. The race detector looks at the code, which some lead through: all of them take it minutes.
func lies() []faults.Mode {
	if race.Detector {
		return []faults.Mode{faults.Invented, faults.Blank, faults.Own, faults.Unindexed}
	}

	return faults.Hostile()
}

// What a node with one lie brings about at the head: alone, with one honest endpoint, with two, in the first
// place and behind them. What is read is what the chain has, or nothing is. With an honest endpoint beside it,
// an answer that proves itself wrong has its endpoint named.
func TestHostileAtTheHead(t *testing.T) {
	sim, first, head, want, invented := hostileChain(t)
	f := &Filter{Topics: topicsOf(want)}
	for m, mode := range lies() {
		for _, honest := range []int{0, 1, 2} {
			for i, transport := range []string{"http", "ws"} {
				if !long.Tables && (m+honest+i)%2 > 0 || mode == faults.Own && honest == 0 {
					continue // which chain it is, the only endpoint says
				}

				t.Run(fmt.Sprintf("%s with %d over %s", mode, honest, transport), func(t *testing.T) {
					t.Parallel()
					liar, err := faults.NewNode(sim.HTTP(), sim.WS(), 1)
					require.NoError(t, err)
					t.Cleanup(func() { require.NoError(t, liar.Close()) })
					liar.Inject(lieOf(mode, first, invented))
					urls := []string{liar.HTTP(), sim.HTTP(), sim.HTTP() + "/#"}[:honest+1]
					if transport == "ws" {
						urls = []string{liar.WS(), sim.WS(), sim.WS() + "/#"}[:honest+1]
					}

					cfg, _ := hurried(Config{URLs: urls, ChainID: 1337, Finality: Latest, believeAfter: time.Hour})
					s := start(t, cfg)
					readTruth(t, s, first, head, f, want, honest > 0 && (honest > 1 || mode != faults.Own))
				})
			}
		}
	}
}

// The same of blocks that are final: where a reader keeps up, nothing is given that the chain does not have, and
// nothing is left out. In a backfill, which is read by range, the second is for the second reading to find.
func TestHostileBelowFinality(t *testing.T) {
	sim, first, head, want, invented := hostileChain(t)
	require.NoError(t, sim.Mine(t.Context(), 400))
	f := &Filter{Topics: topicsOf(want)}
	for _, mode := range lies() {
		for _, backfill := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, backfill %t", mode, backfill), func(t *testing.T) {
				t.Parallel()
				liar, err := faults.NewNode(sim.HTTP(), sim.WS(), 1)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, liar.Close()) })
				cfg := Config{URLs: []string{liar.HTTP(), sim.HTTP(), sim.HTTP() + "/#"}, ChainID: 1337, Proof: ProveAll,
					believeAfter: time.Hour}
				s := start(t, cfg)
				await(t, s, func(v View) bool { return v.Trust == Agreed && v.Final > head && v.Target >= first+leapBlocks })
				liar.Inject(lieOf(mode, first, invented))
				if !backfill {
					readTruth(t, s, first, head, f, want, true)
					return
				}

				for b, err := range s.Read(Later(t.Context()), first, first+leapBlocks, f) { // as a past is
					if err != nil {
						break // it only delays
					}

					for _, l := range b.Logs {
						require.True(t, slices.ContainsFunc(want, func(there types.Log) bool { return SameLog(there, l) }))
					}
				}
			})
		}
	}
}

// An endpoint has the headers of old blocks, and [] for their logs: an index that begins later. It is not read
// from, and alone it is no empty history. doctor sees it too.
func TestOldLogsThatAreMissing(t *testing.T) {
	t.Parallel()
	sim, first, head, want, _ := hostileChain(t)
	require.NoError(t, sim.Mine(t.Context(), 200))
	f := &Filter{Topics: topicsOf(want)}
	for _, honest := range []bool{false, true} {
		t.Run(fmt.Sprintf("beside an honest one %t", honest), func(t *testing.T) {
			liar, err := faults.NewNode(sim.HTTP(), sim.WS(), 1)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, liar.Close()) })
			liar.Inject(faults.Fault{Mode: faults.Unindexed, N: head + 100})
			cfg := Config{URLs: []string{liar.HTTP(), sim.HTTP()}, ChainID: 1337}
			if !honest {
				cfg.URLs = cfg.URLs[:1]
			}

			s := start(t, cfg)
			await(t, s, func(v View) bool { return v.Trust != Undecided && v.Final > head })
			var got []types.Log
			for b, err := range s.ReadOther(t.Context(), Batch{From: first, To: head, Filter: f}) { // by range
				if !honest {
					require.ErrorIs(t, err, ErrNoHistory)
					break
				}

				require.NoError(t, err)
				got = append(got, b.Logs...)
			}

			if honest {
				require.True(t, slices.EqualFunc(want, got, SameLog))
			}

			x := s.Examine(t.Context(), common.Address{1}, first)[0]
			require.True(t, x.OldestLogs)
			require.ErrorContains(t, x.OldestErr, "not their logs")
			require.Greater(t, x.Oldest, head)
		})
	}
}

// readTruth reads until all of it was read, or where that need not come about for a second. Whatever is read
// is what the chain has.
func readTruth(t *testing.T, s *Source, first, head uint64, f *Filter, want []types.Log, must bool) {
	for next, tries := first, 0; next <= head && (must || tries < 10); tries++ {
		for b, err := range s.Read(t.Context(), next, head, f) {
			if err != nil {
				select {
				case <-s.Changed():
				case <-time.After(20 * time.Millisecond):
				}

				break
			}

			there := slices.Collect(func(yield func(types.Log) bool) {
				for _, l := range want {
					if l.BlockNumber >= b.From && l.BlockNumber <= b.To && !yield(l) {
						return
					}
				}
			})
			require.True(t, slices.EqualFunc(there, b.Logs, SameLog), "blocks %d to %d", b.From, b.To)
			next = b.To + 1
		}
	}
}

// An endpoint that forges is named, is set aside, and is not asked while others serve.
func TestForgeriesAreNamed(t *testing.T) {
	t.Parallel()
	sim, first, head, want, invented := hostileChain(t)
	f := &Filter{Topics: topicsOf(want)}
	for _, mode := range []faults.Mode{faults.Bits, faults.Blank, faults.Receipts, faults.Repeated} {
		t.Run(string(mode), func(t *testing.T) {
			liar, err := faults.NewNode(sim.HTTP(), sim.WS(), 1)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, liar.Close()) })
			s := start(t, Config{URLs: []string{liar.HTTP(), sim.HTTP()}, ChainID: 1337, Finality: Latest})
			await(t, s, func(v View) bool { return v.Trust == Agreed && v.Target == head })
			lie := liar.Inject(lieOf(mode, first, invented))
			for len(s.Faults()) == 0 {
				s.ring.headers.Purge()
				s.memo = newMemo()
				readTruth(t, s, first, head, f, want, true)
			}

			require.Positive(t, lie.Hits())
			accused := s.Faults()[0]
			require.Equal(t, s.nodes[0].Name(), accused.Endpoint)
			require.Equal(t, endpoint.Lie, accused.Kind)
			require.Contains(t, accused.Evidence, "block ")
			before := lie.Hits()
			readTruth(t, s, first, head, f, want, true)
			require.Equal(t, before, lie.Hits())
		})
	}
}
