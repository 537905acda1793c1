package ledger_test

import (
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

var second = common.HexToAddress("0x5ec")

// added makes the world follow a second factory, with a past from block 1 up to the cursor of the factory watch.
func (w *world) added() {
	require.NoError(w.t, pgx.BeginFunc(w.t.Context(), w.DB, func(tx pgx.Tx) error {
		return registry.AddFactories(w.t.Context(), tx, chain, []registry.Factory{{Address: second, Start: 1}})
	}))
}

// factoryPosition reads the cursor of the factory watch.
func (w *world) factoryPosition() ledger.Position {
	p, err := w.led.FactoryPosition(w.t.Context(), w.epoch)
	require.NoError(w.t, err)

	return p
}

// past commits some blocks of the second factory's past, which have one deployment.
func (w *world) past(fork byte, from, next int64, who int) error {
	e := deployed(who, from, 7, int64(100+who))
	e.Factory, e.Emitter = second, second
	at := w.factoryPosition().To(from, common.Hash{})
	c := ledger.PastCommit{Epoch: w.epoch, Factory: second, From: at, To: at.To(next, blockHash(fork, next-1)),
		Events: []contract.Event{e}}
	if next > from+1 { // the watch verifies that a remembered block inside is the chain's
		c.Checked = ledger.Block{Number: next - 2, Hash: blockHash(0, next-2)}
	}

	_, err := w.led.CommitPast(w.t.Context(), c)

	return err
}

// pasts is how far the past of each factory is read.
func (w *world) pasts() []string {
	return w.Column(`select coalesce(past_block || '-' || until_block, 'read') from factories order by id`)
}

// The past of a factory is stored beside the watch of the others, once, and from where it was left.
func TestPast(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.discover(0, deployed(1, 1, 0, 11))
	w.discover(0)
	w.discover(0)
	w.added()
	require.Equal(t, []string{"read", "1-4"}, w.pasts())

	_, err := w.led.CommitFactory(t.Context(), ledger.FactoryCommit{Epoch: 1, From: w.fact,
		To: w.fact.To(5, blockHash(0, 4))})
	require.ErrorIs(t, err, ledger.ErrMoved, "it was read without the second factory")
	w.fact = w.factoryPosition()

	require.NoError(t, w.past(0, 1, 3, 2))
	require.Equal(t, []string{"read", "3-4"}, w.pasts())
	require.ErrorIs(t, w.past(0, 1, 3, 2), ledger.ErrMoved, "again")
	w.discover(0)
	require.NoError(t, w.past(0, 3, 4, 3))
	require.Equal(t, []string{"read", "read"}, w.pasts())
	require.Equal(t, []string{"2"}, w.Column(`select count(*)::text from late_escrows`))
}

// Whoever has lost the leadership stores nothing of a past, wherever it has read it.
func TestPastIsFenced(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.discover(0)
	w.discover(0)
	w.added()
	at := w.factoryPosition().To(1, common.Hash{})
	c := ledger.PastCommit{Epoch: w.epoch, Factory: second, From: at, To: at.To(2, blockHash(0, 1))}
	w.Exec(`update leadership set epoch = 2`)
	_, err := w.led.CommitPast(t.Context(), c)
	require.ErrorIs(t, err, ledger.ErrMoved)
	c.Epoch, c.From.Generation = 2, at.Generation-1
	_, err = w.led.CommitPast(t.Context(), c)
	require.ErrorIs(t, err, ledger.ErrMoved, "read before a rollback")
	require.Equal(t, []string{"read", "1-3"}, w.pasts())
}

// Once the past is read, the second reading reads it too; while it is not, its deployments are not missing.
func TestPastIsVerified(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.discover(0)
	w.discover(0)
	w.process(0)
	w.process(0)
	w.Verify(2)
	w.added()
	verified := func() string { return w.Column(`select verified_block::text from leadership`)[0] }
	require.NoError(t, w.past(0, 1, 2, 2))
	require.Equal(t, "2", verified())
	f := registry.NewFollowed()
	require.NoError(t, w.led.Follow(t.Context(), f))
	require.False(t, f.Has(second, 1))
	require.True(t, f.Has(second, 3))
	require.NoError(t, w.past(0, 2, 3, 3))
	require.Equal(t, "0", verified())
	require.NoError(t, w.led.Follow(t.Context(), f))
	require.True(t, f.Has(second, 1))
}

// A rollback takes a past back too.
func TestRollbackOfAPast(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.discover(0)
	w.process(0)
	w.discover(0)
	w.process(0)
	w.added()
	require.NoError(t, w.past(0, 1, 2, 2))
	w.reload()
	w.process(0) // admits the escrow
	stale := w.slots
	_, err := w.led.Rollback(t.Context(), stale, ledger.Position{Next: 1})
	require.NoError(t, err)
	require.Equal(t, []string{"read", "1-3"}, w.pasts())
	w.epoch = 1
	w.fact = w.factoryPosition()
	w.reload()
	require.NoError(t, w.past(1, 1, 3, 2))
	require.Equal(t, []string{"read", "read"}, w.pasts())
}

// An escrow of a factory that is not followed is no escrow: it fails loudly.
func TestEscrowOfAStranger(t *testing.T) {
	t.Parallel()
	w := setup(t)
	e := deployed(1, 1, 0, 11)
	e.Factory = common.Address{9}
	_, err := w.led.CommitSlots(t.Context(), ledger.SlotCommit{Epoch: 1, From: w.slots,
		To: w.slots.To(2, blockHash(0, 1)), Events: []contract.Event{e}})
	require.ErrorContains(t, err, "factory")
	require.Equal(t, []string{"0"}, w.Column(`select count(*)::text from events`))
}

// A second reading that began while a past was read says nothing about that factory's blocks.
func TestAPastVoidsTheSecondReadingWithoutIt(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for range 3 {
		w.discover(0)
		w.process(0)
	}

	w.added()
	v, err := w.led.Verifiable(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int64{1, 3}, []int64{v.From, v.To})
	require.NoError(t, w.past(0, 1, 4, 2))
	_, err = w.led.Repair(t.Context(), w.epoch, v, 3, nil, nil)
	require.ErrorIs(t, err, ledger.ErrMoved)
}
