package send_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/trie"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
)

const halted = "sender halted"

// receiptless has a node say of each transaction that it has no receipt of it, as one that indexes late does.
func receiptless(node *faults.Node) *faults.Injected {
	return node.Inject(faults.Fault{Mode: faults.Rewritten, Rewrite: func(method, result string) string {
		if method == "eth_getTransactionReceipt" {
			return "null"
		}

		return result
	}})
}

// C1: a null receipt is no answer. Another endpoint is asked, and where none has it time passes: nobody takes it for
// the work of somebody else.
func TestANullReceiptIsNoAnswer(t *testing.T) {
	t.Parallel()
	for name, everywhere := range map[string]bool{
		"at the first endpoint, for ever": false, "everywhere, for a while": true,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, node := newFaultyWorld(t, !everywhere)
			nulls := receiptless(node)
			var halts *said
			w.start(func(c *send.Config) { halts = listen(c, halted) })
			var ids []common.Hash
			for range 3 {
				ids = append(ids, w.accept(w.command(command.Approve, w.escrow(1, 0), nil)))
			}

			if everywhere {
				require.Eventually(t, func() bool { w.mine(1); return nulls.Hits() > 40 }, patience, patience/1000)
				require.Equal(t, 0, w.int(`select count(*) from commands where answered_at is not null`))
				nulls.Remove()
			}

			for _, id := range ids {
				w.await(id, true, command.Done)
			}

			require.Positive(t, nulls.Hits())
			require.Zero(t, halts.count.Load())
			require.Len(t, w.sent(), 3)
		})
	}
}

// C1: a nonce that somebody else has used is named in the answer, in the halt and by the audit: transaction and block.
// Nobody has to confirm it, and what follows is carried out once an operator has looked.
func TestAStolenNonceIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	w.start(nil)
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.awaitBroadcast(id)
	w.steal(0)
	a := w.await(id, true, command.Superseded)
	thief := w.sent()[0]
	require.Equal(t, command.CodeForeignNonce, a.Code)
	require.Equal(t, thief.Hex(), a.Transaction)
	require.Equal(t, w.receipt(thief).BlockHash.Hex(), a.BlockHash)
	w.awaitHalt(thief.Hex())
	require.NoError(t, w.adopt(t.Context()))
	w.await(w.accept(w.command(command.Approve, w.escrow(1, 0), nil)), true, command.Done)
	found, _ := w.audit()
	require.Empty(t, found, "the chain says the same")
	w.use()
	w.mine(confirmations)
	require.Eventually(t, func() bool { found, _ = w.audit(); return found[2] == send.FindingForeign }, patience,
		patience/1000)
	require.Contains(t, w.findings[2].Why, w.sent()[2].Hex())
}

// An answer `superseded` is compared with the chain, also where the first endpoint has no receipts.
func TestAuditComparesWhatIsSuperseded(t *testing.T) {
	t.Parallel()
	w, node := newFaultyWorld(t, true)
	stop := w.start(nil)
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.await(id, true, command.Done)
	stop()
	w.exec(`update commands set state = 'superseded', tx_hash = null, block_number = null, block_hash = null`)
	nulls := receiptless(node)
	w.awaitTarget()
	require.Eventually(t, func() bool {
		found, done := w.audit()
		return done.Nonces == 1 && found[0] == send.FindingDiffering
	}, patience, patience/1000)
	require.Positive(t, nulls.Hits())
}

// forger has a node show the blocks that have transactions of an account as blocks of its own making, with others in
// their place, and no receipts.
func forger(t *testing.T, node *faults.Node, account common.Address, others ...*types.Transaction) *faults.Injected {
	from := fmt.Sprintf(`"from":"%s"`, registry.Text(account))
	return node.Inject(faults.Fault{Mode: faults.Rewritten, Rewrite: func(method, result string) string {
		switch {
		case method == "eth_getTransactionReceipt":
			return "null"
		case method != "eth_getBlockByNumber" || !strings.Contains(result, from):
			return result
		}

		var block map[string]any
		var h types.Header
		err := cmp.Or(json.Unmarshal([]byte(result), &block), json.Unmarshal([]byte(result), &h))
		h.TxHash = types.DeriveSha(types.Transactions(others), trie.NewStackTrie(nil))
		block["hash"], block["transactionsRoot"] = h.Hash(), h.TxHash
		block["transactions"] = append(types.Transactions{}, others...)
		forged, again := json.Marshal(block)
		if err = cmp.Or(err, again); err != nil {
			t.Errorf("forge a block: %v", err)
		}

		return string(forged)
	}})
}

