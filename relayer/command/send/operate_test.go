package send_test

import (
	"context"
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
)

func (w *world) adopt(ctx context.Context) error {
	return send.AdoptNonce(ctx, w.db, w.node.ChainID().Int64(), w.sender.Address)
}

// use uses up a nonce of the sender's account elsewhere.
func (w *world) use() {
	w.t.Helper()
	other, err := testchain.OpenWallet(w.t.Context(), w.node.HTTP(), w.sender)
	require.NoError(w.t, err)
	defer other.Close()
	_, err = other.Send(w.t.Context(), 0, testchain.Call{To: &common.Address{1}, Value: big.NewInt(1), Gas: 21000})
	require.NoError(w.t, err)
	w.mine(1)
}

func (w *world) awaitState(state string) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		return w.int(`select count(*) from senders where state = $1 and next_nonce is not null`, state) == 1
	}, patience, 10*time.Millisecond)
}

// awaitHalt mines blocks until the sender is halted for a reason that has these words.
func (w *world) awaitHalt(words string) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		w.mine(1)
		return w.int(`select count(*) from senders where state = 'halted' and reason like '%' || $1 || '%'`, words) == 1
	}, patience, 20*time.Millisecond)
}

// A sender that was given a nonce too high, by a node that lied, waits for a transaction that never comes. It is
// brought back, down to what the chain shows and to what its commands have.
func TestNonceTooHigh(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	w.mine(confirmations + 1)
	w.start(nil)
	w.awaitState("active")
	w.exec(`update senders set next_nonce = 1000, first_nonce = 1000, wait_final = 1000`)
	first := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.awaitLook()
	require.Equal(t, 0, w.int(`select count(*) from commands where nonce is not null`))
	require.NoError(t, send.Pause(t.Context(), w.db, w.node.ChainID().Int64(), w.sender.Address, "a nonce too high"))
	require.NoError(t, w.adopt(t.Context()))
	w.awaitState("paused") // still
	require.NoError(t, send.Resume(t.Context(), w.db, w.node.ChainID().Int64(), w.sender.Address))
	w.await(first, true, command.Done)
	found, _ := w.audit()
	require.Empty(t, found)

	w.use()
	w.awaitState("halted")
	require.NoError(t, w.adopt(t.Context()))
	w.await(w.accept(w.command(command.Approve, w.escrow(1, 0), nil)), true, command.Done)
	require.Equal(t, 1, w.int(`select count(*) from commands where nonce = 2`))
	require.Len(t, w.sent(), 3)
	found, _ = w.audit()
	require.Equal(t, map[uint64]string{1: send.FindingForeign}, found)
}

// C1: a nonce that one endpoint has invented is given to no command while another one does not know it: what a command
// has stays, and the gap below it would stay too.
func TestAnInventedNonceIsNotGiven(t *testing.T) {
	t.Parallel()
	w, node := newFaultyWorld(t, true)
	lie := counts(node, `"0x64"`)
	escrow := w.escrow(1, 0)
	w.start(nil)
	id := w.accept(w.command(command.Approve, escrow, nil))
	require.Eventually(t, func() bool { w.mineAhead(); return lie.Hits() > 100 }, patience, 20*time.Millisecond)
	require.Equal(t, 0, w.int(`select count(*) from commands where nonce is not null`))
	lie.Remove()
	require.NoError(t, w.adopt(t.Context()))
	w.await(id, true, command.Done)
}

// C1: a nonce that a command has is not given to another one, though no endpoint knows it.
func TestNonceOfACommandIsNotAdopted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	deaf := &deafChain{Nodes: w.nodes}
	w.start(func(c *send.Config) { c.Chain = deaf })
	first := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.await(first, true, command.Sent)
	require.NoError(t, w.adopt(t.Context()))
	second := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	deaf.hears.Store(true)
	for _, id := range []common.Hash{first, second} {
		w.await(id, true, command.Done)
	}

	require.Equal(t, 2, w.int(`select count(distinct nonce) from commands`))
	require.Len(t, w.sent(), 2)
}

// C1: a nonce that is to be read again, after the owner has looked at the chain and before it gives the next one out,
// is not given out as it was.
func TestNonceIsReadAgainAtTheLastMoment(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	w.use()
	w.use()
	stop := w.start(nil)
	w.awaitState("active")
	stop()
	w.exec(`update senders set next_nonce = 5`)
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.start(func(c *send.Config) { c.Chain = &lateChain{Nodes: w.nodes, happen: w.adopt} })
	w.await(id, true, command.Done)
	require.Equal(t, 1, w.int(`select count(*) from commands where nonce = 2`))
	require.Len(t, w.sent(), 3)
}
