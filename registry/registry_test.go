package registry_test

import (
	"errors"
	"maps"
	"math"
	"math/big"
	"slices"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/registry"
)

const (
	chain        = 31337
	anotherChain = 1

	me      = "r0"
	another = "r1"

	mySlot       = 7
	anothersSlot = 8
	freeSlot     = 9
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A story is one chain's registry. Two instances serve a slot each, and a third slot is free.
type story struct {
	t  *testing.T
	db *pgxpool.Pool
}

func begin(t *testing.T) story {
	t.Parallel()
	s := story{t, testpg.Pool(t)}
	s.exec(`insert into factories (chain_id, id, address, start_block) values ($1, 1, $3, 1), ($2, 1, $3, 1)`, chain, anotherChain, factory[:])
	s.own(mySlot, me)
	s.own(anothersSlot, another)
	s.exec(`insert into slot_ownership (chain_id, slot, next_block) values ($1, $2, 1)`, chain, freeSlot)

	return s
}

func (s story) exec(sql string, args ...any) {
	s.t.Helper()
	_, err := s.db.Exec(s.t.Context(), sql, args...)
	require.NoError(s.t, err)
}

// own makes an instance the owner of a slot, on both chains.
func (s story) own(slot int16, owner string) {
	s.t.Helper()
	s.exec(`insert into slot_ownership (chain_id, slot, owner, next_block) values ($1, $3, $4, 1), ($2, $3, $4, 1)`, chain,
		anotherChain, slot, owner)
}

var factory = common.Address{0xfa, 0xc}

func address(n int64) common.Address { return common.BytesToAddress([]byte{0xe5, byte(n)}) }

// escrow is the discovery of an escrow that was deployed in the block, in my slot.
func escrow(n, block int64) registry.Discovery {
	return registry.Discovery{Address: address(n), Slot: mySlot, Block: block, LogIndex: int32(n),
		TxHash: common.Hash{byte(n)}, Factory: factory}
}

func inSlot(slot int16, d registry.Discovery) registry.Discovery {
	d.Slot = slot
	return d
}

// everywhere is every late escrow.
var everywhere = registry.Range{Before: math.MaxInt64, Cursor: math.MaxInt64}

// discovered has the leader read some deployments of a factory's past.
func (s story) discovered(found ...registry.Discovery) {
	s.t.Helper()
	_, err := registry.Record(s.t.Context(), s.db, chain, registry.Past, found)
	require.NoError(s.t, err)
}

// admitted makes the slots' cursors vouch for the escrows.
func (s story) admitted(escrows ...int64) {
	s.t.Helper()
	var progress []registry.Progress
	for _, n := range escrows {
		progress = append(progress, registry.Progress{Address: address(n), CaughtUp: true})
	}

	require.NoError(s.t, registry.Advance(s.t.Context(), s.db, chain, progress))
}

// monitored notes how far a late escrow is caught up: its EscrowDeployed is stored.
func (s story) monitored(n, block int64) {
	s.t.Helper()
	s.exec(`insert into events (chain_id, block_number, block_time, log_index, writer, type, slot, told, apart, block_hash, tx_hash, escrow, args)
		select chain_id, deployed_block, 0, log_index, 1, 1, slot, true, false, '\x01', '\x02', address, '{}'
		from late_escrows where chain_id = $1 and address = $2 on conflict do nothing`, chain, address(n).Bytes())
	require.NoError(s.t, registry.Advance(s.t.Context(), s.db, chain,
		[]registry.Progress{{Address: address(n), Monitored: block}}))
}

func (s story) ended(n int64, status int16, block int64) {
	s.t.Helper()
	require.NoError(s.t, registry.End(s.t.Context(), s.db, chain,
		[]registry.Ending{{Address: address(n), Status: status, Block: block}}))
}

// orphaned takes the deployment back, as a rollback of the ledger does.
func (s story) orphaned(n int64) {
	s.t.Helper()
	s.exec(`update escrows set status = $3 where chain_id = $1 and address = $2`, chain, address(n).Bytes(),
		registry.Orphaned)
	s.exec(`delete from late_escrows where chain_id = $1 and address = $2`, chain, address(n).Bytes())
}

// late is what an owner is told of the escrows that it has yet to admit.
func (s story) late(owner string, limit int) []registry.Late {
	s.t.Helper()
	late, err := registry.ListLate(s.t.Context(), s.db, chain, owner, everywhere, limit)
	require.NoError(s.t, err)

	return late
}

// served is what a cursor of my slot vouches for, with the block at which each ended.
func (s story) served(final int64, slots ...int16) map[common.Address]int64 {
	s.t.Helper()
	served := map[common.Address]int64{}
	err := registry.Load(s.t.Context(), s.db, chain, slots, math.MaxInt64, final,
		func(l registry.Loaded) {
			require.NotContains(s.t, served, l.Address, "an escrow was loaded twice")
			served[l.Address] = l.Ended
		})
	require.NoError(s.t, err)

	return served
}

// row is an escrow as the public view has it.
type row struct {
	Status   string
	Block    int64
	EventID  string
	Ended    *int64
	CaughtUp bool
}

func (s story) row(chainID, n int64) row {
	s.t.Helper()
	rows, _ := s.db.Query(s.t.Context(), `
		select status, discovered_block_number, event_id, ended_block, caught_up
		from escrow_registry where chain_id = $1 and address_key = $2`, chainID, address(n).Bytes())
	r, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[row])
	require.NoError(s.t, err)

	return r
}

