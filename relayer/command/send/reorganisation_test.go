package send_test

import (
	"context"
	"fmt"
	"math/big"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
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
	require.NoError(t, w.node.Reorg(t.Context(), w.head()-before, testchain.Drop))
	a := w.await(id, true, command.Reverted)
	require.Equal(t, command.CodeNoEffect, a.Code)
	require.EqualValues(t, 1, w.receipt(common.HexToHash(a.Transaction)).Status)
	require.Equal(t, 0, w.int(`select count(*) from command_claims`), "it can be asked for again")
}

// doubtfulChain is a chain whose nodes lag.
type doubtfulChain struct {
	*send.Nodes
	behind      atomic.Uint64 // blocks that the view lags
	hashless    atomic.Int64  // times that Hashes knows nothing of the newest block that it is asked for
	receiptless atomic.Int64  // times that Receipts knows nothing
	elsewhere   atomic.Bool   // whether Look is answered by a node on another branch than the rest
	unreached   atomic.Bool   // whether Look is answered by a node that does not have the block that was checked last
	looks       atomic.Int64  // looks that have begun: the second one, after the first has done its work
}

func (c *doubtfulChain) Look(ctx context.Context, account common.Address, target, checked uint64,
	everyone bool) (send.Look, error) {
	c.looks.Add(1)
	look, err := c.Nodes.Look(ctx, account, target, checked, everyone)
	if c.elsewhere.Load() {
		look.TargetHash[0]++
	}

	if c.unreached.Load() {
		look.CheckedHash = common.Hash{}
	}

	return look, err
}

func (c *doubtfulChain) View() send.View {
	v := c.Nodes.View()
	v.Head, v.Target = v.Head-c.behind.Load(), v.Target-min(v.Target, c.behind.Load())
	return v
}

func (c *doubtfulChain) Hashes(ctx context.Context, target send.Block, numbers ...uint64) ([]common.Hash, error) {
	all, err := c.Nodes.Hashes(ctx, target, numbers...)
	if err == nil && len(all) > 0 && c.hashless.Add(-1) >= 0 {
		all[0] = common.Hash{}
	}

	return all, err
}

func (c *doubtfulChain) Receipts(ctx context.Context, target send.Block,
	hashes []common.Hash) ([]*send.Receipt, error) {
	if c.receiptless.Add(-1) >= 0 {
		return make([]*send.Receipt, len(hashes)), nil
	}

	return c.Nodes.Receipts(ctx, target, hashes)
}

// C4: no answer rests on a block above the one by which a reorganisation would be noticed: whoever is
// ended at any moment, and taken over after a reorganisation, has a witness of each of its answers.
func TestNoAnswerWithoutAWitness(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	w.exec(`create function witness() returns trigger language plpgsql as $$ begin
		if new.state = 'done' and new.block_number > (select coalesce(max(checked_block), 0) from senders) then
		    raise exception 'block % has no witness', new.block_number;
		end if;
		return null; end $$`)
	w.exec(`create trigger witness after update on commands for each row execute function witness()`)
	escrows := []common.Address{w.escrow(1, 0), w.escrow(1, 0)}
	w.start(nil)
	for _, e := range escrows {
		id := w.accept(w.command(command.Approve, e, nil))
		w.await(id, false, command.Sent)
		w.await(id, true, command.Done)
	}
}

// C4: as long as the block that was checked last cannot be compared, nothing is answered: a reorganisation of it
// would not be noticed.
func TestNoAnswerWithoutTheComparison(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	chain := &doubtfulChain{Nodes: w.nodes}
	w.start(func(c *send.Config) { c.Chain = chain })
	escrow := w.escrow(1, 0)
	w.awaitLook()
	chain.unreached.Store(true)
	id := w.accept(w.command(command.Approve, escrow, nil))
	w.await(id, false, command.Sent)
	w.awaitBroadcast(id)
	w.mine(confirmations + 1)
	w.awaitTarget()
	looks := chain.looks.Load()
	require.Eventually(t, func() bool { w.mine(1); return chain.looks.Load() >= looks+3 }, patience, 50*time.Millisecond)
	require.Equal(t, command.Sent, w.answer(id).State)

	chain.unreached.Store(false)
	w.await(id, true, command.Done)
}

