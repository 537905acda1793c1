package send

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/big"

	"github.com/ethereum/go-ethereum/common"
)

// View is how far the chain may be read.
type View struct {
	Head   uint64
	Target uint64 // newest block that counts as final, by what the nodes say
	Ready  bool
}

// Block names a branch of the chain: it is the one that this block, and all below it, are on.
type Block struct {
	Number uint64
	Hash   common.Hash
	Time   int64 // Unix seconds; 0: not known. After a rollback, until a block follows, that of a block that is gone
}

// is reports whether a node that shows h at the block's height is on its branch. A block without a hash is on any.
func (b Block) is(h *header) bool { return h != nil && (b.Hash == (common.Hash{}) || h.Hash == b.Hash) }

func (b Block) elsewhere() error {
	return fmt.Errorf("%w than block %d (%s)", ErrBranch, b.Number, b.Hash)
}

// Chain is what a sender needs of the chain. Nodes may lie, lag and forget: an implementation
// checks each answer against the question, and asks another node where one is behind. It may be
// used concurrently.
type Chain interface {
	View() View
	// Changed is closed when View may have changed.
	Changed() <-chan struct{}
	// Latest is the nonce of an account after the newest block. That it is above `before` a node of the branch says.
	Latest(ctx context.Context, account common.Address, before uint64, branch Block) (uint64, error)
	// Look reads an account. With everyone it asks all nodes: for the highest nonces that any knows, and the lowest
	// one after the target.
	Look(ctx context.Context, account common.Address, target uint64, everyone bool) (Look, error)
	// Simulate runs calls at the target, and at the head, where their gas is estimated. Of what fails at one node every
	// other one is asked. ErrBranch: the node that answers is on another branch.
	Simulate(ctx context.Context, target Block, calls []Call) ([]Simulation, error)
	Fees(ctx context.Context) (Fees, error)
	// Receipts are those of transactions that are in blocks up to the target, as nodes of its branch say, which is no
	// proof. Of each set there should be one: a node that has none is no answer, and the next one is asked. ErrBranch:
	// the nodes that answer are on another branch. A target without a hash is of any branch.
	Receipts(ctx context.Context, target Block, sets [][]common.Hash) (map[common.Hash]*Receipt, error)
	// Confirm says which receipts are not of the chain's block, or not what each node gives that has the target;
	// errSilent: one does not say. Of the fees that nodes tell of it takes the highest: what one of them understates
	// would be spent twice.
	Confirm(ctx context.Context, target Block, receipts map[common.Hash]*Receipt) (refuted map[common.Hash]error)
	// Find is an account's transaction with a nonce that is used, in a block of the branch above `after` and up to the
	// target; without a hash: it is proved that there is none; nil: it cannot be known, or is too far below the target.
	Find(ctx context.Context, account common.Address, nonce, after uint64, target Block) (*Transaction, error)
	// Broadcast offers each transaction to every endpoint, and waits for none that hangs. The results, by transaction,
	// are nil where one has taken it, and else what was said, which is for people to read.
	Broadcast(ctx context.Context, raws [][]byte) []error
}

// Look is an account as nodes see it.
type Look struct {
	Latest    uint64 // nonce after the newest block
	Pending   uint64 // nonce after what waits in the pool; 0 where the nodes do not tell, as some never do
	Silent    bool   // everyone was asked, and a node did not answer
	Agreed    bool   // everyone was asked, and each node told the nonce after the target
	Final     uint64 // nonce after the target; 0 if Stateless
	Stateless bool   // no node has the state after the target any more
	Balance   *big.Int
}

// known is the nonce after all that the nodes know.
func (l *Look) known() uint64 { return max(l.Latest, l.Pending) }

// Call is a transaction that is only tried.
type Call struct {
	From, To common.Address
	Data     []byte
	Value    *big.Int
	Cap, Tip *big.Int // per gas, as it will be offered: at the head the call is tried for it; nil: for nothing
	Returns  []byte   // what it has to return; nil: whatever
}

// Simulation is what a call would do.
type Simulation struct {
	Output  []byte
	Gas     uint64
	Reverts *Revert // nil: it succeeds
	Failed  error   // no node could try it; then the rest says nothing
	AtHead  bool    // it was tried at the head, or reverts only there: what makes it so is not final
	// Of what fails. Doubted: not every node says the same of it. Otherwise is what one says with which it does not
	// fail; nil: none.
	Doubted   bool
	Otherwise *Simulation
}

// fails reports whether a call is of no use as it was tried.
func (s *Simulation) fails(c *Call) bool {
	return s.Reverts != nil || s.Gas > maxGas || c.Returns != nil && !bytes.Equal(s.Output, c.Returns)
}

// same reports whether two nodes say the same of a call that fails.
func (s *Simulation) same(other *Simulation) bool {
	return s.AtHead == other.AtHead && bytes.Equal(s.Output, other.Output) &&
		(s.Reverts == nil) == (other.Reverts == nil) && (s.Reverts == nil || *s.Reverts == *other.Reverts)
}

// Receipt of a transaction.
type Receipt struct {
	Hash      common.Hash
	Block     uint64
	BlockHash common.Hash
	Succeeded bool
	FeePaid   *big.Int
	Logs      []Log
}

// Log of a receipt, as nodes write it: who emitted it.
type Log struct {
	Address common.Address `json:"address"`
}

// errSilent means that a node does not say what it makes of another one's answer.
var errSilent = errors.New("not every endpoint answers")

// ErrBranch means that a node is on another branch than the one that is asked about.
var ErrBranch = errors.New("the node is on another branch of the chain")