// C4: a command whose transaction is mined is not answered `superseded` while nodes index receipts late, though one of
// them shows blocks of its own making: they have no transaction of the account, or one that nobody has mined.
func TestForgedBlocksUseNoNonce(t *testing.T) {
	t.Parallel()
	for name, others := range map[string]int{"without a transaction": 0, "with another one": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, startSim(t))
			var other types.Transaction
			require.NoError(t, other.UnmarshalBinary(w.raw(0, 21000, big.NewInt(5e11))))
			late, _ := w.faulty()
			liar, source := w.faulty(late.HTTP())
			nulls, lies := receiptless(late), forger(t, liar, w.sender.Address, []*types.Transaction{&other}[:others]...)
			w.nodes = evm.NewNodes(source)
			w.start(nil)
			id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
			require.Eventually(t, func() bool {
				w.mineAhead()
				return lies.Hits() > 30 && nulls.Hits() > 20 || w.answer(id).State.Final()
			}, patience, 20*time.Millisecond)
			require.Equal(t, command.Sent, w.answer(id).State)
			nulls.Remove()
			w.await(id, true, command.Done)
		})
	}
}

// C4: a receipt that one endpoint has invented ends no command while another one has the true one.
func TestAnInventedReceiptEndsNothing(t *testing.T) {
	t.Parallel()
	w, node := newFaultyWorld(t, true)
	lie := node.Inject(faults.Fault{Mode: faults.Rewritten, Rewrite: func(method, result string) string {
		if method == "eth_getTransactionReceipt" {
			return strings.Replace(result, `"status":"0x1"`, `"status":"0x0"`, 1)
		}

		return result
	}})
	w.start(nil)
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	require.Eventually(t, func() bool {
		w.mineAhead()
		return lie.Hits() > 100 || w.answer(id).State.Final()
	}, patience, 20*time.Millisecond)
	require.Contains(t, []command.State{command.Sent, command.Done}, w.answer(id).State, "done by the other one's receipt")
	lie.Remove()
	w.await(id, true, command.Done)
}

// C7: what one endpoint understates of a fee is not given back to the day's budget, and what no column takes is no
// receipt.
func TestTheHighestFeeCounts(t *testing.T) {
	t.Parallel()
	for name, price := range map[string]string{"nothing": "0x0", "too much": "0x" + strings.Repeat("f", 64)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, node := newFaultyWorld(t, true)
			field := regexp.MustCompile(`"(effectiveGasPrice|gasUsed)":"0x[0-9a-f]+"`)
			lie := node.Inject(faults.Fault{Mode: faults.Rewritten, Rewrite: func(method, result string) string {
				if method == "eth_getTransactionReceipt" {
					return field.ReplaceAllString(result, `"$1":"`+price+`"`)
				}

				return result
			}})
			w.start(nil)
			id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
			a := w.await(id, true, command.Done)
			require.Positive(t, lie.Hits())
			mined := w.receipt(common.HexToHash(a.Transaction))
			paid := new(big.Int).Mul(mined.EffectiveGasPrice, new(big.Int).SetUint64(mined.GasUsed))
			require.Equal(t, paid.String(), a.FeePaid)
			require.Equal(t, 1, w.int(`select count(*) from senders where spent_fees = $1::numeric`, a.FeePaid))
		})
	}
}

// dreamer tells of a nonce that nobody has used, for a while. One that is beside is not the node that looks ask: it is
// heard where everyone is asked.
type dreamer struct {
	*evm.Nodes
	beside         bool
	dreams, silent atomic.Bool
	looks          atomic.Int64
}

func (c *dreamer) Look(ctx context.Context, account common.Address, target uint64, everyone bool) (evm.Look, error) {
	look, err := c.Nodes.Look(ctx, account, target, everyone)
	c.looks.Add(1)
	heard := everyone || !c.beside
	if heard && c.dreams.Load() {
		look.Pending += 100
	}
	look.Silent = look.Silent || heard && c.silent.Load()

	return look, err
}