// C4: answers are taken back also when the first node that is asked after the reorganisation lags
// behind the block that was checked last.
func TestReopenedThoughTheNodeLags(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	stop := w.start(nil)
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.mine(4)
	first := w.await(id, true, command.Done)
	stop()
	require.NoError(t, w.node.Reorg(t.Context(), w.head()-int(first.Block)+1, testchain.Drop))
	head := w.head()
	require.Eventually(t, func() bool { return int(w.nodes.View().Head) >= head }, patience, 10*time.Millisecond)

	chain := &doubtfulChain{Nodes: w.nodes}
	chain.behind.Store(uint64(head - int(first.Block) + 1))
	w.start(func(c *send.Config) { c.Chain = chain })
	require.Eventually(t, func() bool { w.mine(1); return chain.looks.Load() >= 2 }, patience, 50*time.Millisecond)
	chain.behind.Store(0)
	require.Eventually(t, func() bool { w.mine(1); return len(w.replies(id)) >= 2 }, patience, 20*time.Millisecond)
	w.await(id, true, command.Done)
	require.Equal(t, []command.State{command.Done, command.Reopened, command.Done}, w.replies(id))
	require.Len(t, w.sent(), 1)
}

// C4: what a lagging node does not have is no reason to take an answer back.
func TestNotReopenedByALaggingNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	chain := &doubtfulChain{Nodes: w.nodes}
	w.start(func(c *send.Config) { c.Chain = chain })
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	first := w.await(id, true, command.Done)
	w.mine(6)
	w.awaitLook()
	chain.hashless.Store(2)
	// It replaces blocks above the one that the answer rests on, the one that was checked last among them.
	require.NoError(t, w.node.Reorg(t.Context(), w.head()-int(first.Block)-1, testchain.Drop))
	require.Eventually(t, func() bool { w.mine(1); return chain.hashless.Load() < 0 }, patience, 20*time.Millisecond)
	w.mine(1)
	w.awaitLook()
	require.Equal(t, []command.State{command.Done}, w.replies(id))
}

// C4: no answer rests on a receipt of another branch than the one by which a reorganisation would be
// noticed, as when two nodes answer that are not on the same one.
func TestNoAnswerOfAnotherBranch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	chain := &doubtfulChain{Nodes: w.nodes}
	w.start(func(c *send.Config) { c.Chain = chain })
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.awaitBroadcast(id)
	chain.elsewhere.Store(true)
	w.mine(confirmations + 3)
	w.awaitLook()
	looks := chain.looks.Load()
	require.Eventually(t, func() bool { return chain.looks.Load() > looks+1 }, patience, 10*time.Millisecond)
	require.Equal(t, command.Sent, w.answer(id).State)

	chain.elsewhere.Store(false)
	w.await(id, true, command.Done)
	require.Equal(t, []command.State{command.Done}, w.replies(id))
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
	machine, err := faults.NewNode(w.node.HTTP(), w.node.WS(), 1)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, machine.Close()) })
	caller = &balanced{Source: w.source, other: w.follow(machine.HTTP()), method: method}

	return caller, func(depth int) {
		w.t.Helper()
		fault := faults.Fault{Mode: faults.Stayed, N: uint64(w.head() - depth + 1)}
		for number := int(fault.N); number <= w.head(); number++ {
			fault.Branch = append(fault.Branch, w.hash(number))
		}

		machine.Inject(fault)
		caller.away.Store(true)
		require.NoError(w.t, w.node.Reorg(w.t.Context(), depth, testchain.Drop)) // the pool forgets
		w.awaitTarget()
	}
}

