package send_test

import (
	"bytes"
	"context"
	"io"
	"math"
	"math/big"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
)

// Whatever words a node has for a tip that is too low, and in none: the lowest nonce is outbid until it is mined,
// also when it is a void.
func TestOutbidInWhateverWords(t *testing.T) {
	t.Parallel()
	low := func(raw []byte) bool {
		var tx types.Transaction
		return tx.UnmarshalBinary(raw) != nil || tx.GasTipCap().Cmp(big.NewInt(20_000_000_000)) < 0
	}
	for name, words := range map[string]string{
		"geth":       "transaction underpriced: gas tip cap 1000000, minimum needed 500000000",
		"besu":       "Gas price below configured minimum gas price",
		"besu, base": "Gas price below current base fee",
		"nethermind": "FeeTooLow, EffectivePriorityFeePerGas too low",
		"erigon":     "fee too low",
		"reth":       "transaction underpriced",
		"for good":   "intrinsic gas too low",
		"in none":    "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, node := newFaultyWorld(t, false)
			fault := faults.Fault{Mode: faults.SendRefused, Words: words, Of: low}
			if words == "" {
				fault.Mode = faults.SendForgotten
			}

			dear := node.Inject(fault)
			w.start(func(c *send.Config) { c.BumpBlocks, c.Limits.MaxFee = 1, big.NewInt(1e17) })
			call, void := w.escrow(1, 0), w.escrow(1, 0)
			first := w.accept(w.command(command.Approve, call, nil))
			second := w.accept(w.command(command.Approve, void, nil))
			w.await(second, false, command.Sent)
			w.exec(`update commands set cancel_requested = true where command_id = $1`, second.Hex())
			w.await(first, true, command.Done)
			w.await(second, true, command.Voided)
			require.Positive(t, dear.Hits())
			require.Len(t, w.sent(), 2)
		})
	}
}

// A chain that makes no blocks meanwhile: what is not mined is sent again, and outbid, by time.
func TestSentAgainWithoutBlocks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	deaf := &strictChain{deafChain: &deafChain{Nodes: w.nodes}, w: w}
	w.start(func(c *send.Config) {
		c.Chain, c.ResendEvery, c.BumpAfter = deaf, 20*time.Millisecond, 200*time.Millisecond
	})
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.await(id, true, command.Sent)
	require.Eventually(t, func() bool {
		attempts := w.int(`select count(*) from command_attempts`)
		return attempts >= 2 && int(deaf.broadcasts.Load()) >= attempts+2
	}, patience, 10*time.Millisecond)
	deaf.hears.Store(true)
	w.await(id, true, command.Done)
}

// In flight is what no block has: commands are sent as fast as blocks take them, whatever finality takes.
func TestMinedIsNotInFlight(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	var escrows []common.Address
	for range 7 {
		escrows = append(escrows, w.escrow(1, 0))
	}

	w.stopLedger()
	w.start(func(c *send.Config) { c.Limits.MaxInFlight = 2 })
	var ids []common.Hash
	for _, e := range escrows {
		ids = append(ids, w.accept(w.command(command.Approve, e, nil)))
	}

	require.Eventually(t, func() bool { w.mine(1); return len(w.sent()) == 7 }, patience, 20*time.Millisecond)
	require.Equal(t, 0, w.int(`select count(*) from commands where answered_at is not null`))
	w.watch()
	for _, id := range ids {
		w.await(id, true, command.Done)
	}
}

