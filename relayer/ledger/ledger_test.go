package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testfleet"
	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

const (
	chain = 31337
	me    = "r0"
)

var names = []string{"EscrowDeployed", "EscrowCreated", "Approved", "ArbiterChanged", "EscrowReleased",
	"EscrowRefunded"}

func publishes(name string) bool { return name != "EscrowCreated" && name != "ArbiterChanged" }

// world is a chain of one instance that leads and owns all slots, and a ledger on it.
type world struct {
	*testfleet.Fleet
	t     *testing.T
	led   *ledger.Ledger
	epoch int64
	slots ledger.Position
	fact  ledger.Position
	found map[common.Hash][]contract.Event // the deployments of a block, once the leader has read it
}

func setup(t *testing.T) *world {
	f := testfleet.New(t, chain)
	f.Alone(me, 1, "0xfac")

	return &world{
		Fleet: f, t: t, epoch: 1, slots: ledger.Position{Next: 1}, fact: ledger.Position{Next: 1},
		found: map[common.Hash][]contract.Event{},
		led:   ledger.New(ledger.Config{DB: f.DB, ChainID: chain, InstanceID: me, EventNames: names, Publishes: publishes}),
	}
}

func blockHash(fork byte, n int64) common.Hash {
	h := common.BigToHash(big.NewInt(n))
	h[0] = fork + 1
	return h
}

func escrow(n int) common.Address { return common.BigToAddress(big.NewInt(int64(0xe5c0000 + n))) }

// account is an address that belongs to no escrow, as the arguments have it.
func account(n byte) string { return common.BytesToAddress([]byte{n}).Hex() }

func event(name string, who int, block int64, index uint, tx int64, args string) contract.Event {
	e := contract.Event{
		Name: name, Escrow: escrow(who), Emitter: escrow(who), BlockNumber: uint64(block), BlockHash: blockHash(0, block),
		BlockTime: uint64(1000 + block),
		TxHash:    common.BigToHash(big.NewInt(tx)), LogIndex: index, Args: json.RawMessage(args),
		Factory: common.HexToAddress("0xfac"),
	}
	if name == "EscrowDeployed" {
		e.Emitter = common.HexToAddress("0xfac")
	}

	return e
}

func deployed(who int, block int64, index uint, tx int64) contract.Event {
	return event("EscrowDeployed", who, block, index, tx,
		`{"escrow":"`+escrow(who).Hex()+`","payer":"`+account(0xaa)+`","payee":"`+account(0xbb)+`","amount":"1000","releaseDelay":"60","approvalsRequired":"2"}`)
}

func approved(who int, block int64, index uint, tx int64) contract.Event {
	return event("Approved", who, block, index, tx, `{"approver":"`+account(0xcc)+`"}`)
}

func released(who int, block int64, index uint, tx int64) contract.Event {
	return event("EscrowReleased", who, block, index, tx,
		`{"payee":"`+account(0xbb)+`","amount":"1000","timestamp":"1234"}`)
}

// discover commits a block of the factory watch.
func (w *world) discover(fork byte, events ...contract.Event) ledger.Result {
	c := ledger.FactoryCommit{Epoch: w.epoch, From: w.fact, To: w.fact.To(w.fact.Next+1, blockHash(fork, w.fact.Next)),
		Time: uint64(1000 + w.fact.Next), Events: events}
	r, err := w.led.CommitFactory(w.t.Context(), c)
	require.NoError(w.t, err)
	w.found[c.To.Hash] = events
	w.fact = c.To

	return r
}

// process commits a block of the slot watch, with the deployments that the leader has found in it, and admits every
// escrow that is late.
func (w *world) process(fork byte, events ...contract.Event) ledger.Result {
	late := w.late()
	c := ledger.SlotCommit{
		Epoch: w.epoch, From: w.slots, To: w.slots.To(w.slots.Next+1, blockHash(fork, w.slots.Next)),
		Time: uint64(1000 + w.slots.Next),
	}
	c.Events = append(w.deployments(late...), append(w.found[c.To.Hash], events...)...)
	for _, l := range late {
		c.Progress = append(c.Progress, registry.Progress{Address: l.Address, Monitored: w.slots.Next, CaughtUp: true})
	}

	r, err := w.led.CommitSlots(w.t.Context(), c)
	require.NoError(w.t, err)
	w.slots = c.To

	return r
}

