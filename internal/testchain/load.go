package testchain

import (
	"context"
	"fmt"
	"math/big"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
)

// Load makes many escrows and events with few transactions. It is to be used by one goroutine at a time.
//
// Create makes real escrows, of the factory. Clone makes what looks the same to a relayer whose
// FACTORY_ADDRESS is Deployment.Load, and emits as many Approved as one likes.
type Load struct {
	node       Node
	deployment Deployment
	wallet     *Wallet
}

// Gas of one thing that Load does, as the nodes estimate it and a little more.
const (
	gasCreate   = 550_000
	gasApprove  = 250_000 // 51,000 but for geth --dev, which has the prices of a fork to come
	gasClone    = 50_000
	gasCall     = 6_000 // of a clone
	gasApproved = 1_800 // one event of a clone
)

var loadABI = contracts.NewLoad()

// OpenLoad sends from the node's last account, as Deploy does. The node should mine on demand.
func OpenLoad(ctx context.Context, n Node, d Deployment) (*Load, error) {
	w, err := OpenWallet(ctx, n.Client(), n.Accounts()[len(n.Accounts())-1])
	if err != nil {
		return nil, err
	}

	return &Load{n, d, w}, nil
}

// Create makes n escrows through the factory, whose payer is the Load contract: EscrowCreated and EscrowDeployed each.
func (l *Load) Create(ctx context.Context, n int) ([]common.Address, error) {
	payee := l.node.Accounts()[0].Address
	receipts, err := l.fill(ctx, n, gasCreate, func(_, n int) []byte {
		// Two approvals are needed, so that approving is all that an approval does.
		return loadABI.PackCreate(l.deployment.Factory, big.NewInt(int64(n)), payee, new(big.Int), 2, common.Address{})
	})

	return announced(receipts, l.deployment.Factory), err
}

// Approve approves escrows of Create: one Approved each, and only once.
func (l *Load) Approve(ctx context.Context, escrows []common.Address) error {
	_, err := l.fill(ctx, len(escrows), gasApprove,
		func(first, n int) []byte { return loadABI.PackApproveEscrows(escrows[first : first+n]) })
	return err
}

// Clone makes n clones: EscrowDeployed of the Load contract each.
func (l *Load) Clone(ctx context.Context, n int) ([]common.Address, error) {
	receipts, err := l.fill(ctx, n, gasClone, func(_,
		n int) []byte {
		return loadABI.PackClone(l.deployment.Noise, big.NewInt(int64(n)))
	})

	return announced(receipts, l.deployment.Load), err
}

// Emit makes each clone emit Approved times times.
func (l *Load) Emit(ctx context.Context, clones []common.Address, times int) error {
	_, err := l.fill(ctx, len(clones), gasCall+uint64(times)*gasApproved, func(first, n int) []byte {
		return loadABI.PackApprove(clones[first:first+n], big.NewInt(int64(times)))
	})

	return err
}

// fill spreads n things, of so much gas each, over transactions as large as they may be, and blocks
// that are half full: the base fee rises by an eighth with each fuller one, and nobody could pay
// for some hundreds.
func (l *Load) fill(ctx context.Context, n int, gas uint64, data func(first, n int) []byte) (all []*types.Receipt,
	err error) {
	var head struct {
		GasLimit string
	}
	if err := l.wallet.rpc.CallContext(ctx, &head, "eth_getBlockByNumber", "latest", false); err != nil {
		return nil, fmt.Errorf("read the head: %w", err)
	}

	limit, ok := new(big.Int).SetString(head.GasLimit, 0)
	if !ok {
		return nil, fmt.Errorf("read the gas limit %q of a block", head.GasLimit)
	}

	const base = 100_000 // of a transaction
	perTx := max(1, int((MaxTxGas-base)/gas))
	perBlock := max(1, int(limit.Uint64()/2/MaxTxGas))
	for first := 0; first < n; {
		var calls []Call
		for len(calls) < perBlock && first < n {
			part := min(perTx, n-first)
			calls = append(calls, Call{To: &l.deployment.Load, Data: data(first, part), Gas: MaxTxGas})
			first += part
		}

		receipts, err := l.wallet.Transact(ctx, l.node, 0, calls...)
		if err != nil {
			return all, fmt.Errorf("make %d of %d: %w", first, n, err)
		}

		all = append(all, receipts...)
	}

	return all, nil
}

// announced are the escrows that the factory announced.
func announced(receipts []*types.Receipt, factory common.Address) (escrows []common.Address) {
	for _, r := range receipts {
		for _, l := range r.Logs {
			if l.Address == factory && eventName(l) == "EscrowDeployed" {
				escrows = append(escrows, common.BytesToAddress(l.Topics[1][:]))
			}
		}
	}

	return escrows
}