// A payee that refuses ether takes neither the keeper's budget nor the payer's way out: each such release is tried
// once and given up, and the others get theirs.
func TestKeeperGivesUpWhatCannotSucceed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	chain := w.node.ChainID().Int64()
	var hopeless []common.Address
	due := func(payee common.Address) common.Address {
		e := w.deploy(payee, common.Address{}, 1, 100)
		_, err := w.wallet.Transact(t.Context(), w.node, 0, testchain.Call{To: &e, Data: contracts.NewEscrow().PackApprove()})
		require.NoError(t, err)
		record(t, w.db, chain, e, "approved", w.wallet0())

		return e
	}
	for range 4 {
		hopeless = append(hopeless, due(w.contracts.Factory)) // which takes no ether
	}

	honest := due(w.sender.Address)
	require.NoError(t, w.node.(*testchain.Sim).AdvanceTime(t.Context(), 200*time.Second))
	w.mine(confirmations)
	w.verified(1000)
	w.start(func(c *send.Config) {
		c.Keeper = &send.Keeper{MinAmount: big.NewInt(1), MaxFee: big.NewInt(1e16), DayFees: big.NewInt(2e16),
			Every: 10 * time.Millisecond}
	})
	require.Eventually(t, func() bool {
		w.mine(1)
		return w.int(`select count(*) from commands where requester = 'keeper' and state = 'done' and escrow = $1`,
			text(honest)) == 1
	}, patience, 50*time.Millisecond)
	for _, e := range hopeless {
		w.accept(w.command(command.Refund, e, nil)) // no conflict
	}

	require.LessOrEqual(t, w.int(`select count(*) from commands where requester = 'keeper'`), 3,
		"as many as the day's fees allow at once, and then their payee is left alone")
	require.Len(t, w.sent(), 1)
}

// An account that cannot pay is no fault of a payee: the release is made when there is money again.
func TestKeeperWithoutMoney(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	escrow := w.escrow(1, 100)
	_, err := w.wallet.Transact(t.Context(), w.node, 0,
		testchain.Call{To: &escrow, Data: contracts.NewEscrow().PackApprove()})
	require.NoError(t, err)
	require.NoError(t, w.node.(*testchain.Sim).AdvanceTime(t.Context(), 200*time.Second))
	w.mine(confirmations)
	w.verified(1000)
	w.empty()
	require.Eventually(t, func() bool {
		return w.int(`select next_block from leadership`) == w.head()-confirmations+1
	}, patience, 10*time.Millisecond)
	w.start(func(c *send.Config) {
		c.Keeper = &send.Keeper{MinAmount: big.NewInt(1), MaxFee: big.NewInt(1e16), DayFees: big.NewInt(1e17),
			Every: 10 * time.Millisecond}
	})
	require.Eventually(t, func() bool { // without new blocks: those that are empty lower the base fee
		return w.int(`select count(*) from commands where requester = 'keeper' and code = 'would_revert'`) == 1
	}, patience, 50*time.Millisecond)
	_, err = w.wallet.Transact(t.Context(), w.node, 0, testchain.Call{To: &w.sender.Address, Value: big.NewInt(1e18)})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		w.mineAhead()
		return w.int(`select count(*) from commands where requester = 'keeper' and state = 'done'`) == 1
	}, patience, 50*time.Millisecond)
}

// empty takes nearly all that the sender's account has.
func (w *world) empty() {
	w.t.Helper()
	var balance hexutil.Big
	require.NoError(w.t, w.rpc.CallContext(w.t.Context(), &balance, "eth_getBalance", w.sender.Address, "latest"))
	const gas, fee = 21000, 3e9
	tx, err := types.SignNewTx(w.sender.Key, types.LatestSignerForChainID(w.node.ChainID()), &types.DynamicFeeTx{
		ChainID: w.node.ChainID(), GasTipCap: big.NewInt(1e9), GasFeeCap: big.NewInt(fee), Gas: gas, To: &common.Address{1},
		Value: new(big.Int).Sub(balance.ToInt(), big.NewInt(gas*fee)),
	})
	require.NoError(w.t, err)
	raw, err := tx.MarshalBinary()
	require.NoError(w.t, err)
	require.NoError(w.t, w.rpc.CallContext(w.t.Context(), nil, "eth_sendRawTransaction", hexutil.Bytes(raw)))
	w.mine(confirmations + 1)
}