// late are the late escrows.
func (w *world) late() []registry.Late {
	late, err := w.led.Late(w.t.Context(), registry.Range{Before: math.MaxInt64, Cursor: w.slots.Next}, 1000)
	require.NoError(w.t, err)

	return late
}

// deployments are the EscrowDeployed of late escrows, as a catch-up reads them.
func (w *world) deployments(late ...registry.Late) (events []contract.Event) {
	for _, l := range late {
		for _, found := range w.found {
			for _, e := range found {
				if e.Escrow == l.Address && int64(e.BlockNumber) == l.Block && int32(e.LogIndex) == l.LogIndex {
					events = append(events, e)
				}
			}
		}
	}

	return events
}

// serve is a commit of the slot watch while there is no block.
func (w *world) serve() ledger.Result {
	r, err := w.led.CommitSlots(w.t.Context(), ledger.SlotCommit{Epoch: w.epoch, From: w.slots, To: w.slots})
	require.NoError(w.t, err)

	return r
}

func (w *world) reload() {
	var err error
	w.slots, err = w.led.SlotPosition(w.t.Context(), w.epoch)
	require.NoError(w.t, err)
	w.fact, err = w.led.FactoryPosition(w.t.Context(), w.epoch)
	require.NoError(w.t, err)
}

func ids(pending []outbox.Pending) (s []string) {
	for _, p := range pending {
		s = append(s, fmt.Sprintf("%s:%d", p.Event.Name, p.Event.BlockNumber))
	}

	return s
}

// inOrder is the order of messages: those of the log, then the rows of the outbox.
const inOrder = ` order by seq nulls first, block_number, event_type <> 'EscrowDeployed', log_index`

func (w *world) outbox() []string {
	return w.Column(`select event_type || ':' || array_position('{event, retraction, replay}', kind) - 1 from outbox_messages ` + inOrder)
}

func (w *world) states() []string {
	return w.Column(`select event_type || ':' || state from processed_events order by block_number, log_index, event_id`)
}

func (w *world) record(who int) (status string, approvals int) {
	err := w.DB.QueryRow(w.t.Context(), `select status, approvals from escrow_records where escrow = $1`,
		registry.Text(escrow(who))).Scan(&status, &approvals)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", 0
	}

	require.NoError(w.t, err)

	return status, approvals
}

func TestCommitStoresProjectsAndQueuesInOrder(t *testing.T) {
	t.Parallel()
	w := setup(t)
	require.Zero(t, w.discover(0, deployed(1, 1, 3, 11), deployed(2, 1, 5, 12)).New, "the owner stores, not the leader")
	require.Empty(t, w.Column(`select hex(address) from escrows`), "nor does the leader register what the owner will read")
	r := w.process(0, event("EscrowCreated", 1, 1, 2, 11,
		`{"payer":"`+account(0xaa)+`","arbiter":"`+account(0xdd)+`","releaseTime":"77"}`), approved(1, 1, 6, 13),
		approved(2, 1, 7, 14), approved(1, 1, 8, 15), released(1, 1, 9, 15))
	require.Equal(t, []string{"EscrowDeployed:1", "EscrowDeployed:1", "Approved:1", "Approved:1", "Approved:1",
		"EscrowReleased:1"}, ids(r.Log))
	require.Empty(t, r.Pending)
	require.Equal(t, 7, r.New)
	for _, p := range r.Log {
		require.Zero(t, p.ID)
		require.Equal(t, partition.Slot(p.Event.Escrow), p.Slot)
	}

	require.Equal(t, strings.ToLower(account(0xdd)),
		w.Column(`select arbiter from escrow_records where escrow = $1`, registry.Text(escrow(1)))[0])
	status, approvals := w.record(1)
	require.Equal(t, "released", status)
	require.Equal(t, 2, approvals)
	status, approvals = w.record(2)
	require.Equal(t, "approved", status)
	require.Equal(t, 1, approvals)
	require.Equal(t, []string{"active", "released"}, w.Column(`select status from escrow_registry order by status`))
	require.Empty(t, w.late())
	require.Equal(t, []string{"1001", "1001"}, w.Column(`
		select extract(epoch from t)::bigint::text
		from (select block_time from leadership union all select block_time from cursors) as of_cursors(t)`),
		"how far they are, in time")
}

