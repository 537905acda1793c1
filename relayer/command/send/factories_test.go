package send_test

import (
	"context"
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
)

// Commands and the keeper serve each factory that the chain's fleet follows, one that is added while they run included.
func TestCommandsOfEveryFactory(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	second, err := testchain.Deploy(t.Context(), w.node)
	require.NoError(t, err)
	create := func() *command.Signed {
		w.salt++
		args := &command.CreateArgs{Payee: w.wallet0(), ReleaseDelay: big.NewInt(100), ApprovalsRequired: 1,
			Amount: big.NewInt(7), Arbiter: w.sender.Address, Salt: common.BigToHash(big.NewInt(w.salt))}

		return w.command(command.Create, w.createAddressOf(second.Factory, args), func(c *command.Command) {
			c.Factory, c.Args = second.Factory, args
		})
	}
	early := create()
	require.Equal(t, command.CodeForeign, w.take(early)[0].Answer.Code, "its factory is not followed yet")
	w.retire(second.Factory, registry.ErrUnknownFactory)
	require.NoError(t, pgx.BeginFunc(t.Context(), w.db, func(tx pgx.Tx) error {
		return registry.AddFactories(t.Context(), tx, w.node.ChainID().Int64(),
			[]registry.Factory{{Address: second.Factory, Start: int64(second.Block)}})
	}))
	require.Eventually(t, func() bool {
		return w.int(`select count(*) from factories where past_block is null`) == 2
	}, patience, 10*time.Millisecond)

	w.start(func(c *send.Config) {
		c.Keeper = &send.Keeper{MinAmount: big.NewInt(7), MaxFee: big.NewInt(1e16), DayFees: big.NewInt(1e17),
			Every: 10 * time.Millisecond}
	})
	w.verified(1_000_000)
	w.accept(early)
	w.await(early.ID(), true, command.Done)
	w.awaitEscrow(early.Escrow)
	approve := func(escrow common.Address, factory common.Address) {
		id := w.accept(w.command(command.Approve, escrow, func(c *command.Command) { c.Factory = factory }))
		w.await(id, true, command.Done)
	}
	approve(early.Escrow, second.Factory)
	approve(w.escrow(1, 100), w.contracts.Factory)
	require.NoError(t, w.node.(*testchain.Sim).AdvanceTime(t.Context(), 200*time.Second))
	w.mine(confirmations + 1)
	require.Eventually(t, func() bool {
		w.mine(1)
		return w.int(`select count(distinct message ->> 'factory') from commands
			where state = 'done' and requester = 'keeper' and kind = 'release'`) == 2
	}, patience, 50*time.Millisecond)
	found, _ := w.audit()
	require.Empty(t, found)

	held := create()
	w.accept(held)
	require.Eventually(t, func() bool {
		return w.int(`select count(*) from commands where kind = 'create' and state = 'sent'`) == 1
	}, patience, 10*time.Millisecond)
	w.retire(second.Factory, registry.ErrCreating)
	w.await(held.ID(), true, command.Done)
	w.retire(second.Factory, nil)
	gone := create()
	w.accept(gone)
	require.Equal(t, command.CodeForeign, w.await(gone.ID(), true, command.Refused, command.Done).Code,
		"nobody would follow its escrow")
	approve(held.Escrow, second.Factory)
}

// C4: a factory that the newest final block does not have yet refuses nothing: a call to it succeeds and says nothing.
func TestAFactoryThatIsNotFinal(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	w.escrow(1, 0)
	require.Eventually(t, func() bool { return w.int(`select count(block_hash) from leadership`) > 0 }, patience,
		10*time.Millisecond, "the leader has a block, at which calls are tried")
	w.stopLedger()
	second, err := testchain.Deploy(t.Context(), w.node)
	require.NoError(t, err)
	w.mine(confirmations)
	require.NoError(t, pgx.BeginFunc(t.Context(), w.db, func(tx pgx.Tx) error {
		return registry.AddFactories(t.Context(), tx, w.node.ChainID().Int64(),
			[]registry.Factory{{Address: second.Factory, Start: int64(second.Block)}})
	}))
	args := &command.CreateArgs{Payee: w.wallet0(), ReleaseDelay: big.NewInt(100), ApprovalsRequired: 1,
		Amount: big.NewInt(7), Arbiter: w.sender.Address}
	c := w.command(command.Create, w.createAddressOf(second.Factory, args), func(c *command.Command) {
		c.Factory, c.Args = second.Factory, args
	})
	require.Eventually(t, func() bool { return w.take(c)[0].Answer.Code != command.CodeForeign }, patience,
		10*time.Millisecond)
	w.start(nil)
	w.awaitHeld(c.ID(), command.CodeUnknownEscrow)
	w.watch()
	w.await(c.ID(), true, command.Done)
}

// retire retires a factory, or fails with want.
func (w *world) retire(factory common.Address, want error) {
	w.t.Helper()
	err := pgx.BeginFunc(w.t.Context(), w.db, func(tx pgx.Tx) error {
		_, err := registry.RetireFactory(context.WithoutCancel(w.t.Context()), tx, w.node.ChainID().Int64(), factory, 0)
		return err
	})
	require.ErrorIs(w.t, err, want)
}