// What nodes have been seen to do, each alone: a command is sent and answered all the same.
func TestQuirksOfNodes(t *testing.T) {
	t.Parallel()
	padded := func(result string) string { return strings.ReplaceAll(result, `"0x`, `"0x0`) }
	numbers := map[string]bool{"eth_getTransactionCount": true, "eth_getBalance": true, "eth_estimateGas": true,
		"eth_maxPriorityFeePerGas": true}
	for name, rewrite := range map[string]func(method, result string) string{
		"leading zeros": func(method, result string) string {
			switch {
			case numbers[method], method == "eth_feeHistory":
				return padded(result)
			case method == "eth_getTransactionReceipt":
				return strings.NewReplacer(`"status":"0x`, `"status":"0x0`, `"gasUsed":"0x`, `"gasUsed":"0x00`,
					`"logIndex":"0x`, `"logIndex":"0x0`).Replace(result)
			}

			return result
		},
		"negative rewards": func(method, result string) string {
			if method == "eth_feeHistory" {
				return strings.ReplaceAll(result, `[["0x`, `[["-0x`)
			}

			return result
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, node := newFaultyWorld(t, false)
			quirk := node.Inject(faults.Fault{Mode: faults.Rewritten, Rewrite: rewrite})
			w.start(nil)
			w.await(w.accept(w.command(command.Approve, w.escrow(1, 0), nil)), true, command.Done)
			require.Len(t, w.sent(), 1)
			require.Positive(t, quirk.Hits())
		})
	}
}

// What a node lacks stops no sender: the state of blocks as old as the target, as full nodes keep that of 128, and the
// tag pending.
func TestWhatANodeLacks(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]faults.Fault{
		"state of old blocks": {Mode: faults.Stateless, N: math.MaxInt64},
		"pending":             {Mode: faults.Without, Words: "eth_getTransactionCount pending"},
		"pending as a block":  {Mode: faults.Without, Words: "eth_getTransactionCount pending", N: 32602},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, node := newFaultyWorld(t, false)
			lacks := node.Inject(fault)
			w.start(nil)
			w.await(w.accept(w.command(command.Approve, w.escrow(1, 0), nil)), true, command.Done)
			require.Len(t, w.sent(), 1)
			require.Positive(t, lacks.Hits())
		})
	}
}

// C9: a nonce that was adopted and has become final is not waited for again after a takeover, where no node has the
// state by which it would show.
func TestATakeoverWithoutOldStates(t *testing.T) {
	t.Parallel()
	w, node := newFaultyWorld(t, false)
	w.use()
	first, second := w.escrow(1, 0), w.escrow(1, 0)
	node.Inject(faults.Fault{Mode: faults.Stateless, N: math.MaxInt64})
	stop := w.start(nil)
	w.await(w.accept(w.command(command.Approve, first, nil)), true, command.Done)
	stop()
	w.start(nil)
	w.await(w.accept(w.command(command.Approve, second, nil)), false, command.Sent)
}

// An answer that cannot be read, or is one to something else, is no answer: the next endpoint is asked.
func TestWhatCannotBeReadIsAskedElsewhere(t *testing.T) {
	t.Parallel()
	cases := map[string]func(method, result string) string{
		"the receipt of another transaction": func(method, result string) string {
			if method != "eth_getTransactionReceipt" {
				return result
			}

			return regexp.MustCompile(`"transactionHash":"0x....`).ReplaceAllString(result, `"transactionHash":"0x1234`)
		},
	}
	for _, method := range []string{"eth_getBalance", "eth_getTransactionCount", "eth_call", "eth_feeHistory",
		"eth_estimateGas", "eth_getTransactionReceipt"} {
		cases[method] = func(asked, result string) string {
			if asked == method {
				return `"hello"`
			}

			return result
		}
	}

	for name, rewrite := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, node := newFaultyWorld(t, true)
			odd := node.Inject(faults.Fault{Mode: faults.Rewritten, Rewrite: rewrite})
			w.start(nil)
			w.await(w.accept(w.command(command.Approve, w.escrow(1, 0), nil)), true, command.Done)
			require.Len(t, w.sent(), 1)
			require.Positive(t, odd.Hits())
		})
	}
}

// A call that a node refuses in a way that another node might not is that command's matter: others that are tried in
// the same request are sent, and it waits.
func TestARefusalIsOfOneCommand(t *testing.T) {
	t.Parallel()
	w, node := newFaultyWorld(t, false)
	reworded := node.Inject(faults.Fault{Mode: faults.Reworded, Words: "Internal JSON-RPC error."})
	hopeless := w.accept(w.command(command.Refund, w.escrow(1, 0), nil))
	honest := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.start(nil)
	w.await(honest, true, command.Done)
	w.awaitHeld(hopeless, command.CodeReverts)
	require.Len(t, w.sent(), 1)
	require.Positive(t, reworded.Hits())
}

