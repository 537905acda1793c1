package send_test

import (
	"context"
	"math/big"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// C4: a reorganisation takes the escrow away together with what was done to it. The recorded bytes
// go out again and succeed, as every call to an address without code does: nothing was done.
func TestNothingIsDoneToAnEscrowThatIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	w.start(nil)
	before := w.head()
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.await(id, true, command.Done)
	w.reorg(w.head() - before)
	a := w.await(id, true, command.Reverted)
	require.Equal(t, command.CodeNoEffect, a.Code)
	require.EqualValues(t, 1, w.receipt(common.HexToHash(a.Transaction)).Status)
	require.Equal(t, 0, w.int(`select count(*) from command_claims`), "it can be asked for again")
}

// doubtfulChain is a chain whose nodes know of no receipt, some times, and that something happens to meanwhile.
type doubtfulChain struct {
	*evm.Nodes
	receiptless atomic.Int64 // times that Receipts knows nothing
	meanwhile   func()       // called once, when Receipts has an answer; nil: nothing happens
	once        sync.Once
}

func (c *doubtfulChain) Receipts(ctx context.Context, target evm.Block,
	sets [][]common.Hash) (map[common.Hash]*evm.Receipt, error) {
	if c.receiptless.Add(-1) >= 0 {
		return nil, nil
	}

	all, err := c.Nodes.Receipts(ctx, target, sets)
	if c.meanwhile != nil && len(all) > 0 {
		c.once.Do(c.meanwhile)
	}

	return all, err
}

// C4: a command is done when the ledger has stored its event, whatever receipts say before.
func TestNotDoneBeforeTheLedger(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	w.start(nil)
	escrow := w.escrow(1, 0)
	w.awaitLook()
	w.stopLedger()
	id := w.accept(w.command(command.Approve, escrow, nil))
	w.awaitBroadcast(id)
	w.mine(confirmations + 3)
	w.awaitTarget()
	// It has an end of the chain before it that the ledger has come to, but for the event itself.
	w.exec(`update leadership set next_block = $1, block_hash = $2`, w.head()-confirmations+1,
		w.hash(w.head()-confirmations).Hex())
	require.Eventually(t, func() bool {
		w.mine(1)
		return w.int(`select count(*) from senders where checked_block is not null`) == 1
	},
		patience, 10*time.Millisecond)
	require.Never(t, func() bool { return w.answer(id).State != command.Sent }, time.Second, 100*time.Millisecond)

	w.exec(`update leadership set next_block = 1, block_hash = null`)
	w.watch()
	done := w.await(id, true, command.Done)
	require.Equal(t, done.Transaction+":0", done.EventID)
}

// failedChain has a transaction fail.
type failedChain struct {
	*evm.Nodes
	failed atomic.Pointer[common.Hash]
}

func (c *failedChain) Receipts(ctx context.Context, target evm.Block,
	sets [][]common.Hash) (map[common.Hash]*evm.Receipt, error) {
	all, err := c.Nodes.Receipts(ctx, target, sets)
	for _, r := range all {
		if failed := c.failed.Load(); failed != nil && r.Hash == *failed {
			r.Succeeded = false
		}
	}

	return all, err
}

func (*failedChain) Confirm(context.Context, evm.Block, map[common.Hash]*evm.Receipt) map[common.Hash]error {
	return nil
}

// C5: a command whose event the ledger has still to store keeps its claim when others are answered with it.
func TestClaimKeptUntilTheLedger(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	chain := &failedChain{Nodes: w.nodes}
	w.start(func(c *send.Config) { c.Chain = chain })
	escrow, other := w.escrow(1, 0), w.escrow(1, 0)
	w.awaitLook()
	w.stopLedger()
	id, failed := w.accept(w.command(command.Approve, escrow, nil)), w.accept(w.command(command.Approve, other, nil))
	w.awaitBroadcast(id)
	w.awaitBroadcast(failed)
	var tx string
	require.NoError(t, w.db.QueryRow(t.Context(), `select tx_hash from command_attempts where command_id = $1`,
		failed.Hex()).Scan(&tx))
	hash := common.HexToHash(tx)
	chain.failed.Store(&hash)
	w.mine(confirmations + 3)
	w.awaitTarget()
	w.exec(`update leadership set next_block = $1, block_hash = $2`, w.head()-confirmations+1,
		w.hash(w.head()-confirmations).Hex())
	w.await(failed, true, command.Reverted)
	require.Equal(t, command.Sent, w.answer(id).State)
	again := w.take(w.command(command.Approve, escrow, nil))[0].Answer
	require.Equal(t, command.Refused, again.State)
	require.Equal(t, id.Hex(), again.Winner)

	w.exec(`update leadership set next_block = 1, block_hash = null`)
	w.watch()
	w.await(id, true, command.Done)
}

