package send_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
	"github.com/fusion-prime/escrow-relayer/relayer/command/sign"
)

// unowned runs what follows senders that nobody owns, without any key.
func (w *world) unowned() (stop func()) {
	cfg := w.config()
	cfg.Signer, cfg.Policy, cfg.Limits = nil, nil, send.Limits{}

	return w.run(func(ctx context.Context) error { send.Follow(ctx, cfg, 20*time.Millisecond); return nil })
}

// C4: a command that was sent is answered once no instance has its sender's key any more, and its answer is taken
// back by a reorganisation, from any instance.
func TestAnsweredWithoutTheKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	stop := w.start(nil)
	sent := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.awaitBroadcast(sent)
	stop()
	waiting := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.unowned()
	first := w.await(sent, true, command.Done)
	w.reorg(w.head() - int(first.Block) + 1) // the pool forgets
	w.mine(confirmations + 1)
	require.Eventually(t, func() bool { return len(w.replies(sent)) >= 2 }, patience, 20*time.Millisecond)
	w.await(sent, true, command.Done)
	require.Equal(t, []command.State{command.Done, command.Reopened, command.Done}, w.replies(sent))
	require.Equal(t, command.Accepted, w.answer(waiting).State, "nothing new is signed")
	require.Equal(t, 1, w.int(`select count(*) from command_attempts`))
}

// hungChain has an account that no node tells of.
type hungChain struct {
	*evm.Nodes
	asked chan struct{}
	once  sync.Once
}

func (c *hungChain) Look(ctx context.Context, _ common.Address, _ uint64, _ bool) (evm.Look, error) {
	c.once.Do(func() { close(c.asked) })
	<-ctx.Done()

	return evm.Look{}, ctx.Err()
}

// C4: what is over before it had a nonce is answered, whatever the nodes do.
func TestNodesThatHangKeepNoAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	stop := w.start(nil)
	w.await(w.accept(w.command(command.Approve, w.escrow(1, 0), nil)), true, command.Done)
	stop()
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	hung := &hungChain{Nodes: w.nodes, asked: make(chan struct{})}
	cfg := w.config()
	cfg.Signer, cfg.Chain = nil, hung
	w.run(func(ctx context.Context) error { send.Follow(ctx, cfg, 20*time.Millisecond); return nil })
	<-hung.asked
	w.exec(`update commands set expires_at = now() where command_id = $1`, id.Hex())
	w.await(id, false, command.Expired)
}

// C9: an owner that comes fences what follows, and goes on with what waits.
func TestAnOwnerFencesItsFollower(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	stop := w.start(nil)
	w.await(w.accept(w.command(command.Approve, w.escrow(1, 0), nil)), true, command.Done)
	stop()
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.unowned()
	w.awaitLook()
	w.start(nil)
	w.await(id, true, command.Done)
	require.Len(t, w.sent(), 2)
	require.Equal(t, 0, w.int(`select count(*) from command_attempts a join senders s on a.nonce = 1 and a.epoch <> s.epoch`))
}

// A follower works under the epoch of the last owner, which may still believe that it is the owner. What that one signs
// for a command that the follower has answered meanwhile is not stored, and the answer stays as it was given.
func TestWhatIsAnsweredIsNotReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	held, release := make(chan struct{}), make(chan struct{})
	signer := &hookedSigner{Signer: sign.NewLocal(w.sender.Key), before: func(_ context.Context, n int64) {
		if n == 2 { // the replacement
			close(held)
			<-release
		}
	}}
	w.start(func(c *send.Config) { c.Chain, c.Signer, c.BumpBlocks = &deafChain{Nodes: w.nodes}, signer, 1 })
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.await(id, true, command.Sent)
	require.Eventually(t, func() bool {
		w.mineAhead()
		select {
		case <-held:
			return true
		default:
			return false
		}
	}, patience, 50*time.Millisecond)
	stop := w.unowned() // it sends what is recorded
	w.await(id, true, command.Done)
	stop()
	row := func() string {
		var text string
		require.NoError(t, w.db.QueryRow(t.Context(), `select c::text from commands c`).Scan(&text))
		return text
	}
	before := row()
	close(release)
	w.mine(1)
	w.awaitLook() // in a later round
	require.Equal(t, before, row())
	require.Equal(t, 1, w.int(`select count(*) from command_attempts`))
	require.Equal(t, 1, w.int(`select count(*) from senders where spent_fees = (select sum(fee_paid) from commands)`),
		"nothing is reserved for it")
}