func TestNothingTwice(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.discover(0, deployed(1, 1, 0, 11))
	w.process(0, approved(1, 1, 1, 12))
	// A claim sets the cursor back: the same events come again, among a new one.
	w.slots = ledger.Position{Next: 1}
	w.SetCursor(me, 1, "")
	r := w.process(0, approved(1, 1, 1, 12), approved(1, 1, 2, 13), approved(1, 1, 2, 13))
	require.Equal(t, 1, r.New)
	require.Equal(t, 3, r.Duplicates, "two that were stored, one that stands twice in the commit")
	require.Equal(t, []string{"EscrowDeployed:0", "Approved:0", "Approved:0"}, w.outbox())
	_, approvals := w.record(1)
	require.Equal(t, 2, approvals)
}

func TestCommitOfTheWrongEpochOrCursorChangesNothing(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for name, c := range map[string]ledger.SlotCommit{
		"epoch":  {Epoch: 2, From: ledger.Position{Next: 1}, To: ledger.Position{Next: 2}},
		"cursor": {Epoch: 1, From: ledger.Position{Next: 2}, To: ledger.Position{Next: 3}},
		"hash":   {Epoch: 1, From: ledger.Position{Next: 1, Hash: blockHash(0, 0)}, To: ledger.Position{Next: 2}},
	} {
		c.Events = []contract.Event{deployed(1, 1, 0, 11), approved(1, 1, 1, 12)}
		_, err := w.led.CommitSlots(t.Context(), c)
		require.ErrorIs(t, err, ledger.ErrMoved, name)
	}

	_, err := w.led.CommitFactory(t.Context(), ledger.FactoryCommit{Epoch: 7, From: w.fact, To: ledger.Position{Next: 3}})
	require.ErrorIs(t, err, ledger.ErrMoved)
	require.Empty(t, w.states())
	require.Empty(t, w.outbox())
	_, err = w.led.SlotPosition(t.Context(), 2)
	require.ErrorIs(t, err, ledger.ErrFenced)
}

// Two blocks are processed and published; the chain then forks below the second.
func (w *world) forked() (stale ledger.Position) {
	w.discover(0, deployed(1, 1, 0, 11))
	w.process(0, approved(1, 1, 1, 12))
	w.discover(0, deployed(2, 2, 0, 21))
	w.process(0, approved(1, 2, 1, 22), released(1, 2, 2, 23), approved(2, 2, 3, 24))
	stale = w.slots
	r, err := w.led.Rollback(w.t.Context(), stale, ledger.Position{Next: 2, Hash: blockHash(0, 1)})
	require.NoError(w.t, err)
	require.True(w.t, r.Done)
	require.Equal(w.t, 4, r.Orphaned)
	require.EqualValues(w.t, 1, r.Depth)

	return stale
}

func TestRollbackTakesEverythingBack(t *testing.T) {
	t.Parallel()
	w := setup(t)
	stale := w.forked()
	require.Equal(t, []string{"EscrowDeployed:canonical", "Approved:canonical", "EscrowDeployed:orphaned",
		"Approved:orphaned", "EscrowReleased:orphaned", "Approved:orphaned"}, w.states())
	status, approvals := w.record(1)
	require.Equal(t, "approved", status)
	require.Equal(t, 1, approvals)
	status, _ = w.record(2)
	require.Empty(t, status)
	require.Equal(t, []string{"active", "orphaned"}, w.Column(`select status from escrow_registry order by status`))
	_, err := w.led.CommitSlots(t.Context(), ledger.SlotCommit{Epoch: 1, From: stale, To: ledger.Position{Next: 4}})
	require.ErrorIs(t, err, ledger.ErrMoved)
	w.reload()
	require.Equal(t, ledger.Position{Next: 2, Hash: blockHash(0, 1), Generation: 1}, w.slots)
	require.Equal(t, w.slots, w.fact)

	// Whoever finds the same fork later changes nothing.
	r, err := w.led.Rollback(t.Context(), stale, ledger.Position{Next: 1})
	require.NoError(t, err)
	require.False(t, r.Done)
}

