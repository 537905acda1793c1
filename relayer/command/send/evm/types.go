package evm

import (
	"bytes"
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

// Known is the nonce after all that the nodes know.
func (l *Look) Known() uint64 { return max(l.Latest, l.Pending) }

// Call is a transaction that is only tried.
type Call struct {
	From, To common.Address
	Data     []byte
	Value    *big.Int
	Cap, Tip *big.Int // per gas, as it will be offered: at the head the call is tried for it; nil: for nothing
	Returns  []byte   // what it has to return; nil: whatever
}

// MaxGas is what one transaction may have (EIP-7825).
const MaxGas = 1 << 24

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
	return s.Reverts != nil || s.Gas > MaxGas || c.Returns != nil && !bytes.Equal(s.Output, c.Returns)
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

// ErrSilent means that a node does not say what it makes of another one's answer.
var ErrSilent = errors.New("not every endpoint answers")

// ErrBranch means that a node is on another branch than the one that is asked about.
var ErrBranch = errors.New("the node is on another branch of the chain")
