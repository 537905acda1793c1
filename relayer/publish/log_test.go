package publish_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/publish"
)

// tell commits events of the log under the cursor, each in a block of its own, and offers them; nil: to nobody.
func (w *world) tell(p *running, escrows ...int) (events []outbox.Pending) {
	w.t.Helper()
	c := outbox.Commit{Right: outbox.Right{Epoch: w.epoch}, From: w.cursor}
	for _, e := range escrows {
		w.commits++
		c.Log = append(c.Log, w.event("Approved", e, w.commits, 0))
	}

	w.commitLog(p, c)

	return c.Log
}

func (w *world) event(name string, who int, block int64, index uint) outbox.Pending {
	a := escrow(who)
	return outbox.Pending{Slot: int16(who % 2520), Event: contract.Event{Name: name, Escrow: a, Emitter: a,
		BlockNumber: uint64(block), BlockTime: uint64(time.Now().Unix()), BlockHash: common.Hash{1}, LogIndex: index,
		TxHash: common.BytesToHash([]byte(fmt.Sprintf("%d/%d", block, index))),
		Args:   json.RawMessage(fmt.Sprintf(`{"escrow":"%s","n":"%d.%d"}`, a.Hex(), block, index))}}
}

// commitLog stores events as a commit of the ledger's does: while an escrow has rows, its events get rows behind them.
func (w *world) commitLog(p *running, c outbox.Commit) {
	w.t.Helper()
	ctx, events := w.t.Context(), c.Log
	c.Log, c.Next = nil, w.commits+1
	w.cursor = c.Next
	require.NoError(w.t, pgx.BeginFunc(ctx, w.DB, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `update cursors set next_block = $1`, c.Next); err != nil {
			return err
		}

		for _, pending := range events {
			e, apart := &pending.Event, false
			if err := tx.QueryRow(ctx, `insert into events (chain_id, block_number, block_time, log_index, writer, type, slot, told, apart,
				block_hash, tx_hash, escrow, args)
				values ($1, $2, $3, $4, 1, coalesce((select id from event_types where name = $5), 3), $6, true,
					exists (select from outbox where escrow = $9), $7, $8, $9, $10) returning apart`,
				chainID, int64(e.BlockNumber), int64(e.BlockTime), int32(e.LogIndex), e.Name, pending.Slot, e.BlockHash[:],
				e.TxHash[:], e.Escrow[:], string(e.Args)).Scan(&apart); err != nil {
				return err
			}

			if !apart {
				c.Log = append(c.Log, pending)
				continue
			}

			if err := tx.QueryRow(ctx, `insert into outbox (chain_id, block_number, log_index, slot, escrow, event_type)
				values ($1, $2, $3, $4, $5, $6) returning seq, token`, chainID, int64(e.BlockNumber), int32(e.LogIndex),
				pending.Slot, e.Escrow[:], e.Name).Scan(&pending.Seq, &pending.Token); err != nil {
				return err
			}

			c.Rows = append(c.Rows, pending)
		}

		return nil
	}))
	if p != nil {
		p.Offer(c)
	}
}

// noted returns once the last of some events of a slot is noted as sent.
func (w *world) noted(events ...outbox.Pending) {
	w.t.Helper()
	for i := range events {
		require.Eventually(w.t, func() bool {
			var noted bool
			require.NoError(w.t, w.DB.QueryRow(w.t.Context(), `select (sent_block, sent_index) >= ($2::bigint, $3::integer) from slot_ownership
				where slot = $1`, events[i].Slot, int64(events[i].Event.BlockNumber), int32(events[i].Event.LogIndex)).Scan(&noted))
			return noted
		}, patience, tick)
	}
}

func (w *world) count(query string) (n int) {
	require.NoError(w.t, w.DB.QueryRow(w.t.Context(), query).Scan(&n))
	return n
}

func TestLogOffered(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	p := w.start(w.config(), publish.Tuning{})
	events := append(w.tell(p, 1, 2, 1), w.tell(p, 2, 1)...)
	require.NoError(t, w.tap.Wait(w.within(), 5))
	w.noted(events...)
	require.NoError(t, p.stop())
	w.same(events, w.tap.Messages())
	require.True(t, p.Settled())
	require.Zero(t, w.count(`select count(*) from events where apart`)+w.outbox(), "no second row of an event")
	require.Zero(t, w.metric("relayer_republished_total"))
	require.Equal(t, publish.Stats{}, p.Stats())
}

// A deployment comes before what its transaction had emitted earlier, and what an earlier process may have sent is
// counted.
func TestLogRead(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	events := w.tell(nil, 1, 2, 3, 1, 2, 3, 1)
	w.Exec(`update slot_ownership set doubt = clock_timestamp() where slot = 1`)
	w.commits++
	c := outbox.Commit{Log: []outbox.Pending{w.event("EscrowDeployed", 4, w.commits, 1), w.event("Approved", 4,
		w.commits, 0)}}
	w.Exec(`insert into event_types (id, name) values (1, 'EscrowDeployed') on conflict do nothing`)
	w.commitLog(nil, c)
	p := w.start(w.config(), publish.Tuning{PageRows: 2})
	require.NoError(t, w.tap.Wait(w.within(), 9))
	require.NoError(t, p.stop())
	w.same(append(events, c.Log...), w.tap.Messages())
	require.EqualValues(t, 3, w.metric("relayer_republished_total"))
}