// C4: what was read of the chain is void when the ledger has rolled back before the answer is stored: the rollback
// cannot have taken it back.
func TestNoAnswerAcrossARollback(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	chain := &doubtfulChain{Nodes: w.nodes, meanwhile: func() {
		w.exec(`update leadership set generation = generation + 1`)
		w.exec(`update cursors set generation = generation + 1`)
	}}
	var log *said
	w.start(func(c *send.Config) { c.Chain, log = chain, listen(c, "sender round failed, retrying") })
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.await(id, true, command.Done)
	require.EqualValues(t, 1, log.count.Load())
	require.Equal(t, []command.State{command.Done}, w.replies(id))
}

// C4: an answer is taken back by the rollback of the ledger, in its transaction, while nobody has the sender.
func TestReopenedWithoutAnOwner(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	stop := w.start(nil)
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	first := w.await(id, true, command.Done)
	stop()
	w.reorg(w.head() - int(first.Block) + 1)
	w.await(id, true, command.Sent)
	require.Equal(t, []command.State{command.Done, command.Reopened}, w.replies(id))
	require.Equal(t, 1, w.int(`select count(*) from command_claims`))

	w.start(nil)
	w.await(id, true, command.Done)
	require.Equal(t, []command.State{command.Done, command.Reopened, command.Done}, w.replies(id))
	require.Len(t, w.sent(), 1)
}

// C4: so is an answer that rests on the event of somebody else.
func TestAlreadyIsTakenBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	w.start(nil)
	escrow := w.escrow(1, 0)
	receipts, err := w.wallet.Transact(t.Context(), w.node, 0, testchain.Call{To: &escrow,
		Data: contracts.NewEscrow().PackApprove()})
	require.NoError(t, err)
	w.mine(confirmations)
	require.Eventually(t, func() bool {
		return w.int(`select count(*) from escrow_records where status = 'released'`) == 1
	}, patience, 10*time.Millisecond)
	id := w.accept(w.command(command.Release, escrow, nil))
	a := w.await(id, true, command.Already)
	require.Equal(t, receipts[0].TxHash.Hex()+":1", a.EventID)
	require.Equal(t, receipts[0].BlockHash.Hex(), a.BlockHash)

	w.reorg(w.head() - int(a.Block) + 1)
	w.await(id, true, command.Accepted)
	require.Equal(t, []command.State{command.Already, command.Reopened}, w.replies(id))
}

// C4: an answer that rests on a wrong event is taken back by the second reading that finds it, in its transaction, and
// given again when the event is supplied.
func TestReopenedByTheSecondReading(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	stop := w.start(nil)
	id := w.accept(w.command(command.Approve, w.escrow(2, 0), nil))
	done := w.await(id, true, command.Done)
	stop()
	led := w.ledger()
	repair := func(missing, wrong []contract.Event) {
		v, err := led.Verifiable(t.Context())
		require.NoError(t, err)
		_, err = led.Repair(t.Context(), 1, v, v.From, missing, wrong)
		require.NoError(t, err)
	}
	stored, err := led.Stored(t.Context(), done.Block, done.Block)
	require.NoError(t, err)
	its := slices.DeleteFunc(stored, func(e contract.Event) bool { return e.TxHash.Hex() != done.Transaction })
	require.Len(t, its, 1)
	repair(nil, its)
	require.Equal(t, command.Sent, w.answer(id).State)
	require.Equal(t, []command.State{command.Done, command.Reopened}, w.replies(id))

	repair(its, nil)
	w.start(nil)
	again := w.await(id, true, command.Done)
	require.Equal(t, done.BlockHash, again.BlockHash)
	require.Equal(t, []command.State{command.Done, command.Reopened, command.Done}, w.replies(id))
	require.Len(t, w.sent(), 1)
}