func eventID(tx byte, suffix string) string { return common.Hash{tx}.Hex() + suffix }

func TestADiscoveryIsLateUntilItsOwnerAdmitsIt(t *testing.T) {
	s := begin(t)
	s.discovered(escrow(1, 100))

	require.Equal(t, row{Status: "active", Block: 100, EventID: eventID(1, ":1")}, s.row(chain, 1))
	require.Equal(t, []registry.Late{{Address: address(1), Slot: mySlot, Block: 100, LogIndex: 1, Monitored: 99,
		Factory: factory}},
		s.late(me, 10))
	require.Empty(t, s.served(0, mySlot), "no cursor vouches for it yet")

	s.admitted(1)

	require.True(t, s.row(chain, 1).CaughtUp)
	require.Empty(t, s.late(me, 10))
	require.Equal(t, map[common.Address]int64{address(1): 0}, s.served(0, mySlot))
}

// An owner registers what it reads, and is done with it. The leader registers what owners have passed without it, late,
// and leaves the rest to them.
func TestWhoReadsADeploymentRegistersIt(t *testing.T) {
	s := begin(t)
	record := func(by registry.Writer, found ...registry.Discovery) int {
		n, err := registry.Record(t.Context(), s.db, chain, by, found)
		require.NoError(t, err)

		return n
	}
	s.exec(`insert into cursors (chain_id, instance_id, next_block) values ($1, $2, 100), ($1, $3, 200)`, chain, me, another)
	s.exec(`update slot_ownership set next_block = 150 where slot = $1`, freeSlot)

	require.Equal(t, 1, record(registry.Owner, escrow(1, 99)))
	require.Empty(t, s.late(me, 10))
	require.Equal(t, map[common.Address]int64{address(1): 0}, s.served(0, mySlot))
	for _, c := range []struct {
		slot          int16
		passed, ahead int64
	}{{mySlot, 99, 100}, {anothersSlot, 199, 200}, {freeSlot, 149, 150}} {
		require.Equal(t, 0, record(registry.Leader, inSlot(c.slot, escrow(2, c.ahead))), "slot %d", c.slot)
		passed := inSlot(c.slot, escrow(int64(c.slot), c.passed))
		require.Equal(t, 1, record(registry.Leader, passed, escrow(1, 99)), "slot %d", c.slot)
	}

	require.Equal(t, []registry.Late{{Address: address(mySlot), Slot: mySlot, Block: 99, LogIndex: mySlot, Monitored: 98,
		Factory: factory}}, s.late(me, 10))
	require.Len(t, s.late(another, 10), 1)
}

