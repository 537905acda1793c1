package evm

import (
	"errors"
	"math/big"
)

// Price is what a transaction offers per gas. Without Tip it is a legacy transaction, and Cap its gas price.
type Price struct {
	Cap, Tip *big.Int
}

// Fees is what the chain asks for per gas now.
type Fees struct {
	Base *big.Int // of the next block; nil where the chain has no EIP-1559
	Tip  *big.Int // what others paid on top; without Base the gas price
}

// First is the offer of a first attempt: it survives base fees that double.
func (f Fees) First() Price { return f.offer(2) }

// Least is the lowest offer that others of the last blocks would not outbid.
func (f Fees) Least() Price { return f.offer(1) }

// offer leaves room for a base fee that grows to so many times what it is.
func (f Fees) offer(times int64) Price {
	if f.Base == nil {
		return Price{Cap: new(big.Int).Set(f.Tip)}
	}

	limit := new(big.Int).Mul(f.Base, big.NewInt(times))

	return Price{Cap: limit.Add(limit, f.Tip), Tip: new(big.Int).Set(f.Tip)}
}

// Enough reports whether an offer gets into the next block.
func (f Fees) Enough(p Price) bool {
	if f.Base == nil {
		return p.Cap.Cmp(f.Tip) >= 0
	}

	return p.Cap.Cmp(f.Base) > 0
}

// ErrCap means that the next offer would exceed what may be paid.
var ErrCap = errors.New("the fee cap is reached")

// Raise is the offer that replaces another one: at least an eighth more of both fees, since nodes
// refuse less than a tenth, and at least what the chain asks for now. With gas for at most budget;
// ErrCap if not even the eighth fits.
func (f Fees) Raise(old Price, gas uint64, budget *big.Int) (Price, error) {
	next, least := f.First(), Price{Cap: eighthMore(old.Cap)}
	next.Tip = nil // a transaction is replaced by one of its own type: pools compare both fees
	if old.Tip != nil {
		// A tip is small beside the base fee, and what a node ignores for its tip would take long to grow
		// by eighths: it doubles, and the cap leaves room for it.
		least.Tip = eighthMore(old.Tip)
		next.Tip = Larger(new(big.Int).Lsh(old.Tip, 1), least.Tip)
		if f.Base != nil {
			next = Fees{f.Base, Larger(f.Tip, next.Tip)}.First()
		}
	}

	next.Cap = Larger(next.Cap, least.Cap)
	next = next.Within(gas, budget)
	if next.Cap.Cmp(least.Cap) < 0 || least.Tip != nil && next.Tip.Cmp(least.Tip) < 0 {
		return Price{}, ErrCap
	}

	return next, nil
}

// eighthMore is 12.5 % more, rounded up, and at least 1 more.
func eighthMore(n *big.Int) *big.Int {
	more := new(big.Int).Add(n, big.NewInt(7))
	more.Rsh(more, 3)
	if more.Sign() == 0 {
		more.SetInt64(1)
	}

	return more.Add(more, n)
}

// Larger returns the larger of two numbers as a copy, which may be changed.
func Larger(a, b *big.Int) *big.Int {
	if a.Cmp(b) < 0 {
		a = b
	}

	return new(big.Int).Set(a)
}

// Smaller returns the smaller of two numbers as a copy, which may be changed.
func Smaller(a, b *big.Int) *big.Int {
	if a.Cmp(b) > 0 {
		a = b
	}

	return new(big.Int).Set(a)
}

// Within is the offer, lowered to what gas may cost at most.
func (p Price) Within(gas uint64, budget *big.Int) Price {
	most := new(big.Int).Div(budget, new(big.Int).SetUint64(gas))
	p.Cap = Smaller(p.Cap, most)
	if p.Tip != nil {
		p.Tip = Smaller(p.Tip, p.Cap)
	}

	return p
}

// Worst is the most that a transaction can cost in fees.
func (p Price) Worst(gas uint64) *big.Int {
	return new(big.Int).Mul(p.Cap, new(big.Int).SetUint64(gas))
}