// C4: what an event has done already is not answered when the ledger takes the event back in the meantime.
func TestNotAlreadyAcrossARollback(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	escrow := w.escrow(1, 0)
	_, err := w.wallet.Transact(t.Context(), w.node, 0, testchain.Call{To: &escrow,
		Data: contracts.NewEscrow().PackApprove()})
	require.NoError(t, err)
	w.mine(confirmations)
	require.Eventually(t, func() bool {
		return w.int(`select count(*) from escrow_records where status = 'released'`) == 1
	}, patience, 10*time.Millisecond)
	w.stopLedger()
	id := w.accept(w.command(command.Release, escrow, nil))
	rollback, err := w.db.Begin(t.Context())
	require.NoError(t, err)
	for _, statement := range []string{`update leadership set generation = generation + 1`,
		`delete from events where type = (select id from event_types where name = 'EscrowReleased')`} {
		_, err = rollback.Exec(t.Context(), statement)
		require.NoError(t, err)
	}

	var log *said
	w.start(func(c *send.Config) { log = listen(c, "sender round failed, retrying") })
	(&gate{w: w}).awaitWaiting(1)
	require.NoError(t, rollback.Commit(t.Context()))
	require.Eventually(t, func() bool { return log.count.Load() == 1 }, patience, 10*time.Millisecond)
	w.await(id, false, command.Accepted)
	require.Empty(t, w.replies(id))
}

// balanced is a balancer that gives what a sender asks to another machine than the looks at the head.
type balanced struct {
	*chain.Source
	other  *chain.Source
	method string // batches without it go to the usual machine; empty: none do
	away   atomic.Bool
	asked  atomic.Int64 // of the other
}

func (b *balanced) CallBatch(ctx context.Context, requests ...chain.Request) ([]chain.Answer, error) {
	of := func(r chain.Request) bool { return b.method == "" || r.Method == b.method }
	if !b.away.Load() || !slices.ContainsFunc(requests, of) {
		return b.Source.CallBatch(ctx, requests...)
	}

	b.asked.Add(1)

	return b.other.CallBatch(ctx, requests...)
}

// stayed is a machine that keeps a branch, the newest blocks of the chain as it is now, which the chain then leaves.
// It is asked what has such a method in its batch; empty: everything.
func (w *world) stayed(method string) (caller *balanced, leave func(depth int)) {
	w.t.Helper()
	machine, other := w.faulty()

	return w.stayedAt(machine, &balanced{Source: w.source, other: other, method: method})
}

// stayedAt is stayed for a machine behind a balancer.
func (w *world) stayedAt(machine *faults.Node, caller *balanced) (*balanced, func(depth int)) {
	w.t.Helper()
	return caller, func(depth int) {
		w.t.Helper()
		fault := faults.Fault{Mode: faults.Stayed, N: uint64(w.head() - depth + 1)}
		for number := int(fault.N); number <= w.head(); number++ {
			fault.Branch = append(fault.Branch, w.hash(number))
		}

		machine.Inject(fault)
		caller.away.Store(true)
		w.reorg(depth) // the pool forgets
		w.awaitTarget()
	}
}

// C4: behind the URL is a machine that stayed on a branch which the chain has left, no deeper than the
// confirmations. Everything that it says hangs together, and is not the chain's.
func TestNoAnswerOfAMachineThatStayed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	caller, leave := w.stayed("")
	nodes := evm.NewNodes(caller)
	w.start(func(c *send.Config) { c.Chain, c.BumpBlocks = nodes, 1 })
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.awaitBroadcast(id)
	w.mine(confirmations)
	leave(confirmations)
	asked := caller.asked.Load()
	require.Eventually(t, func() bool {
		return caller.asked.Load() > asked+20 || w.answer(id).State != command.Sent
	}, patience, 10*time.Millisecond)
	require.Equal(t, command.Sent, w.answer(id).State)

	caller.away.Store(false)
	done := w.await(id, true, command.Done)
	require.Equal(t, w.hash(int(done.Block)).Hex(), done.BlockHash)
	require.Equal(t, []command.State{command.Done}, w.replies(id))
}