func at(e contract.Event, fork byte) contract.Event {
	e.BlockHash = blockHash(fork, int64(e.BlockNumber))
	return e
}

func TestWhatReappearsIsNeitherRetractedNorPublishedAgain(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.forked()
	w.Publish()
	w.reload()
	w.discover(1, at(deployed(2, 2, 0, 21), 1))
	r := w.process(1, at(approved(1, 2, 1, 22), 1), at(released(1, 2, 2, 23), 1), at(approved(2, 2, 3, 24), 1))
	require.Equal(t, 4, r.Revived)
	require.Zero(t, r.Retracted)
	require.Empty(t, slices.Concat(r.Log, r.Pending))
	w.discover(1)
	w.process(1)
	require.Empty(t, w.outbox())
	require.NotContains(t, fmt.Sprint(w.states()), "orphaned")
	status, approvals := w.record(1)
	require.Equal(t, "released", status)
	require.Equal(t, 2, approvals)
	status, approvals = w.record(2)
	require.Equal(t, "approved", status)
	require.Equal(t, 1, approvals)
	require.Equal(t, []string{"active", "released"}, w.Column(`select status from escrow_registry order by status`))
	require.Equal(t, blockHash(1, 2).Hex(),
		w.Column(`select distinct block_hash from processed_events where block_number = 2`)[0])
}

func TestWhatDoesNotReappearIsRetracted(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.forked()
	w.Publish()
	w.reload()
	w.discover(1)
	// One approval moved to another log index: another identity. The release is gone.
	r := w.process(1, at(approved(1, 2, 5, 22), 1))
	require.Equal(t, 4, r.Retracted)
	require.Equal(t, []string{"Approved:2", "EscrowDeployed:2", "Approved:2", "EscrowReleased:2", "Approved:2"},
		ids(slices.Concat(r.Log, r.Pending)), "the new event, and what is retracted")
	require.ElementsMatch(t, []string{"Approved:0", "EscrowDeployed:1", "Approved:1", "EscrowReleased:1", "Approved:1"},
		w.outbox())
	box := outbox.Box{DB: w.DB, ChainID: chain, Owner: me} // who takes over reads them behind the deployment's end
	page, _, err := box.Page(t.Context(), outbox.Right{Epoch: w.epoch, Generation: w.slots.Generation}, allSlots(),
		0, 100, nil)
	require.NoError(t, err)
	require.Len(t, page, 4)
	for _, m := range page {
		require.Equal(t, common.HexToAddress("0xfac"), m.Event.Factory, "%s of %s", m.Event.Name, m.Event.Escrow)
	}

	require.Equal(t, []string{"active"}, w.Column(`select status from escrow_registry`))
	status, approvals := w.record(1)
	require.Equal(t, "approved", status)
	require.Equal(t, 2, approvals)
	w.Publish()

	// Much later its transaction is mined after all: published once more, under an id that was not retracted.
	w.discover(1, at(deployed(2, 3, 0, 21), 1))
	r = w.process(1, at(released(1, 3, 2, 23), 1))
	require.Zero(t, r.Revived)
	again := released(1, 3, 2, 23)
	require.Equal(t, []string{again.ID() + ":1"},
		w.Column(`select event_id from outbox_messages where event_type = 'EscrowReleased'`))
	require.ElementsMatch(t, []string{"EscrowDeployed:0", "EscrowReleased:0"}, w.outbox())
}

// What was told of and is lost is sent before it is retracted, whether it had been sent or not: the
// retraction is queued once the row is gone.
func TestWhatIsLostIsSentAndThenRetracted(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.forked() // nothing is acknowledged
	w.reload()
	w.discover(1)
	r := w.process(1)
	require.Zero(t, r.Retracted)
	require.True(t, r.Open)
	require.Equal(t, []string{"EscrowDeployed:0", "Approved:0", "EscrowDeployed:0", "Approved:0", "EscrowReleased:0",
		"Approved:0"}, w.outbox())
	w.Publish()
	r = w.process(1)
	require.Equal(t, 4, r.Retracted)
	require.Len(t, r.Pending, 4)
	require.Equal(t, []string{"EscrowDeployed:1", "Approved:1", "EscrowReleased:1", "Approved:1"}, w.outbox())
	w.Publish()
	require.False(t, w.process(1).Open)
}

