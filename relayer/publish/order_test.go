package publish_test

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strconv"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/publish"
)

// An owner commits block after block, while an operator replays its escrows and the verifier stores
// what was missing of others. Both only request: the rows are written by the owner, so that no number
// is committed behind a higher one, and the originals of each escrow leave in the order of the chain.
// (When those two wrote the rows themselves, 170 of 9,400 events left behind a later one.)
func TestReplaysAndRepairsBesideCommits(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	w.Prepare(1, "0xfac")
	w.Elect(me)
	w.SetCursor(me, 1, "")
	names := []string{"EscrowDeployed", "EscrowCreated", "Approved", "ArbiterChanged", "EscrowReleased", "EscrowRefunded"}
	led := ledger.New(ledger.Config{DB: w.DB, ChainID: chainID, InstanceID: me, EventNames: names,
		Publishes: func(n string) bool { return n == "Approved" }})
	p := w.start(w.config(), publish.Tuning{PageRows: 64})
	const blocks, escrows = 150, 20
	hash := func(n int64) common.Hash { return common.BigToHash(big.NewInt(n + 1)) }
	approval := func(who int, block int64, index uint, tx int64) contract.Event {
		a := escrow(who)
		return contract.Event{Name: "Approved", Escrow: a, Emitter: a, BlockNumber: uint64(block), BlockHash: hash(block),
			BlockTime: 1, TxHash: common.BigToHash(big.NewInt(tx)), LogIndex: index,
			Args: json.RawMessage(fmt.Sprintf(`{"escrow":"%s","n":"%d"}`, a.Hex(), block))}
	}
	at := ledger.Position{Next: 1}
	owe := 0 // messages that the owner has written
	commit := func(to ledger.Position, events []contract.Event) ledger.Result {
		r, err := led.CommitSlots(t.Context(), ledger.SlotCommit{Epoch: 1, From: at, To: to, Time: 1, Events: events})
		require.NoError(t, err)
		p.Offer(outbox.Commit{Right: outbox.Right{Epoch: w.epoch}, From: at.Next, Next: to.Next, Log: r.Log, Rows: r.Pending})
		at = to
		owe += len(r.Log) + len(r.Pending)

		return r
	}
	block := func() {
		n := at.Next
		var events []contract.Event
		for i := range escrows {
			events = append(events, approval(i+1, n, uint(i), n*1000+int64(i)))
		}

		commit(at.To(n+1, hash(n)), events)
	}
	block()

	requested := make(chan error, 1)
	go func() { // as fast as it can, until the owner is done
		for i := range blocks {
			chosen := ledger.Selection{Escrow: escrow(1 + i%escrows), From: 1, To: 3}
			if _, err := led.Replay(t.Context(), chosen, nil); err != nil {
				requested <- err
				return
			}

			v, err := led.Verifiable(t.Context())
			if err == nil {
				_, err = led.Repair(t.Context(), 1, v, v.From-1,
					[]contract.Event{approval(500+i, 1, uint(1000+i), int64(-1-i))}, nil)
			}

			if err != nil {
				requested <- err
				return
			}
		}

		requested <- nil
	}()
	for range blocks - 1 {
		block()
	}

	require.NoError(t, <-requested)
	for open := true; open; { // nothing comes from the chain any more
		open = commit(at, nil).Open
	}

	w.wait(owe)
	require.NoError(t, p.stop())
	last := map[string]int{}
	replays, repairs := 0, 0
	for _, m := range w.tap.Messages() {
		d, err := message.Decode(m.Data, m.Attributes)
		require.NoError(t, err)
		if m.Attributes["replay"] != "" {
			replays++
			continue
		}

		if d.LogIndex >= 1000 {
			repairs++
		}

		text, err := d.Text("n")
		require.NoError(t, err)
		n, err := strconv.Atoi(text)
		require.NoError(t, err)
		require.Less(t, last[m.Key], n, "behind a later event of its escrow, or twice")
		last[m.Key] = n
	}

	require.Equal(t, blocks, repairs)
	require.Positive(t, replays)
	require.Equal(t, blocks*escrows+repairs+replays, w.tap.Len())
}

// Rows of a slot that was taken a moment ago may come before those that were read: the publisher reads
// none of them until it is told, and then all of them from the first on.
func TestASlotThatWasTakenIsReadFromItsStart(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	w.Exec(`update slot_ownership set owner = 'other' where slot = 5`)
	first := w.commit("Approved", message.Original, 5)
	p := w.start(w.config(), publish.Tuning{})
	p.ReloadSlots([]int16{1, 2})
	mine := w.approve(p, 1)
	w.taken(1)
	w.Exec(`update slot_ownership set owner = $1 where slot = 5`, me) // a claim
	second := w.commit("Approved", message.Original, 5)
	p.Resume(nil, 0) // the outbox is read again
	mine = append(mine, w.approve(p, 2)...)
	w.taken(2)
	require.Equal(t, 2, w.tap.Len())
	p.ReloadSlots([]int16{1, 2, 5})
	w.same(append(append(mine, first...), second...), w.wait(4))
	require.NoError(t, p.stop())
}

// taken returns once n messages were stored.
func (w *world) taken(n int) {
	w.t.Helper()
	require.NoError(w.t, w.tap.Wait(w.within(), n))
}