// A cursor that was moved back has escrows ahead of it: it does not vouch for them, and they are not late for it.
func TestWhatIsAheadOfACursor(t *testing.T) {
	s := begin(t)
	s.discovered(escrow(1, 100), escrow(2, 120))
	s.admitted(1)
	behind := func(next int64) (late []registry.Late, loaded []int64) {
		late, err := registry.ListLate(t.Context(), s.db, chain, me, registry.Range{Before: math.MaxInt64, Cursor: next},
			10)
		require.NoError(t, err)
		require.NoError(t, registry.Load(t.Context(), s.db, chain, []int16{mySlot}, next, 0,
			func(l registry.Loaded) { loaded = append(loaded, l.Block) }))

		return late, loaded
	}
	late, loaded := behind(100)
	require.Empty(t, late)
	require.ElementsMatch(t, []int64{100, 120}, loaded, "they are to be met again")
	late, loaded = behind(121)
	require.Len(t, late, 1)
	require.Equal(t, []int64{100}, loaded)
}

// What the leader has registered and its owner has not seen waits for the second reading, which stores its
// EscrowDeployed.
func TestAnEscrowThatItsOwnerDoesNotSee(t *testing.T) {
	s := begin(t)
	s.discovered(escrow(1, 100))
	require.NoError(t, registry.Advance(t.Context(), s.db, chain,
		[]registry.Progress{{Address: address(1), Monitored: 150}}))
	require.Empty(t, s.late(me, 10))
	s.monitored(1, 150)
	require.Len(t, s.late(me, 10), 1)
}

// An escrow that is older than its deployment becomes late again, and one of which an event is requested waits for it.
func TestAnOlderEscrowIsPostponed(t *testing.T) {
	s := begin(t)
	_, err := registry.Record(t.Context(), s.db, chain, registry.Owner,
		[]registry.Discovery{escrow(1, 100), escrow(2, 100)})
	require.NoError(t, err)
	require.NoError(t, registry.Postpone(t.Context(), s.db, chain, []common.Address{address(1)}))
	require.NoError(t, registry.Postpone(t.Context(), s.db, chain, []common.Address{address(1)}), "a second time")
	late := s.late(me, 10)
	require.Len(t, late, 1)
	require.EqualValues(t, 99, late[0].Monitored)
	require.False(t, late[0].Announced)
	s.exec(`insert into requests (chain_id, block_number, log_index, slot, kind, escrow) values ($1, 100, 1, $2, 0, $3)`, chain,
		mySlot, address(1).Bytes())
	require.Empty(t, s.late(me, 10))
}

func TestARangeWithoutDiscoveriesWritesNothing(t *testing.T) {
	s := begin(t)
	s.discovered()
	require.NoError(t, registry.Advance(t.Context(), s.db, chain, nil))
	require.NoError(t, registry.End(t.Context(), s.db, chain, nil))

	var escrows int
	require.NoError(t, s.db.QueryRow(t.Context(), `select count(*) from escrows`).Scan(&escrows))
	require.Zero(t, escrows)
}

// The leader reads a range again after a lost commit, so it discovers what it has recorded.
func TestADiscoveryThatIsKnownIsLeftAlone(t *testing.T) {
	s := begin(t)
	s.discovered(escrow(1, 100))
	s.admitted(1)
	s.ended(1, registry.Released, 150)
	before := s.row(chain, 1)

	s.discovered(inSlot(anothersSlot, escrow(1, 120)), escrow(2, 120))

	require.Equal(t, before, s.row(chain, 1))
	require.Empty(t, s.late(another, 10), "the slot of a known escrow does not change")
	late := s.late(me, 10)
	require.Len(t, late, 1, "only the new one is late")
	require.Equal(t, address(2), late[0].Address)
}

