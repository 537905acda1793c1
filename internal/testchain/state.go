package testchain

import (
	"context"
	"fmt"
	"math/big"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/rpc"
)

// State is what an escrow says of itself.
type State struct {
	Payer, Payee, Arbiter common.Address
	Amount, ReleaseTime   *big.Int // wei; unix seconds
	Required, Approvals   uint8
	Settled               bool
}

// ReadStates asks escrows for their state as of a block, by eth_call: a second source beside their
// events. The node must still have the state of that block.
func ReadStates(ctx context.Context, node *ethclient.Client, block uint64,
	escrows []common.Address) (map[common.Address]State, error) {
	e := escrowABI
	calls := [][]byte{e.PackPayer(), e.PackPayee(), e.PackArbiter(), e.PackAmount(), e.PackReleaseTime(),
		e.PackApprovalsRequired(), e.PackApprovals(), e.PackSettled()}
	answers := make([]hexutil.Bytes, len(escrows)*len(calls))
	batch := make([]rpc.BatchElem, len(answers))
	for i := range batch {
		to := escrows[i/len(calls)]
		batch[i] = rpc.BatchElem{
			Method: "eth_call", Args: []any{map[string]any{"to": to, "data": hexutil.Bytes(calls[i%len(calls)])},
				hexutil.Uint64(block)}, Result: &answers[i],
		}
	}

	if err := call(ctx, node.Client(), batch); err != nil {
		return nil, fmt.Errorf("ask %d escrows for their state at block %d: %w", len(escrows), block, err)
	}

	states := make(map[common.Address]State, len(escrows))
	for i, escrow := range escrows {
		a := answers[i*len(calls) : (i+1)*len(calls)]
		for j := range a {
			if len(a[j]) != 32 {
				return nil, fmt.Errorf("ask escrow %s for its state: answer %d is %q, not a word", escrow, j, []byte(a[j]))
			}
		}

		word := func(j int) *big.Int { return new(big.Int).SetBytes(a[j]) }
		states[escrow] = State{
			Payer: common.BytesToAddress(a[0]), Payee: common.BytesToAddress(a[1]), Arbiter: common.BytesToAddress(a[2]),
			Amount: word(3), ReleaseTime: word(4),
			Required: a[5][31], Approvals: a[6][31], Settled: a[7][31] == 1,
		}
	}

	return states, nil
}