// What goes out again needs nothing of the nodes: where none tells the fees, what a pool has lost is sent as it is.
func TestSentAgainWithoutFees(t *testing.T) {
	t.Parallel()
	w, node := newFaultyWorld(t, false)
	forgets := node.Inject(faults.Fault{Mode: faults.SendForgotten})
	w.start(func(c *send.Config) { c.BumpBlocks = 1 })
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	require.Eventually(t, func() bool { return forgets.Hits() > 0 }, patience, 10*time.Millisecond)
	for _, method := range []string{"eth_feeHistory", "eth_gasPrice"} {
		node.Inject(faults.Fault{Mode: faults.Without, Words: method})
	}

	w.mine(1) // it is to be replaced
	forgets.Remove()
	w.await(id, true, command.Done)
}

// Nor does it need the receipts of what is mined: where no node gives them, the next nonce goes out again all the same.
func TestSentAgainWithoutReceipts(t *testing.T) {
	t.Parallel()
	w, node := newFaultyWorld(t, false)
	one, other := w.escrow(1, 0), w.escrow(1, 0)
	var log *said
	w.start(func(c *send.Config) {
		c.ResendEvery, log = 20*time.Millisecond, listen(c, "sender round failed, retrying")
	})
	first := w.accept(w.command(command.Approve, one, nil))
	w.awaitBroadcast(first)
	refuses := node.Inject(faults.Fault{Mode: faults.Refused, Method: "eth_getTransactionReceipt", Words: "not now"})
	forgets := node.Inject(faults.Fault{Mode: faults.SendForgotten})
	second := w.accept(w.command(command.Approve, other, nil))
	w.await(second, false, command.Sent)
	require.Eventually(t, func() bool { w.mineAhead(); return log.count.Load() > 0 }, patience, 10*time.Millisecond)
	forgets.Remove()
	require.Eventually(t, func() bool { w.mineAhead(); return len(w.sent()) == 2 }, patience, 10*time.Millisecond)
	refuses.Remove()
	for _, id := range []common.Hash{first, second} {
		w.await(id, true, command.Done)
	}
}

// before is a node before the chain's that gets each request as it is changed; nil: never; empty: the connection ends.
func (w *world) before(change func(body []byte) []byte) (url string) {
	w.t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		switch body = change(body); {
		case err != nil || body == nil:
			<-r.Context().Done()
			return
		case len(body) == 0:
			panic(http.ErrAbortHandler)
		}

		answer, err := http.Post(w.node.HTTP(), "application/json", bytes.NewReader(body))
		if err == nil {
			_, _ = io.Copy(rw, answer.Body)
			_ = answer.Body.Close()
		}
	}))
	w.t.Cleanup(server.Close)
	w.t.Cleanup(server.CloseClientConnections)

	return server.URL
}

// hanging is a node before the chain's that never answers a call of one contract, nor what is asked together with it.
func (w *world) hanging(contract common.Address) (url string) { return w.silent(contract, nil) }

// silent is a node before the chain's that does not answer a call of one contract.
func (w *world) silent(contract common.Address, instead []byte) (url string) {
	w.t.Helper()
	to := []byte(`"to":"` + text(contract) + `"`)
	return w.before(func(body []byte) []byte {
		if bytes.Contains(body, to) {
			return instead
		}

		return body
	})
}

// A call that takes longer than a node may, as a payee can have it, is that command's matter too.
func TestACallThatHangsIsOfOneCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	slow := w.escrow(1, 0)
	hopeless := w.accept(w.command(command.Approve, slow, nil))
	honest := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	source := chain.New(chain.Config{URLs: []string{w.hanging(slow)}, ChainID: w.node.ChainID().Uint64(),
		Finality: chain.Confirmations, Confirmations: confirmations, PollInterval: 20 * time.Millisecond,
		Timeout: 2 * time.Second})
	w.run(func(ctx context.Context) error { return source.Run(ctx) })
	nodes := evm.NewNodes(source)
	w.start(func(c *send.Config) { c.Chain = nodes })
	w.await(honest, true, command.Done)
	w.awaitHeld(hopeless, command.CodeReverts)
	require.Len(t, w.sent(), 1)
}