// A reorganisation took the deployment back, and the same address was deployed again.
func TestADeploymentReplacesAnOrphanedOne(t *testing.T) {
	s := begin(t)
	s.discovered(escrow(1, 100))
	s.admitted(1)
	s.ended(1, registry.Refunded, 110)
	s.orphaned(1)
	require.Empty(t, s.served(0, mySlot), "an orphaned escrow emits no events")

	again := escrow(1, 105)
	again.TxHash, again.LogIndex, again.Occurrence = common.Hash{0xaa}, 3, 2
	s.discovered(again)

	require.Equal(t, row{Status: "active", Block: 105, EventID: eventID(0xaa, ":3:2")}, s.row(chain, 1),
		"it has not ended on this branch")
	require.Equal(t, []registry.Late{{Address: address(1), Slot: mySlot, Block: 105, LogIndex: 3, Monitored: 104,
		Factory: factory}},
		s.late(me, 10))
}

// CREATE2 gives one address on several chains.
func TestChainsDoNotSeeEachOther(t *testing.T) {
	s := begin(t)
	ctx := t.Context()
	s.discovered(escrow(1, 100))
	_, err := registry.Record(ctx, s.db, anotherChain, registry.Past, []registry.Discovery{escrow(1, 5)})
	require.NoError(t, err)

	require.NoError(t, registry.Advance(ctx, s.db, anotherChain,
		[]registry.Progress{{Address: address(1), CaughtUp: true}}))
	require.NoError(t, registry.End(ctx, s.db, anotherChain,
		[]registry.Ending{{Address: address(1), Status: registry.Released, Block: 9}}))

	require.Equal(t, row{Status: "active", Block: 100, EventID: eventID(1, ":1")}, s.row(chain, 1))
	require.Len(t, s.late(me, 10), 1)
	require.Equal(t, "released", s.row(anotherChain, 1).Status)
	late, err := registry.ListLate(ctx, s.db, anotherChain, me, everywhere, 10)
	require.NoError(t, err)
	require.Empty(t, late)
}

func TestAnOwnerHearsOfItsOwnSlotsOnly(t *testing.T) {
	s := begin(t)
	s.discovered(escrow(1, 100), inSlot(anothersSlot, escrow(2, 100)), inSlot(freeSlot, escrow(3, 100)))

	require.Len(t, s.late(me, 10), 1)
	require.Equal(t, address(1), s.late(me, 10)[0].Address)
	require.Equal(t, address(2), s.late(another, 10)[0].Address)
	require.Empty(t, s.late("a stranger", 10))

	s.exec(`update slot_ownership set owner = $2 where chain_id = $1 and slot = $3`, chain, me, freeSlot)
	require.Len(t, s.late(me, 10), 2, "a slot brings its late escrows to its new owner")
}

// In order of deployment, so that an outbox gets EscrowDeployed messages in order; and the one
// whose catching up is furthest behind first.
func TestLateEscrowsComeByTheBlockAtWhichTheyGoOn(t *testing.T) {
	s := begin(t)
	s.discovered(escrow(4, 300), escrow(3, 200), escrow(2, 100), escrow(1, 100))
	s.monitored(2, 250)

	var order []common.Address
	for _, l := range s.late(me, 10) {
		order = append(order, l.Address)
	}

	require.Equal(t, []common.Address{address(1), address(3), address(2), address(4)}, order)
	require.Len(t, s.late(me, 3), 3)
	require.Equal(t, address(1), s.late(me, 1)[0].Address, "a limit keeps the first")
}

