package main

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// An operator replays one escrow after another, in a process of its own, while the relayer commits and publishes
// the same escrows: the originals stay complete, once and in order.
func TestReplaysBesideTraffic(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.run("r0", 0, 1, nil)
	w.ready("r0")
	w.blocks(5)
	w.audit(false)
	abi, err := contract.New("", "")
	require.NoError(t, err)
	operator := ledger.New(ledger.Config{DB: w.DB, ChainID: w.Chain.ChainID().Int64(), InstanceID: "operator",
		EventNames: abi.EventNames(), Publishes: lab.Published})
	ctx, stop := context.WithCancel(t.Context())
	var replayed atomic.Int64
	var failed error
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			var escrow string // one that changes now
			err := w.DB.QueryRow(ctx, `select escrow from (select escrow from processed_events
				order by block_number desc limit 20) newest order by random() limit 1`).Scan(&escrow)
			events := 0
			if err == nil {
				events, err = operator.Replay(ctx, ledger.Selection{Escrow: common.HexToAddress(escrow)}, nil)
			}

			if err != nil && ctx.Err() == nil {
				failed = err
				return
			}

			replayed.Add(int64(events))
		}
	})
	w.blocks(40)
	require.Eventually(t, func() bool { return replayed.Load() > 0 }, patience, 10*time.Millisecond)
	stop()
	wg.Wait()
	require.NoError(t, failed)

	require.NoError(t, w.Chain.Mine(t.Context(), w.Confirmations))
	head, err := w.Head(t.Context())
	require.NoError(t, err)
	truth, err := w.Truth(t.Context(), head-uint64(w.Confirmations))
	require.NoError(t, err)
	var a *lab.Audit
	require.Eventually(t, func() bool {
		originals := slices.DeleteFunc(slices.Clone(w.Received.Messages()),
			func(m testpubsub.Message) bool { return m.Attributes["replay"] != "" })
		a = lab.Compare(truth, originals, w.Retracted.Messages())

		return len(a.Missing) == 0
	}, patience, 100*time.Millisecond)
	require.True(t, a.Clean(), a.String())
	t.Logf("%d events replayed beside %d", replayed.Load(), a.Emitted)
}