// What is acknowledged behind what is not is no longer of the log after a clean stop: nothing is repeated.
func TestLogStopRepeatsNothing(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	fault := w.server.Inject(testpubsub.Fault{Match: one("1.0"), Code: codes.PermissionDenied})
	p := w.start(w.config(), publish.Tuning{})
	events := w.tell(p, 1, 2521, 1, 2521) // two keys of a slot
	require.NoError(t, w.tap.Wait(w.within(), 2))
	require.NoError(t, p.stop())
	require.Equal(t, 2, w.count(`select count(*) from events where apart`))
	fault.Remove()
	w.handover = publish.Handover{} // another process
	again := w.start(w.config(), publish.Tuning{})
	require.NoError(t, w.tap.Wait(w.within(), 4))
	w.noted(events[2])
	require.NoError(t, again.stop())
	w.same(events, w.tap.Messages())
}

// A process that dies before it has noted anything has its messages repeated and counted, at most a window of them.
func TestLogKill(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	takesNotes := w.refusesNotes()
	const window = 64
	many := make([]int, 100)
	for i := range many {
		many[i] = 1 + i%7
	}

	events := w.tell(nil, many...)
	p := w.start(w.config(), publish.Tuning{WindowRows: window, PageRows: 16})
	require.NoError(t, w.tap.Wait(w.within(), window-16))
	w.Exec(`update cursors set epoch = 2`) // it is taken for dead
	require.NoError(t, p.stop())
	takesNotes()
	published := w.tap.Len()
	require.LessOrEqual(t, published, window)
	w.Exec(`update slot_ownership set doubt = clock_timestamp()`)
	w.handover = publish.Handover{}
	again := w.startUnder(2)
	require.NoError(t, w.tap.Wait(w.within(), len(events)+published))
	w.noted(events[len(events)-7:]...)
	require.NoError(t, again.stop())
	require.Equal(t, len(events)+published, w.tap.Len())
	w.same(events, w.tap.Messages()[published:])
	require.EqualValues(t, len(events), w.metric("relayer_republished_total"), "all was in doubt")
}

// refusesNotes has the database refuse what is noted, until it is told to take it.
func (w *world) refusesNotes() (takes func()) {
	w.Exec(`create function refuse() returns trigger language plpgsql as $$ begin raise exception 'not today'; end $$;
		create trigger refuse before update on slot_ownership execute function refuse();
		create trigger refuse before update on events execute function refuse()`)

	return func() { // dropping the triggers would need locks that the notes hold
		w.Exec(`create or replace function refuse() returns trigger language plpgsql as $$ begin return null; end $$`)
	}
}

// startUnder starts a publisher under an epoch.
func (w *world) startUnder(epoch int64) *running {
	p := w.start(w.config(), publish.Tuning{})
	p.Reload(outbox.Right{Epoch: epoch}, everySlot())
	w.epoch = epoch

	return p
}

// A database that refuses what is noted only delays it; and what is acknowledged passes to the next tenure of the
// process.
func TestLogCannotBeNoted(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	takesNotes := w.refusesNotes()
	p := w.start(w.config(), publish.Tuning{})
	events := w.tell(p, 1, 2, 1)
	require.NoError(t, w.tap.Wait(w.within(), 3))
	require.Eventually(t, func() bool { return w.logs.count("noting what is sent failed") > 1 }, patience, tick)
	p.ReloadSlots(everySlot())
	events = append(events, w.tell(p, 1)...)
	require.NoError(t, w.tap.Wait(w.within(), 4))
	require.NoError(t, p.stop())
	require.False(t, p.Settled())
	again := w.start(w.config(), publish.Tuning{})
	events = append(events, w.tell(again, 1)...)
	require.NoError(t, w.tap.Wait(w.within(), 5))
	takesNotes()
	w.noted(events...)
	require.NoError(t, again.stop())
	w.same(events, w.tap.Messages())
}

// A key that fails while others succeed gets rows, so that it does not hold up the others.
func TestLogFailingKeyIsMoved(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	fault := w.server.Inject(testpubsub.Fault{Key: "7:0xe5c0000000000000000000000000000000000001",
		Code: codes.PermissionDenied})
	p := w.start(w.config(), publish.Tuning{WindowRows: 64, PageRows: 16})
	var events []outbox.Pending
	for range 100 {
		events = append(events, w.tell(p, 1, 1, 2, 2521)...)
	}

	require.NoError(t, w.tap.Wait(w.within(), 200))
	require.Equal(t, 200, w.tap.Len())
	require.NotZero(t, w.outbox())
	fault.Remove()
	require.NoError(t, w.tap.Wait(w.within(), 400))
	w.emptied()
	require.NoError(t, p.stop())
	w.same(events, w.tap.Messages())
	require.Zero(t, w.metric("relayer_republished_total"))
}

// Where nothing succeeds, nothing gets rows.
func TestLogOutageMovesNothing(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	fault := w.server.Inject(testpubsub.Fault{Code: codes.PermissionDenied})
	p := w.start(w.config(), publish.Tuning{WindowRows: 64, PageRows: 16})
	var events []outbox.Pending
	for range 50 { // more than the window and the inbox hold
		events = append(events, w.tell(p, 1, 2, 3, 4)...)
	}

	require.Eventually(t, func() bool { return fault.Hits() > 40 }, patience, tick)
	require.Zero(t, w.outbox())
	fault.Remove()
	require.NoError(t, w.tap.Wait(w.within(), len(events)))
	w.noted(events[len(events)-4:]...)
	require.NoError(t, p.stop())
	w.same(events, w.tap.Messages())
	require.Zero(t, w.outbox())
}