func TestProgressOfALateEscrowIsKeptAndNeverGoesBack(t *testing.T) {
	s := begin(t)
	s.discovered(escrow(1, 100), escrow(2, 100))
	require.EqualValues(t, 100, s.late(me, 1)[0].Next(), "it begins at the block of its deployment")

	s.monitored(1, 150)
	s.monitored(1, 120)

	require.Equal(t, []registry.Late{
		{Address: address(2), Slot: mySlot, Block: 100, LogIndex: 2, Monitored: 99, Factory: factory},
		{Address: address(1), Slot: mySlot, Block: 100, LogIndex: 1, Monitored: 150, Factory: factory, Announced: true},
	}, s.late(me, 10))
	require.EqualValues(t, 151, s.late(me, 10)[1].Next())
}

// Some escrows of a commit are caught up, and others are not yet.
func TestOneCommitAdmitsAndAdvances(t *testing.T) {
	s := begin(t)
	s.discovered(escrow(1, 100), escrow(2, 100), escrow(3, 100))
	s.monitored(2, 100)

	require.NoError(t, registry.Advance(t.Context(), s.db, chain, []registry.Progress{
		{Address: address(1), CaughtUp: true}, {Address: address(2), Monitored: 140}, {Address: address(3), CaughtUp: true},
	}))

	require.Len(t, s.late(me, 10), 1)
	require.EqualValues(t, 140, s.late(me, 10)[0].Monitored)
	require.Len(t, s.served(0, mySlot), 2)
}

func TestAnEndedEscrowIsServedUntilItsEndingIsFinal(t *testing.T) {
	s := begin(t)
	s.discovered(escrow(1, 100), escrow(2, 100), escrow(3, 100))
	s.admitted(1, 2, 3)
	s.ended(1, registry.Released, 150)
	s.ended(2, registry.Refunded, 160)

	require.Equal(t, "released", s.row(chain, 1).Status)
	require.EqualValues(t, 150, *s.row(chain, 1).Ended)
	require.Equal(t, "refunded", s.row(chain, 2).Status)
	require.Equal(t, map[common.Address]int64{address(1): 150, address(2): 160, address(3): 0}, s.served(149, mySlot))
	require.Equal(t, map[common.Address]int64{address(2): 160, address(3): 0}, s.served(150, mySlot))
	require.Equal(t, map[common.Address]int64{address(3): 0}, s.served(160, mySlot))
}

func TestLoadTakesTheNamedSlotsOnly(t *testing.T) {
	s := begin(t)
	s.discovered(escrow(1, 100), inSlot(anothersSlot, escrow(2, 100)), inSlot(freeSlot, escrow(3, 100)))
	s.admitted(1, 2, 3)

	require.Equal(t, []common.Address{address(1), address(2)},
		slices.SortedFunc(maps.Keys(s.served(0, mySlot, anothersSlot)), common.Address.Cmp))
	require.Empty(t, s.served(0))
}

// Whoever retires a factory twice is told what holds: the same again is done, and another block is not taken.
func TestARetiredFactoryStaysRetiredWhereItIs(t *testing.T) {
	s := begin(t)
	s.exec(`insert into leadership (chain_id, next_block, start_block, verified_block) values ($1, 100, 1, 0)`, chain)
	retire := func(at int64) (block int64, err error) {
		err = pgx.BeginFunc(t.Context(), s.db, func(tx pgx.Tx) error {
			block, err = registry.RetireFactory(t.Context(), tx, chain, factory, at)
			return err
		})

		return block, err
	}

	_, err := retire(99)
	require.ErrorContains(t, err, "before block 100 are followed already")
	for _, at := range []int64{150, 150, 0} {
		block, err := retire(at)
		require.NoError(t, err)
		require.EqualValues(t, 150, block)
	}

	s.exec(`update leadership set next_block = 200`)
	_, err = retire(150)
	require.NoError(t, err)
	for _, at := range []int64{120, 300} {
		_, err = retire(at)
		require.ErrorContains(t, err, "is retired at block 150 already")
	}
}

