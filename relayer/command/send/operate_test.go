package send_test

import (
	"context"
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
)

func (w *world) adopt(ctx context.Context) error {
	return send.AdoptNonce(ctx, w.db, w.node.ChainID().Int64(), w.sender.Address)
}

// use uses up a nonce of the sender's account elsewhere.
func (w *world) use() {
	w.t.Helper()
	other, err := testchain.OpenWallet(w.t.Context(), w.node.Client(), w.sender)
	require.NoError(w.t, err)

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

// What an operator asks for beside a node that tells of nonces that nobody has used, also while the sender is paused,
// stands as long as that node lies, and no longer.
func TestNonceTooHigh(t *testing.T) {
	t.Parallel()
	w, node := newFaultyWorld(t, true)
	w.mine(confirmations + 1)
	w.start(nil)
	w.awaitState("active")
	first := w.escrow(1, 0)
	lie := counts(node, `"0x3e8"`)
	w.awaitHalt("nonces up to 999")
	require.NoError(t, w.adopt(t.Context()))
	id := w.accept(w.command(command.Approve, first, nil))
	before := lie.Hits()
	require.Eventually(t, func() bool { w.mineAhead(); return lie.Hits() > before+30 }, patience, 20*time.Millisecond)
	require.Equal(t, 0, w.int(`select count(*) from commands where nonce is not null`))
	require.NoError(t, send.Pause(t.Context(), w.db, w.node.ChainID().Int64(), w.sender.Address, "a nonce too high"))
	lie.Remove()
	require.Eventually(t, func() bool {
		return w.int(`select count(*) from senders where state = 'paused' and wait_final = 0`) == 1
	}, patience, 10*time.Millisecond)
	require.NoError(t, send.Resume(t.Context(), w.db, w.node.ChainID().Int64(), w.sender.Address))
	w.await(id, true, command.Done)
	w.awaitTarget()
	found, _ := w.audit()
	require.Empty(t, found)

	w.use()
	w.awaitState("halted")
	require.NoError(t, w.adopt(t.Context()))
	w.await(w.accept(w.command(command.Approve, w.escrow(1, 0), nil)), true, command.Done)
	require.Equal(t, 1, w.int(`select count(*) from commands where nonce = 2`))
	require.Len(t, w.sent(), 3)
	w.awaitTarget()
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
	require.Eventually(t, func() bool { w.mineAhead(); return lie.Hits() > 30 }, patience, 20*time.Millisecond)
	require.Equal(t, 0, w.int(`select count(*) from commands where nonce is not null`))
	lie.Remove()
	w.await(id, true, command.Done)
}

// C1: a nonce that an operator asks for is none that a node which does not answer may know: beside it is one that is
// behind.
func TestAnAdoptedNonceWaitsForEveryNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	silent, _ := w.faulty()
	behind, source := w.faulty(silent.HTTP())
	w.nodes = evm.NewNodes(source)
	escrow := w.escrow(1, 0)
	w.start(nil)
	w.awaitState("active")
	w.use()
	w.awaitState("halted")
	gone := silent.Inject(faults.Fault{Mode: faults.Refused, Method: "eth_getTransactionCount", Words: "not now"})
	late := counts(behind, `"0x0"`)
	require.NoError(t, w.adopt(t.Context()))
	id := w.accept(w.command(command.Approve, escrow, nil))
	given := func() int { return w.int(`select count(*) from commands where nonce is not null`) }
	require.Eventually(t, func() bool { w.mineAhead(); return gone.Hits() > 20 || given() > 0 }, patience,
		20*time.Millisecond)
	require.Zero(t, given())
	gone.Remove()
	late.Remove()
	w.await(id, true, command.Done)
	require.Equal(t, 1, w.int(`select count(*) from commands where nonce = 1`))
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
	w.mine(confirmations)
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