// A halt ends when its reason does.
func TestAHaltEndsByItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	chain := &dreamer{Nodes: w.nodes}
	w.start(func(c *send.Config) { c.Chain = chain })
	w.await(w.accept(w.command(command.Approve, w.escrow(1, 0), nil)), true, command.Done)
	chain.dreams.Store(true)
	w.awaitHalt("the chain knows nonces up to 100")
	chain.dreams.Store(false)
	w.await(w.accept(w.command(command.Approve, w.escrow(1, 0), nil)), true, command.Done)
	w.awaitState("active")
}

// An operator's pause lasts until the operator ends it: a halt that ends by itself neither takes its place nor keeps it
// away.
func TestAPauseOutlastsAHalt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	chain := &dreamer{Nodes: w.nodes}
	w.start(func(c *send.Config) { c.Chain = chain })
	w.await(w.accept(w.command(command.Approve, w.escrow(1, 0), nil)), true, command.Done)
	pause := func() error {
		return send.Pause(t.Context(), w.db, w.node.ChainID().Int64(), w.sender.Address, "a stolen key")
	}
	stays := func(dreams bool) {
		chain.dreams.Store(dreams)
		before := chain.looks.Load()
		require.Eventually(t, func() bool { w.mineAhead(); return chain.looks.Load() > before+3 }, patience,
			20*time.Millisecond)
		require.Equal(t, 1, w.int(`select count(*) from senders where state = 'paused' and reason = 'a stolen key'`))
	}
	require.NoError(t, pause())
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	stays(true)
	stays(false)
	require.Len(t, w.sent(), 1)
	require.NoError(t, send.Resume(t.Context(), w.db, w.node.ChainID().Int64(), w.sender.Address))
	w.await(id, true, command.Done)

	chain.dreams.Store(true)
	w.awaitHalt("the chain knows nonces up to")
	require.NoError(t, pause())
	stays(true)
	stays(false)
	w.use() // a transaction that is named is more than a pause
	w.awaitHalt("is used by transaction")
	require.ErrorIs(t, pause(), send.ErrOperation)
}

// A pause in the place of a halt does not end what the halt was for: as long as any node knows of a nonce from
// elsewhere, or one that did says nothing, the sender that goes on halts again.
func TestAPauseEndsNoHalt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	stop := w.start(nil)
	w.await(w.accept(w.command(command.Approve, w.escrow(1, 0), nil)), true, command.Done)
	stop()
	escrow := w.escrow(1, 0)
	chain := &dreamer{Nodes: w.nodes, beside: true}
	chain.dreams.Store(true)
	w.start(func(c *send.Config) { c.Chain = chain })
	again := func() {
		require.NoError(t, send.Pause(t.Context(), w.db, w.node.ChainID().Int64(), w.sender.Address, "lunch"))
		require.NoError(t, send.Resume(t.Context(), w.db, w.node.ChainID().Int64(), w.sender.Address))
	}
	w.awaitHalt("the chain knows nonces up to")
	again()
	id := w.accept(w.command(command.Approve, escrow, nil))
	w.awaitHalt("the chain knows nonces up to")
	chain.silent.Store(true)
	chain.dreams.Store(false)
	again()
	w.awaitHalt("the chain knows nonces up to")
	require.Len(t, w.sent(), 1)
	chain.silent.Store(false)
	w.await(id, true, command.Done)
}

// blindChain has nodes that show no block with its transactions.
type blindChain struct {
	*evm.Nodes
	asked atomic.Int64
}

func (c *blindChain) Find(context.Context, common.Address, uint64, uint64, evm.Block) (*evm.Transaction, error) {
	c.asked.Add(1)
	return nil, errors.New("no node shows blocks with their transactions")
}

// Where a stranger's transaction cannot be found the sender halts without its name, and what is under way is answered.
// Once a node shows it, it is named.
func TestAStrangerThatCannotBeFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	stop := w.start(nil)
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.awaitBroadcast(id)
	stop()
	w.mine(1)
	w.use()
	w.mine(confirmations + 1)
	require.Eventually(t, func() bool {
		return w.int(`select next_block from leadership`) == w.head()-confirmations+1
	}, patience, 10*time.Millisecond)
	blind := &blindChain{Nodes: w.nodes}
	stop = w.start(func(c *send.Config) { c.Chain = blind })
	w.await(id, false, command.Done)
	w.awaitState("halted")
	require.Eventually(t, func() bool { w.mineAhead(); return blind.asked.Load() > 2 }, patience, 20*time.Millisecond)
	stop()
	w.start(nil)
	w.awaitHalt("is used by transaction")
}
