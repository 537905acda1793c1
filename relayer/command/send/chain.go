package send

import (
	"context"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
)

// Chain is what a sender needs of the chain. Nodes may lie, lag and forget: an implementation
// checks each answer against the question, and asks another node where one is behind. It may be
// used concurrently.
type Chain interface {
	View() evm.View
	// Changed is closed when View may have changed.
	Changed() <-chan struct{}
	// Latest is the nonce of an account after the newest block. That it is above `before` a node of the branch says.
	Latest(ctx context.Context, account common.Address, before uint64, branch evm.Block) (uint64, error)
	// Look reads an account. With everyone it asks all nodes: for the highest nonces that any knows, and the lowest
	// one after the target.
	Look(ctx context.Context, account common.Address, target uint64, everyone bool) (evm.Look, error)
	// Simulate runs calls at the target, and at the head, where their gas is estimated. Of what fails at one node every
	// other one is asked. ErrBranch: the node that answers is on another branch.
	Simulate(ctx context.Context, target evm.Block, calls []evm.Call) ([]evm.Simulation, error)
	Fees(ctx context.Context) (evm.Fees, error)
	// Receipts are those of transactions that are in blocks up to the target, as nodes of its branch say, which is no
	// proof. Of each set there should be one: a node that has none is no answer, and the next one is asked. ErrBranch:
	// the nodes that answer are on another branch. A target without a hash is of any branch.
	Receipts(ctx context.Context, target evm.Block, sets [][]common.Hash) (map[common.Hash]*evm.Receipt, error)
	// Confirm says which receipts are not of the chain's block, or not what each node gives that has the target;
	// errSilent: one does not say. Of the fees that nodes tell of it takes the highest: what one of them understates
	// would be spent twice.
	Confirm(ctx context.Context, target evm.Block, receipts map[common.Hash]*evm.Receipt) (refuted map[common.Hash]error)
	// Find is an account's transaction with a nonce that is used, in a block of the branch above `after` and up to the
	// target; without a hash: it is proved that there is none; nil: it cannot be known, or is too far below the target.
	Find(ctx context.Context, account common.Address, nonce, after uint64, target evm.Block) (*evm.Transaction, error)
	// Broadcast offers each transaction to every endpoint, and waits for none that hangs. The results, by transaction,
	// are nil where one has taken it, and else what was said, which is for people to read.
	Broadcast(ctx context.Context, raws [][]byte) []error
}
