package send_test

import (
	"context"
	"fmt"
	"math/big"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
)

// Requesters take turns: one that asks for much, within its rights, does not keep another one's commands from being
// looked at.
func TestRequestersTakeTurns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	key := testKey(t)
	w.allow(fmt.Sprintf(`{"requesters":[{"address":%q,"allow":[{"sender":%q,"kinds":["approve"],"max_fee":"1000000000000000000"}]},
		{"address":%q,"allow":[{"sender":%[2]q,"kinds":["approve"],"max_fee":"1000000000000000000"}]}]}`,
		w.requester.Address, w.sender.Address, addressOf(key)))
	var flood []*command.Signed
	for n := range 100 {
		flood = append(flood, w.command(command.Approve, common.BigToAddress(big.NewInt(int64(1000+n))), nil))
	}

	w.take(flood...)
	c := w.command(command.Approve, w.escrow(1, 0), nil).Command
	honest, err := c.Sign(key)
	require.NoError(t, err)
	w.accept(honest)
	w.awaitTarget()
	unseen := -1
	w.start(func(c *send.Config) {
		c.Limits.MaxInFlight = 1
		c.Chain = &lateChain{Nodes: w.nodes, happen: func(ctx context.Context) error {
			return w.db.QueryRow(ctx, `select count(*) from commands where holds = 0 and requester = $1`,
				text(w.requester.Address)).Scan(&unseen)
		}}
	})
	w.await(honest.ID(), true, command.Done)
	require.Positive(t, unseen, "it was tried before all of the others had been looked at")
}

// pricedChain asks for prices of choice, and may keep the call with nonce 0 from the nodes.
type pricedChain struct {
	*evm.Nodes
	w       *world
	base    atomic.Int64 // gwei
	without atomic.Bool
}

const gwei = 1_000_000_000

func (c *pricedChain) Fees(context.Context) (evm.Fees, error) {
	return evm.Fees{Base: big.NewInt(c.base.Load() * gwei), Tip: big.NewInt(gwei)}, nil
}

func (c *pricedChain) Broadcast(ctx context.Context, raws [][]byte) []error {
	said := make([]error, len(raws))
	for i, raw := range raws {
		var tx types.Transaction
		if c.without.Load() && tx.UnmarshalBinary(raw) == nil && tx.Nonce() == 0 && *tx.To() != c.w.sender.Address {
			continue
		}

		said[i] = c.Nodes.Broadcast(ctx, [][]byte{raw})[0]
	}

	return said
}

// A nonce whose command cannot pay any more does not hold up those behind it that can: it is voided.
func TestWhatCannotPayIsVoided(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	chain := &pricedChain{Nodes: w.nodes, w: w}
	chain.base.Store(1)
	chain.without.Store(true)
	escrows := []common.Address{w.escrow(1, 0), w.escrow(1, 0), w.escrow(1, 0)}
	w.start(func(c *send.Config) { c.Chain, c.BumpBlocks = chain, 1 })
	poor := w.accept(w.command(command.Approve, escrows[0], func(c *command.Command) { c.MaxFee = big.NewInt(1e15) }))
	w.await(poor, true, command.Sent)
	var rich []common.Hash
	for _, e := range escrows[1:] {
		rich = append(rich, w.accept(w.command(command.Approve, e, nil)))
		w.await(rich[len(rich)-1], true, command.Sent)
	}

	chain.base.Store(20)
	a := w.await(poor, true, command.Voided)
	require.Equal(t, command.CodeUnderpriced, a.Code)
	for _, id := range rich {
		w.await(id, true, command.Done)
	}

	require.Len(t, w.sent(), 3)
	require.Equal(t, 0, w.int(`select count(*) from commands where fee_paid > max_fee`))
	require.Equal(t, 0, w.int(`select count(*) from command_claims where command_id = $1`, poor.Hex()))
}