// C4: behind the URL is a machine that stayed on a branch which the chain has left, no deeper than the
// confirmations. Everything that it says hangs together, and is not the chain's.
func TestNoAnswerOfAMachineThatStayed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	caller, leave := w.stayed("")
	nodes := send.NewNodes(caller)
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

// C4: nor is a command refused for what only a branch's contract says that the chain has left.
func TestNoRefusalOfAMachineThatStayed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	caller, leave := w.stayed("eth_call")
	nodes := send.NewNodes(caller)
	var log *said
	w.start(func(c *send.Config) { c.Chain, log = nodes, listen(c, "sender round failed, retrying") })
	escrow := w.deploy(common.Address{9}, w.sender.Address, 2, 0)
	w.awaitLook()

	_, err := w.wallet.Transact(t.Context(), w.node, 0, testchain.Call{To: &escrow,
		Data: contracts.NewEscrow().PackChangeArbiter(common.Address{8})})
	require.NoError(t, err)
	w.mine(confirmations - 1)
	leave(confirmations)
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

// C4: what an event has done already, or made impossible, is answered when that event is on the branch that the
// sender has seen. After a reorganisation below finality the watches may follow later than the sender.
func TestDecidedByAnEventOfAnotherBranch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind   command.Kind
		status string
		event  int // its type
		state  command.State
		code   string
	}{
		"done already":        {command.Approve, "approved", 3, command.Already, ""},
		"settled another way": {command.Release, "refunded", 6, command.Refused, command.CodeSettled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, startSim(t))
			elsewhere := &doubtfulChain{Nodes: w.nodes}
			w.start(func(c *send.Config) { c.Chain = elsewhere })
			w.mine(confirmations + 3)
			w.awaitLook()
			escrow, chain, tx := w.escrow(2, 0), w.node.ChainID().Int64(), common.Hash{7}
			record(t, w.db, chain, escrow, c.status, w.sender.Address)
			w.exec(`insert into events (chain_id, block_number, block_time, log_index, writer, type, slot, occurrence, told,
					block_hash, tx_hash, escrow, args)
				values ($1, 2, 0, 0, 1, $5, 0, 0, true, '\x01', $2, $3, $4)`, chain, tx[:], escrow[:],
				fmt.Sprintf(`{"approver":%q}`, w.sender.Address.Hex()), c.event)
			id := w.accept(w.command(c.kind, escrow, nil))
			w.awaitHeld(id, command.CodeReorg)

			hash := w.hash(2)
			elsewhere.hashless.Store(1000) // the node does not have the witness

			w.exec(`update events set block_hash = $1 where tx_hash = $2`, hash[:], tx[:]) // the watches have followed
			holds := func() int { return w.int(`select holds from commands where command_id = $1`, id.Hex()) }
			before := holds()
			require.Eventually(t, func() bool { w.mine(1); return holds() >= before+2 }, patience, 50*time.Millisecond)
			require.Equal(t, command.Held, w.answer(id).State)

			elsewhere.hashless.Store(0)
			a := w.await(id, true, c.state)
			require.Equal(t, c.code, a.Code)
			require.Equal(t, hash.Hex(), a.BlockHash)
			if c.state == command.Already {
				require.Equal(t, tx.Hex()+":0", a.EventID)
			} else {
				require.Empty(t, a.EventID)
			}
		})
	}
}

// C4: an operator's word that a nonce was used by somebody else does not overrule a receipt that comes late.
func TestAbandonedButOurs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	chain := &doubtfulChain{Nodes: w.nodes}
	w.start(func(c *send.Config) { c.Chain = chain })
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.await(id, true, command.Sent)
	w.exec(`update commands set abandoned = true`)
	chain.receiptless.Store(3)
	w.await(id, true, command.Done)
	require.Negative(t, chain.receiptless.Load())
}