// A chain has a most of factories, those that are retired and that the configuration names no more included.
func TestAChainHasSoManyFactories(t *testing.T) {
	s := begin(t)
	named := func(from, to int) (list []registry.Factory) {
		for i := from; i <= to; i++ {
			list = append(list, registry.Factory{Address: common.BigToAddress(big.NewInt(int64(i))), Start: 1})
		}

		return list
	}
	_, err := registry.Prepare(t.Context(), s.db, chain, named(1, registry.MaxFactories-1))
	require.NoError(t, err)
	s.exec(`update factories set retired_block = 1 where chain_id = $1 and id > 1`, chain)
	_, err = registry.Prepare(t.Context(), s.db, chain, append(named(1, 1), named(300, 300)...))
	require.NoError(t, err)
	_, err = registry.Prepare(t.Context(), s.db, chain, append(named(1, 1), named(300, 301)...))
	require.ErrorIs(t, err, registry.ErrOtherFactory)
	require.ErrorContains(t, err, "200 are the most")
}

// What the caller rolls back has not happened: the transaction is the caller's.
func TestNothingIsWrittenOutsideTheCallersTransaction(t *testing.T) {
	s := begin(t)
	s.discovered(escrow(1, 100), escrow(2, 100))
	before := s.late(me, 10)
	stop := errors.New("stop")

	err := pgx.BeginFunc(t.Context(), s.db, func(tx pgx.Tx) error {
		ctx := t.Context()
		_, err := registry.Record(ctx, tx, chain, registry.Past, []registry.Discovery{escrow(3, 100)})
		require.NoError(t, err)
		require.NoError(t, registry.Advance(ctx, tx, chain,
			[]registry.Progress{{Address: address(1), CaughtUp: true}, {Address: address(2), Monitored: 500}}))
		require.NoError(t, registry.End(ctx, tx, chain,
			[]registry.Ending{{Address: address(1), Status: registry.Released, Block: 9}}))

		return stop
	})

	require.ErrorIs(t, err, stop)
	require.Equal(t, before, s.late(me, 10))
	require.Equal(t, "active", s.row(chain, 1).Status)
}

// An error says what was being done and to how many, and no half of it is kept.
func TestErrorsSayWhatWasBeingDone(t *testing.T) {
	s := begin(t)
	s.discovered(escrow(1, 100))
	s.exec(`alter table late_escrows rename to gone`)
	ctx := t.Context()

	_, err := registry.ListLate(ctx, s.db, chain, me, everywhere, 1)
	require.ErrorContains(t, err, "list late escrows")
	_, err = registry.Record(ctx, s.db, chain, registry.Past, []registry.Discovery{escrow(2, 100), escrow(3, 100)})
	require.ErrorContains(t, err, "record 2 escrows")
	require.ErrorContains(t, registry.Advance(ctx, s.db, chain,
		[]registry.Progress{{Address: address(1), CaughtUp: true}}), "admit 1 late escrows")
	require.ErrorContains(t, registry.Advance(ctx, s.db, chain, []registry.Progress{{Address: address(1)}}),
		"advance 1 late escrows")
	require.ErrorContains(t, registry.Load(ctx, s.db, chain, []int16{mySlot}, 1, 0, func(registry.Loaded) {}),
		"load the escrows of 1 slots")

	s.exec(`alter table escrows rename to gone_as_well`)
	require.ErrorContains(t, registry.End(ctx, s.db, chain, []registry.Ending{{Address: address(1)}}), "end 1 escrows")
}

func TestTextIsAnAddressAsTheViewsHaveIt(t *testing.T) {
	s := begin(t)
	a := common.HexToAddress("0xE3d2980084b291fBA9684208EbDB5A4cb03bBD29")
	require.Equal(t, "0xe3d2980084b291fba9684208ebdb5a4cb03bbd29", registry.Text(a))

	s.discovered(registry.Discovery{Address: a, Slot: mySlot, Block: 1, Factory: factory})
	var text string
	require.NoError(t, s.db.QueryRow(t.Context(), `select address from escrow_registry`).Scan(&text))
	require.Equal(t, registry.Text(a), text)
}
