package chain

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
)

// start runs a Source until the test ends.
func start(t *testing.T, cfg Config) *Source {
	t.Helper()
	if cfg.PollInterval == 0 {
		cfg.PollInterval = 10 * time.Millisecond
	}

	if time.Now().Year() > 2000 { // else in a bubble, where no machine is slow
		cfg.Timeout = cmp.Or(cfg.Timeout, time.Minute)
	}

	cfg.believeAfter = cmp.Or(cfg.believeAfter, 50*time.Millisecond)
	cfg.Registerer = prometheus.NewRegistry()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}

	s := New(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })

	return s
}

// await waits until the View fulfils a condition.
func await(t *testing.T, s *Source, what func(View) bool) View {
	t.Helper()
	limit := time.NewTimer(2 * time.Minute) // of a busy machine
	defer limit.Stop()
	look := time.NewTicker(5 * time.Millisecond) // conditions may be about more than the View
	defer look.Stop()
	for {
		changed := s.Changed()
		if v := s.View(); v.Ready && what(v) {
			return v
		}

		select {
		case <-changed:
		case <-look.C:
		case <-limit.C:
			require.FailNow(t, "the view does not come to it", "%+v", s.View())
		}
	}
}

func collect(t *testing.T, s *Source, from, to uint64, f *Filter) (logs []types.Log, batches []Batch) {
	t.Helper()
	next, began := from, time.Now()
	for again := true; again; {
		again = false
		for b, err := range s.Read(t.Context(), next, to, f) {
			// While one of two endpoints is out, and the other's word does not count yet.
			if errors.Is(err, ErrDisagree) && len(s.nodes) > 1 && time.Since(began) < 2*time.Minute {
				await(t, s, func(View) bool { return s.outlook.agreement.Believes() || len(s.outlook.claims()) > 1 })
				again = true
				<-time.After(10 * time.Millisecond) // in a bubble time stands still while somebody computes

				break
			}

			require.NoError(t, err)
			require.Equal(t, next, b.From)
			require.Equal(t, b.To, b.Last.Number)
			require.Same(t, f, b.Filter)
			if len(batches) > 0 && b.Parent != (common.Hash{}) {
				require.Equal(t, batches[len(batches)-1].Last.Hash, b.Parent)
			}

			logs = append(logs, b.Logs...)
			batches = append(batches, b)
			next = b.To + 1
		}
	}

	require.Equal(t, to+1, next)

	return logs, batches
}

func TestSim(t *testing.T) {
	sim, d := testchain.NewContracts(t, testchain.Options{Seed: 1})
	traffic, err := testchain.NewTraffic(t.Context(),
		testchain.TrafficConfig{URL: sim.HTTP(), Accounts: sim.Accounts()[:5], Deployment: d, Seed: 7})
	require.NoError(t, err)
	t.Cleanup(traffic.Close)
	for range 12 {
		require.NoError(t, traffic.Step(t.Context(), 10))
		require.NoError(t, sim.Mine(t.Context(), 6))
	}

	c, err := ethclient.DialContext(t.Context(), sim.HTTP())
	require.NoError(t, err)
	t.Cleanup(c.Close)
	head, err := c.BlockNumber(t.Context())
	require.NoError(t, err)
	want, err := c.FilterLogs(t.Context(), ethereum.FilterQuery{FromBlock: new(big.Int),
		ToBlock: new(big.Int).SetUint64(head)})
	require.NoError(t, err)
	require.NotEmpty(t, want)

	for name, url := range map[string]string{"http": sim.HTTP(), "ws": sim.WS()} {
		t.Run(name, func(t *testing.T) {
			s := start(t, Config{URLs: []string{url}, ChainID: 1337, Finality: Latest, MaxRange: 7})
			require.NoError(t, s.Check(t.Context(), d.Factory))
			require.ErrorContains(t, s.Check(t.Context(), common.Address{1}), "FACTORY_ADDRESS")
			v := await(t, s, func(v View) bool { return v.Head == head })
			require.Equal(t, head, v.Target)
			require.NotZero(t, v.Final)
			require.Less(t, v.Final, v.Target)
			require.NoError(t, s.Health())
			got, _ := collect(t, s, 0, head, &Filter{})
			require.Equal(t, want, got)
			got, _ = collect(t, s, 0, head, &Filter{Addresses: []common.Address{d.Factory},
				Topics: []common.Hash{want[len(want)-1].Topics[0]}})
			for _, l := range got {
				require.Equal(t, d.Factory, l.Address)
			}

			h, err := s.Canonical(t.Context(), head, common.Hash{})
			require.NoError(t, err)
			require.Equal(t, v.HeadTime.Unix(), int64(h.Time))
			_, err = s.Canonical(t.Context(), head+1, common.Hash{})
			require.ErrorIs(t, err, ErrBehind)
			for _, err := range s.Read(t.Context(), head+1, head+1, &Filter{}) {
				require.ErrorIs(t, err, ErrBehind)
			}

			// A view moves with the chain, and what was replaced is noticed.
			require.NoError(t, sim.Mine(t.Context(), 2))
			head += 2
			await(t, s, func(v View) bool { return v.Head == head })
			before, _ := s.Canonical(t.Context(), head, common.Hash{})
			require.NoError(t, sim.Reorg(t.Context(), 2, testchain.Keep))
			head++
			await(t, s, func(v View) bool { return v.Head == head })
			after, err := s.Canonical(t.Context(), head-1, before.Hash)
			require.NoError(t, err)
			require.NotEqual(t, before.Hash, after.Hash)
			_, batches := collect(t, s, head-5, head, &Filter{})
			require.Equal(t, after.Hash, batches[len(batches)-2].Last.Hash)
			want, err = c.FilterLogs(t.Context(), ethereum.FilterQuery{FromBlock: new(big.Int),
				ToBlock: new(big.Int).SetUint64(head)})
			require.NoError(t, err)
		})
	}
}