// Nothing is retracted before the factory watch, too, has read the blocks again: the owner may not have seen a
// deployment.
func TestRetractionWaitsForTheFactoryWatch(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.forked()
	w.Publish()
	w.reload()
	require.Zero(t, w.process(1).Retracted)
	require.Empty(t, w.outbox())
	w.discover(1)
	require.Equal(t, 4, w.process(1).Retracted)
	require.Contains(t, w.outbox(), "EscrowDeployed:1")
}

// Another escrow may get the address of an orphaned one.
func TestAddressChangesHands(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.forked()
	w.Publish()
	w.reload()
	other := at(deployed(2, 2, 4, 99), 1)
	w.discover(1, other)
	r := w.process(1, at(approved(2, 2, 5, 98), 1))
	require.Equal(t, []string{"EscrowDeployed:2", "Approved:2"}, ids(r.Log))
	require.Equal(t, 4, r.Retracted)
	require.Equal(t, []string{other.ID()}, w.Column(`select event_id from escrow_registry where address = $1`,
		registry.Text(escrow(2))))
}

func TestRepair(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.discover(0, deployed(1, 1, 0, 11))
	w.process(0)
	w.Publish()
	missed := []contract.Event{approved(1, 1, 1, 12), deployed(3, 1, 2, 13)}
	v, err := w.led.Verifiable(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int64{1, 1}, []int64{v.From, v.To})
	r, err := w.led.Repair(t.Context(), w.epoch, v, 1, missed, nil)
	require.NoError(t, err)
	require.Equal(t, 2, r.New)
	require.Empty(t, w.outbox(), "only the owner writes there")
	require.Equal(t, []string{"EscrowDeployed:1", "Approved:1"}, ids(w.process(0).Pending),
		"it announces what is late first")
	_, err = w.led.Repair(t.Context(), w.epoch, v, 1, nil, nil)
	require.ErrorIs(t, err, ledger.ErrMoved)
	_, err = w.led.Repair(t.Context(), w.epoch+1, v, 5, nil, nil)
	require.ErrorIs(t, err, ledger.ErrMoved)
	_, err = w.led.Repair(t.Context(), w.epoch, v, 0, nil, nil)
	require.ErrorIs(t, err, ledger.ErrMoved, "the watermark has passed it")
	v.From = 2
	r, err = w.led.Repair(t.Context(), w.epoch, v, 1, []contract.Event{approved(1, 1, 3, 12)}, nil)
	require.NoError(t, err)
	require.Equal(t, 1, r.New)
	require.Equal(t, []string{"1"}, w.Column(`select verified_block::text from leadership`))
	_, err = w.led.Rollback(t.Context(), w.slots, ledger.Position{Next: 1})
	require.NoError(t, err)
	_, err = w.led.Repair(t.Context(), w.epoch, v, 5, nil, nil)
	require.ErrorIs(t, err, ledger.ErrMoved, "what was read before a rollback")
}

// What the leader has registered and neither the owner nor the second reading finds is taken out of the registry, and
// is a finding; what the second reading finds is stored, and then caught up.
func TestWhatOnlyTheLeaderHasSeen(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.process(0)
	w.discover(0, deployed(1, 1, 0, 11), deployed(2, 1, 1, 12))
	late := w.late()
	require.Len(t, late, 2)
	c := ledger.SlotCommit{Epoch: 1, From: w.slots, To: w.slots}
	for _, l := range late { // the owner has looked for them
		c.Progress = append(c.Progress, registry.Progress{Address: l.Address, Monitored: 1})
	}

	_, err := w.led.CommitSlots(t.Context(), c)
	require.NoError(t, err)
	require.Empty(t, w.late())
	v, err := w.led.Verifiable(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, v.To, "it holds up no verification")
	_, err = w.led.Repair(t.Context(), w.epoch, v, 1, []contract.Event{deployed(2, 1, 1, 12)}, nil)
	require.NoError(t, err)
	require.Equal(t, []string{registry.Text(escrow(2))}, w.Column(`select address from escrow_registry`))
	require.ElementsMatch(t, []string{"extra_event 1 1", "missing_event 1 1"}, w.findings())
	w.reload()
	w.serve()
	require.Len(t, w.late(), 1)
	require.EqualValues(t, 1, w.late()[0].Next(), "all that it has emitted, in order")
	require.Equal(t, []string{"EscrowDeployed:0"}, w.outbox())
}