// What a command may cost has to be enough for the price of now; that it may double is an offer, and no condition.
func TestTheFirstOfferFits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	chain := &pricedChain{Nodes: w.nodes, w: w}
	chain.base.Store(12)
	one, other := w.escrow(1, 0), w.escrow(1, 0)
	w.start(func(c *send.Config) { c.Chain = chain })
	id := w.accept(w.command(command.Approve, one, func(c *command.Command) { c.MaxFee = big.NewInt(36e14) }))
	w.await(id, true, command.Done)
	require.Equal(t, 0, w.int(`select count(*) from command_attempts where gas * fee_cap > 3600000000000000`))
	less := w.accept(w.command(command.Approve, other, func(c *command.Command) { c.MaxFee = big.NewInt(2e15) }))
	require.Eventually(t, func() bool { w.mine(1); return w.answer(less).Code == command.CodeUnderpriced }, patience,
		patience/1000)
	require.Contains(t, w.answer(less).Detail, "gas at 13000000000 wei each, and 2000000000000000 is the most")
	w.exec(`update commands set expires_at = now() where command_id = $1`, less.Hex())
	require.Contains(t, w.await(less, true, command.Expired).Detail, "it waited for: underpriced")
}

// seesThePrice is a contract that refuses ether where the gas has a price: it reverts if tx.gasprice > 0. Its code is
// GASPRICE ISZERO PUSH1 8 JUMPI PUSH0 PUSH0 REVERT JUMPDEST STOP, behind what deploys that.
var seesThePrice = common.FromHex("693a156008575f5ffd5b005f52600a6016f3")

// A simulation carries the price that will be offered: a payee that refuses ether for it costs the keeper nothing, and
// no other one its release.
func TestAPayeeThatSeesThePrice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	receipts, err := w.wallet.Transact(t.Context(), w.node, 0, testchain.Call{Data: seesThePrice, Gas: 200_000})
	require.NoError(t, err)
	greedy := receipts[0].ContractAddress
	due := func(payee common.Address) common.Address {
		e := w.deploy(payee, common.Address{}, 1, 100)
		_, err := w.wallet.Transact(t.Context(), w.node, 0, testchain.Call{To: &e, Data: contracts.NewEscrow().PackApprove()})
		require.NoError(t, err)
		record(t, w.db, w.node.ChainID().Int64(), e, "approved", w.wallet0())

		return e
	}
	for range 6 {
		due(greedy)
	}

	honest := due(w.sender.Address)
	require.NoError(t, w.node.(*testchain.Sim).AdvanceTime(t.Context(), 200*time.Second))
	w.mine(confirmations)
	w.verified(1000)
	w.start(func(c *send.Config) {
		c.Keeper = &send.Keeper{MinAmount: big.NewInt(1), MaxFee: big.NewInt(1e16), DayFees: big.NewInt(3e16),
			Every: 10 * time.Millisecond}
	})
	require.Eventually(t, func() bool {
		w.mine(1)
		return w.int(`select count(*) from commands where requester = 'keeper' and state = 'done' and escrow = $1`,
			text(honest)) == 1
	}, patience, patience/1000)
	require.Len(t, w.sent(), 1)
	require.Equal(t, 0, w.int(`select count(*) from commands where state = 'reverted'`))
	require.Positive(t, w.int(`select count(*) from commands where state = 'refused' and code = 'would_revert'`))
}

// What needs more gas than a transaction may have is not sent with less: it would fail, and cost all of that.
func TestWhatNeedsTooMuchGas(t *testing.T) {
	t.Parallel()
	w, node := newFaultyWorld(t, false)
	node.Inject(faults.Fault{Mode: faults.Rewritten, Rewrite: func(method, result string) string {
		if method == "eth_estimateGas" {
			return `"0x1312d00"`
		}

		return result
	}})
	w.start(nil)
	w.awaitHeld(w.accept(w.command(command.Approve, w.escrow(1, 0), nil)),
		"it needs 20000000 gas, and a transaction may have 16777216")
	require.Empty(t, w.sent())
}