// C4: nor does such a machine keep an answer where another endpoint is on the chain's branch: that it has a block with
// the transaction, and its receipt, says nothing.
func TestAnswersBesideAMachineThatStayed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	machine, both := w.faulty(w.node.HTTP())
	caller, leave := w.stayedAt(machine, &balanced{Source: w.source, other: both})
	nodes := evm.NewNodes(caller)
	w.start(func(c *send.Config) { c.Chain, c.BumpBlocks = nodes, 1 })
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.awaitBroadcast(id)
	require.Eventually(t, func() bool { return both.View().Ready }, patience, 10*time.Millisecond)
	w.mine(confirmations)
	leave(confirmations)
	w.await(id, true, command.Done)
	require.Equal(t, []command.State{command.Done}, w.replies(id))
}

// C4: nor is a command refused for what only a branch's contract says that the chain has left.
func TestNoRefusalOfAMachineThatStayed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	caller, leave := w.stayed("eth_call")
	nodes := evm.NewNodes(caller)
	var log *said
	w.start(func(c *send.Config) { c.Chain, log = nodes, listen(c, "sender round failed, retrying") })
	escrow := w.deploy(common.Address{9}, w.sender.Address, 2, 0)
	w.awaitLook()

	_, err := w.wallet.Transact(t.Context(), w.node, 0, testchain.Call{To: &escrow,
		Data: contracts.NewEscrow().PackChangeArbiter(common.Address{8})})
	require.NoError(t, err)
	w.mine(confirmations - 1)
	leave(confirmations)
	w.awaitLook() // a round that began before would try it at a block that both branches have, and send it
	id := w.accept(w.command(command.Approve, escrow, nil))
	require.Eventually(t, func() bool {
		return caller.asked.Load() > 3 || w.answer(id).State == command.Refused
	}, patience, 10*time.Millisecond)
	require.NotEqual(t, command.Refused, w.answer(id).State)
	require.LessOrEqual(t, log.count.Load(), int64(1), "once a minute")

	caller.away.Store(false)
	w.await(id, true, command.Done)
	require.Equal(t, []command.State{command.Done}, w.replies(id))
}

// C1, C7: when the day's budget allows no replacement, what pools have forgotten is sent again as it is.
func TestForgottenWithoutBudget(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	w.start(func(c *send.Config) { c.BumpBlocks = 1 })
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.awaitBroadcast(id)
	w.exec(`update senders set spent_fees = 1000000000000000000`)
	w.reorg(1) // the pool forgets
	w.await(id, true, command.Done)
	require.Equal(t, 1, w.int(`select count(*) from command_attempts`))
	require.Equal(t, 1, w.int(`select count(*) from senders where spent_fees <= 1000000000000000000`))
}

// The event_id of an answer is that of the message: with the number that the ledger adds where the
// transaction and log index had another content before.
func TestEventIDIsThePublishedOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	w.start(nil)
	escrow := w.escrow(1, 0)
	id := w.accept(w.command(command.Approve, escrow, nil))
	w.awaitBroadcast(id)
	var tx string
	require.NoError(t, w.db.QueryRow(t.Context(), `select tx_hash from command_attempts`).Scan(&tx))
	hash, chain := common.HexToHash(tx), w.node.ChainID().Int64()
	w.exec(`insert into orphaned_events (chain_id, block_number, block_time, retract_after, processed_at, log_index, writer, type, slot, occurrence, state, block_hash, tx_hash, escrow, args)
		values ($1, 3, 0, 9, now(), 0, 1, 2, 0, 0, 3, $2, $2, $3, '{}')`, chain, hash[:], escrow[:])
	require.Equal(t, tx+":0:1", w.await(id, true, command.Done).EventID)
}

// C7: a command that a reorganisation opened again has its part of the day's value again.
func TestReopenedCreateCounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	w.start(nil)
	args := &command.CreateArgs{Payee: w.requester.Address, Amount: big.NewInt(5), ReleaseDelay: new(big.Int),
		ApprovalsRequired: 1, Salt: common.Hash{1}}
	id := w.accept(w.command(command.Create, w.createAddress(args), func(c *command.Command) { c.Args = args }))
	first := w.await(id, true, command.Done)
	w.reorg(w.head() - int(first.Block) + 1)
	w.mine(confirmations + 1)
	require.Eventually(t, func() bool { return len(w.replies(id)) >= 2 }, patience, 20*time.Millisecond)
	w.exec(`update commands set cancel_requested = true`)
	w.await(id, true, command.Done, command.Voided)
	value := map[command.State]int{command.Done: 5, command.Voided: 0}[w.answer(id).State]
	require.Equal(t, value, w.int(`select spent_value::int from senders`))
}