// What is taken back may be on its way to Pub/Sub. Its owner looks again where it stands before it commits.
func TestWrongEventMayBeOnItsWay(t *testing.T) {
	t.Parallel()
	w := setup(t)
	wrong := approved(1, 1, 1, 12)
	w.discover(0, deployed(1, 1, 0, 11))
	w.process(0, wrong)
	v, err := w.led.Verifiable(t.Context())
	require.NoError(t, err)
	_, err = w.led.Repair(t.Context(), w.epoch, v, 1, nil, []contract.Event{wrong})
	require.NoError(t, err)
	_, err = w.led.CommitSlots(t.Context(), ledger.SlotCommit{Epoch: w.epoch, From: w.slots,
		To: w.slots.To(3, blockHash(0, 2))})
	require.ErrorIs(t, err, ledger.ErrMoved)
	w.reload()
	require.Zero(t, w.process(0).Retracted)
	require.Equal(t, []string{"EscrowDeployed:0", "Approved:0"}, w.outbox(), "it may be on its way")
	w.Publish()
	require.Equal(t, 1, w.process(0).Retracted)
}

// A first block that is moved back voids what is read again meanwhile: the range may lack escrows. The
// watermark follows once the past is read.
func TestRepairAfterARewind(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.discover(0)
	w.process(0)
	v, err := w.led.Verifiable(t.Context())
	require.NoError(t, err)
	_, err = registry.Rewind(t.Context(), w.DB, chain, 0)
	require.NoError(t, err)
	_, err = w.led.Repair(t.Context(), w.epoch, v, 1, nil, nil)
	require.ErrorIs(t, err, ledger.ErrMoved)
	_, err = w.led.CommitSlots(t.Context(), ledger.SlotCommit{Epoch: 1, From: w.slots, To: w.slots.To(3, blockHash(0, 2))})
	require.ErrorIs(t, err, ledger.ErrMoved, "the factories of the owner are those of before")
	require.Equal(t, []string{"0"}, w.Column(`select verified_block::text from leadership`))
}

func TestReplay(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.discover(0, deployed(1, 1, 3, 11), deployed(2, 1, 4, 12))
	w.process(0, event("EscrowCreated", 1, 1, 2, 11, `{}`), approved(1, 1, 5, 13), approved(2, 1, 6, 14))
	w.discover(0)
	w.process(0, released(1, 2, 0, 15))
	w.Publish()
	for _, c := range []struct {
		s    ledger.Selection
		want []string
	}{
		{ledger.Selection{From: 2, To: 2}, []string{"EscrowReleased:2"}},
		{ledger.Selection{From: 2, WholeEscrows: true}, []string{"EscrowDeployed:2", "Approved:2", "EscrowReleased:2"}},
		{ledger.Selection{Escrow: escrow(2)}, []string{"EscrowDeployed:2", "Approved:2"}},
		{ledger.Selection{WholeEscrows: true}, []string{"EscrowDeployed:2", "Approved:2", "EscrowReleased:2",
			"EscrowDeployed:2", "Approved:2"}},
		{ledger.Selection{EventID: approvedID(1, 1, 5, 13)}, []string{"Approved:2"}},
	} {
		n, err := w.led.Count(t.Context(), c.s)
		require.NoError(t, err)
		require.Equal(t, len(c.want), n.Events)
		total, err := w.led.Replay(t.Context(), c.s, nil)
		require.NoError(t, err)
		require.Equal(t, len(c.want), total)
		require.Empty(t, w.outbox())
		require.Len(t, w.serve().Pending, len(c.want))
		require.Equal(t, c.want, w.outbox())
		w.Publish()
	}
}

func approvedID(who int, block int64, index uint, tx int64) string {
	e := approved(who, block, index, tx)
	return e.ID()
}

// A commit whose caller is told to stop is either whole or nothing.
func TestCancelledCommit(t *testing.T) {
	t.Parallel()
	w := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := w.led.CommitSlots(ctx, ledger.SlotCommit{Epoch: 1, From: w.slots, To: ledger.Position{Next: 2},
		Events: []contract.Event{deployed(1, 1, 0, 11)}})
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, w.states())
}