// C1, C7: when the day's budget allows no replacement, what pools have forgotten is sent again as it is.
func TestForgottenWithoutBudget(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	w.start(func(c *send.Config) { c.BumpBlocks = 1 })
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.awaitBroadcast(id)
	w.exec(`update senders set spent_fees = 1000000000000000000`)
	require.NoError(t, w.node.Reorg(t.Context(), 1, testchain.Drop)) // the pool forgets
	w.await(id, true, command.Done)
	require.Equal(t, 1, w.int(`select count(*) from command_attempts`))
	require.Equal(t, 1, w.int(`select count(*) from senders where spent_fees <= 1000000000000000000`))
}

// The event_id of an answer is that of the message: with the number that the ledger adds where the
// transaction and log index had another content before, and not before the ledger has stored it.
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
		values ($1, 3, 0, 9, now(), 0, 1, 2, 0, 0, 3, '\x01', $2, $3, '{}')`, chain, hash[:], escrow[:])
	w.mine(confirmations + 3)
	w.awaitLook()
	require.Equal(t, command.Sent, w.answer(id).State, "the event has no id yet")

	r := w.receipt(hash)
	w.exec(`insert into events (chain_id, block_number, block_time, log_index, writer, type, slot, occurrence, told, block_hash, tx_hash, escrow, args)
		values ($1, $2, 0, 0, 1, 2, 0, 1, true, $3, $4, $5, '{}')`, chain, r.BlockNumber.Int64(), r.BlockHash[:], hash[:], escrow[:])
	require.Equal(t, tx+":0:1", w.await(id, true, command.Done).EventID)
}

// Nor is the plain id promised while the ledger may just be storing what was there before a reorganisation
// (seed 5300000005): it was, and its commit came after the look at the events.
func TestEventIDWaitsForTheLedger(t *testing.T) {
	t.Parallel()
	behind := map[string]string{
		"the leader":         `update leadership set next_block = $2 where chain_id = $1 and $3 <> ''`,
		"the slot's owner":   `update cursors set next_block = $2 where chain_id = $1 and $3 <> ''`,
		"a slot without one": `update slot_ownership set owner = null, next_block = $2 where chain_id = $1 and $3 <> ''`,
		"a late escrow": `insert into late_escrows (chain_id, deployed_block, monitored, log_index, slot, address)
			values ($1, 1, $2, 0, 0, bytes($3)) on conflict (chain_id, address) do update set monitored = $2`,
	}
	for who, statement := range behind {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, startSim(t))
			chain, escrow := w.node.ChainID().Int64(), w.escrow(1, 0)
			w.exec(`insert into leadership (chain_id, next_block, start_block, factory, verified_block)
				values ($1, 1000, 0, '', 0)`, chain)
			w.exec(`insert into cursors (chain_id, instance_id, next_block) values ($1, 'a', 1000)`, chain)
			w.exec(`insert into slot_ownership (chain_id, slot, owner, next_block) values ($1, $2, 'a', 0)`, chain,
				partition.Slot(escrow))
			w.exec(statement, chain, 1, registry.Text(escrow))
			w.start(nil)

			id := w.accept(w.command(command.Approve, escrow, nil))
			w.awaitBroadcast(id)
			w.mine(confirmations + 3)
			w.awaitLook()
			w.mine(1)
			w.awaitLook() // so the one before is over
			require.Equal(t, command.Sent, w.answer(id).State, "the ledger has still to come to the block")

			w.exec(statement, chain, 1000, registry.Text(escrow)) // and no new block comes
			done := w.await(id, false, command.Done)
			require.Equal(t, done.Transaction+":0", done.EventID)
		})
	}
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
	require.NoError(t, w.node.Reorg(t.Context(), w.head()-int(first.Block)+1, testchain.Drop))
	w.mine(confirmations + 1)
	require.Eventually(t, func() bool { return len(w.replies(id)) >= 2 }, patience, 20*time.Millisecond)
	w.exec(`update commands set cancel_requested = true`)
	w.await(id, true, command.Done, command.Voided)
	value := map[command.State]int{command.Done: 5, command.Voided: 0}[w.answer(id).State]
	require.Equal(t, value, w.int(`select spent_value::int from senders`))
}
