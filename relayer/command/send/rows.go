package send

import (
	"errors"
	"math/big"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fusion-prime/escrow-relayer/relayer/column"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
)

// account is a sender's row.
type account struct {
	NextNonce   *uint64 // nil: it is to be read from the chain
	State       string
	Stranger    string        // the transaction that it is halted for; empty: none that is named
	Checked     uint64        // the newest block up to which receipts were read
	SpentFees   wei           // today
	SpentValue  wei           // today
	Now         time.Time     // the database's clock
	Due         time.Duration `db:"-"` // until the next waiting command is to be looked at, as load saw it
	LedgerBlock uint64        // the newest final block that the ledger has come to, on its branch
	LedgerHash  string        // empty: none yet
	LedgerTime  int64         // Unix seconds
	Generation  int64         // how often the ledger has rolled back
}

// target is the block by which the chain is judged: answers rest on the branch that the ledger has followed.
func (a *account) target() evm.Block {
	return evm.Block{Number: a.LedgerBlock, Hash: common.HexToHash(a.LedgerHash), Time: a.LedgerTime}
}

// flight is a command with a nonce, and everything that was signed for it.
type flight struct {
	request
	Nonce           uint64
	Gas             uint64
	Reserved        wei // of the day's fees, for this command
	CancelRequested bool
	Code, Detail    string
	Expired         bool      // by the database's clock when it was loaded
	Attempts        []attempt `db:"-"` // oldest first; there is one
}

// attempt is a transaction that was signed for a command.
type attempt struct {
	Nonce   uint64
	Number  int `db:"attempt"`
	Purpose string
	Hash    common.Hash
	Raw     []byte
	Gas     uint64
	FeeCap  wei
	TipCap  wei           // null: a legacy transaction
	Head    uint64        // when it was signed
	Age     time.Duration // since then
}

func (a *attempt) fee() evm.Price { return evm.Price{Cap: a.FeeCap.Int, Tip: a.TipCap.Int} }

const (
	purposeCall = "call"
	purposeVoid = "void"
)

func (f *flight) newest() *attempt { return &f.Attempts[len(f.Attempts)-1] }

// signed is bytes that were signed and are still secret.
type signed struct {
	f       *flight
	attempt attempt
	worst   *big.Int
	why     refusal // of a void
}

func (x *signed) commandID() string { return x.f.CommandID }

// more is what it may cost beyond what is reserved.
func (x *signed) more() *big.Int {
	if x.worst.Cmp(x.f.Reserved.Int) <= 0 {
		return new(big.Int)
	}

	return new(big.Int).Sub(x.worst, x.f.Reserved.Int)
}

// hashes are those of all that was signed for the command.
func (f *flight) hashes() []common.Hash {
	return column.Of(f.Attempts, func(a *attempt) common.Hash { return a.Hash })
}

// begin is a block at which the nonce was not used yet, with a margin for nodes that lag.
func (f *flight) begin() uint64 {
	const margin = 64
	return f.Attempts[0].Head - min(f.Attempts[0].Head, margin)
}

// givenUp is why nothing more is to come of the command than a void; zero: it goes on.
func (f *flight) givenUp() refusal {
	switch {
	case f.voiding() && f.Code != "" && f.Code != command.CodeReorg:
		return refusal{f.Code, f.Detail}
	case f.CancelRequested:
		return refusal{code: command.CodeCancelled}
	case f.Expired || f.voiding():
		return refusal{command.CodeExpired, "its time was over before it was mined"}
	}

	return refusal{}
}

func (f *flight) voiding() bool {
	return slices.ContainsFunc(f.Attempts, func(a attempt) bool { return a.Purpose == purposeVoid })
}

// waiting is a command that has no nonce yet, with what the database knows of its escrow.
type waiting struct {
	request
	Now         time.Time // the database's clock
	Code        string    // what it waits for
	Holds       int       // at how many looks in a row it has
	Registered  bool
	Status      string // of the record; empty: there is none
	Payer       string
	Payee       string
	Arbiter     string
	Amount      wei
	Delay       wei   // in seconds, of the release; null: the deployment does not tell
	ReleaseTime int64 // Unix seconds
	Required    int
	Approvers   []string
	Winner      string // another command that has the claim
	Rival       string // one under way that may make it impossible
	EventTx     string // of the canonical event that has done what the command asks for, or settled the escrow
	EventName   string
	EventBlock  int64 // that it is in
	EventHash   string
}

// wei is an amount as in a numeric column without fraction. Without Int it is null.
type wei struct{ *big.Int }

// ScanNumeric is pgx's.
func (w *wei) ScanNumeric(n pgtype.Numeric) error {
	w.Int = nil
	if !n.Valid {
		return nil
	}

	if n.NaN || n.InfinityModifier != pgtype.Finite || n.Exp < 0 {
		return errors.New("an amount of wei has to be a whole number")
	}

	w.Int = new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n.Exp)), nil)
	w.Mul(w.Int, n.Int)

	return nil
}

// NumericValue is pgx's.
func (w wei) NumericValue() (pgtype.Numeric, error) {
	return pgtype.Numeric{Int: w.Int, Valid: w.Int != nil}, nil
}
