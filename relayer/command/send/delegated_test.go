package send_test

import (
	"math"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/holiman/uint256"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
)

// delegate has the payer send an authorization of the sender's key (EIP-7702): it uses one nonce of the sender, without
// a transaction of it.
func (w *world) delegate(nonce uint64, to common.Address) {
	w.t.Helper()
	id := uint256.MustFromBig(w.node.ChainID())
	authorization, err := types.SignSetCode(w.sender.Key,
		types.SetCodeAuthorization{ChainID: *id, Address: to, Nonce: nonce})
	require.NoError(w.t, err)
	payer := w.node.Accounts()[1]
	var used hexutil.Uint64
	require.NoError(w.t, w.rpc.CallContext(w.t.Context(), &used, "eth_getTransactionCount", payer.Address, "latest"))
	tx, err := types.SignNewTx(payer.Key, types.LatestSignerForChainID(w.node.ChainID()), &types.SetCodeTx{
		ChainID: id, Nonce: uint64(used), GasTipCap: uint256.NewInt(1e9), GasFeeCap: uint256.NewInt(1e11), Gas: 1e6,
		AuthList: []types.SetCodeAuthorization{authorization},
	})
	require.NoError(w.t, err)
	raw, err := tx.MarshalBinary()
	require.NoError(w.t, err)
	require.NoError(w.t, w.rpc.CallContext(w.t.Context(), nil, "eth_sendRawTransaction", hexutil.Bytes(raw)))
	w.mine(1)
	require.EqualValues(w.t, 1, w.receipt(tx.Hash()).Status)
	require.NoError(w.t, w.wallet.Sync(w.t.Context()))
}

// creator deploys code that makes a contract whenever it is called: CREATE uses a nonce of whoever runs it.
func (w *world) creator() common.Address {
	w.t.Helper()
	receipts, err := w.wallet.Transact(w.t.Context(), w.node, 0,
		testchain.Call{Data: common.FromHex("0x645f5f5ff0005f526005601bf3")})
	require.NoError(w.t, err)

	return receipts[0].ContractAddress
}

// C4: a nonce that is used without a transaction of the sender, as EIP-7702 allows, leaves its command with an honest
// end, and the sender goes on.
func TestANonceIsUsedWithoutATransaction(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]bool{"by an authorization": false, "by the account's code": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, startSim(t))
			var nonce uint64
			if code {
				w.delegate(0, w.creator())
				nonce = 1
			}

			deaf := &deafChain{Nodes: w.nodes}
			w.start(func(c *send.Config) { c.Chain = deaf })
			id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
			w.await(id, true, command.Sent)
			require.Equal(t, 1, w.int(`select count(*) from commands where nonce = $1`, int64(nonce)))
			if code {
				_, err := w.wallet.Transact(t.Context(), w.node, 0, testchain.Call{To: &w.sender.Address})
				require.NoError(t, err)
			} else {
				w.delegate(nonce, common.Address{9})
			}

			deaf.hears.Store(true)
			a := w.await(id, true, command.Superseded)
			require.Equal(t, command.CodeForeignNonce, a.Code)
			require.Contains(t, a.Detail, "EIP-7702")
			require.Empty(t, a.Transaction)
			require.Equal(t, w.hash(int(a.Block)).Hex(), a.BlockHash)
			require.Equal(t, 0, w.int(`select count(*) from command_claims`), "it can be asked for again")
			next := w.deploy(w.requester.Address, w.sender.Address, 1, 0) // ether that comes to the account would run its code
			w.await(w.accept(w.command(command.Approve, next, nil)), true, command.Done)
			found, _ := w.audit()
			require.Empty(t, found, "the chain says the same")
		})
	}
}

// counts has a node say the same nonce of every account, after every block.
func counts(node *faults.Node, nonce string) *faults.Injected {
	return node.Inject(faults.Fault{Mode: faults.Rewritten, Rewrite: func(method, result string) string {
		if method == "eth_getTransactionCount" {
			return nonce
		}

		return result
	}})
}

// C4: that a nonce is used without a transaction is no answer while one endpoint says that it is not used, or cannot
// tell.
func TestOneEndpointUsesNoNonce(t *testing.T) {
	t.Parallel()
	for name, forgets := range map[string]bool{"beside a whole one": false, "beside one without old states": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, startSim(t))
			honest, _ := w.faulty()
			if forgets {
				honest.Inject(faults.Fault{Mode: faults.Stateless, N: math.MaxInt64})
			}

			node, source := w.faulty(honest.HTTP())
			deaf := &deafChain{Nodes: evm.NewNodes(source)}
			w.start(func(c *send.Config) { c.Chain = deaf })
			id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
			w.await(id, true, command.Sent)
			lie := counts(node, `"0x1"`)
			require.Eventually(t, func() bool { w.mineAhead(); return lie.Hits() > 100 }, patience, 20*time.Millisecond)
			require.Equal(t, command.Sent, w.answer(id).State)
			lie.Remove()
			deaf.hears.Store(true)
			w.await(id, true, command.Done)
		})
	}
}
