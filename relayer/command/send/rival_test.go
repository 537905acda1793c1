package send_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
)

// C5: the last approval of an escrow that is due releases it, so an approval and a settlement are
// not under way together: the second one waits for what comes of the first, and costs nothing.
func TestApprovalAndSettlementExcludeEachOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	fresh, approved := w.escrow(1, 0), w.approvedAndDue()
	w.start(nil)
	var first, second []common.Hash
	for escrow, kinds := range map[common.Address][2]command.Kind{fresh: {command.Approve, command.Release},
		approved: {command.Release, command.Approve}} {
		one := w.accept(w.command(kinds[0], escrow, nil))
		w.awaitBroadcast(one)
		other := w.accept(w.command(kinds[1], escrow, nil))
		require.Eventually(t, func() bool { return w.answer(other).Code == command.CodeConflict }, patience,
			10*time.Millisecond)
		require.Contains(t, w.answer(other).Detail, one.Hex())
		first, second = append(first, one), append(second, other)
	}

	for i := range first {
		w.await(first[i], true, command.Done)
	}

	for _, id := range second { // the release is there already, the approval has come too late
		w.await(id, true, command.Already, command.Refused)
	}

	require.Len(t, w.sent(), 2)
}

// approvedAndDue is an escrow that its payer has approved: anybody may release it, and the sender may approve it too.
func (w *world) approvedAndDue() common.Address {
	w.t.Helper()
	escrow := w.escrow(1, 100)
	_, err := w.wallet.Transact(w.t.Context(), w.node, 0, testchain.Call{To: &escrow,
		Data: contracts.NewEscrow().PackApprove()})
	require.NoError(w.t, err)
	require.NoError(w.t, w.node.(*testchain.Sim).AdvanceTime(w.t.Context(), 200*time.Second))
	w.mine(confirmations + 1)
	w.awaitTarget()
	require.Eventually(w.t, func() bool { // senders see no further than the ledger
		return w.int(`select next_block from leadership`) > w.head()-confirmations
	}, patience, 10*time.Millisecond)

	return escrow
}

// Of an approval and a settlement of one escrow that are tried in one round the first gets its nonce, whichever came
// in first, and what waits behind them does too.
func TestRivalsOfOneRound(t *testing.T) {
	t.Parallel()
	for _, approveFirst := range []bool{true, false} {
		w := newWorld(t, startSim(t))
		other, escrow := w.escrow(1, 0), w.approvedAndDue()
		release := w.accept(w.command(command.Release, escrow, nil))
		approve := w.accept(w.command(command.Approve, escrow, nil))
		behind := w.accept(w.command(command.Approve, other, nil))
		if approveFirst { // its turn has come sooner, as that of what waits for a time comes later
			w.exec(`update commands set next_look = next_look - interval '1 minute' where command_id = $1`, approve.Hex())
		}

		w.start(nil)
		w.await(behind, true, command.Done)
		w.await(release, true, command.Done, command.Already)
		w.await(approve, true, command.Done, command.Already, command.Refused)
	}
}

// C5: what loses only when its turn comes is told the winner too: a keeper's command, which has no
// claim until it gets a nonce, and one that asked again for what a reorganisation then took back.
func TestWhoLosesLateIsToldTheWinner(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	stop := w.start(nil)
	first := w.accept(w.command(command.Approve, w.escrow(2, 0), nil))
	done := w.await(first, true, command.Done)
	stop()
	again := w.accept(w.command(command.Approve, common.HexToAddress(done.Escrow), nil))
	w.reorg(w.head() - int(done.Block) + 1)
	w.await(first, true, command.Sent)

	escrow := w.escrow(1, 0)
	release := w.accept(w.command(command.Release, escrow, func(c *command.Command) {
		c.NotBefore = uint64(time.Now().Add(lifetime / 2).Unix())
	}))
	kept := w.command(command.Release, escrow, func(c *command.Command) { c.MaxFee = big.NewInt(1e16) })
	w.insert(kept, kept.ID(), send.KeeperName)
	w.start(func(c *send.Config) {
		c.Keeper = &send.Keeper{MinAmount: big.NewInt(7), MaxFee: big.NewInt(1e16), DayFees: big.NewInt(1e17)}
	})
	for loser, winner := range map[common.Hash]common.Hash{again: first, kept.ID(): release} {
		a := w.await(loser, false, command.Refused, command.Already)
		require.Equal(t, command.CodeConflict, a.Code)
		require.Equal(t, winner.Hex(), a.Winner)
	}
}
