package chain

import "github.com/ethereum/go-ethereum/common/lru"

// ringSize covers the usual depths of finality by confirmations; below it two endpoints show a block (Source.shown).
const ringSize = 1024

// ring remembers headers by their heights, whoever gave them. Which of them are the chain's, the hash of the parent
// tells that the block above each has: what another endpoint, or a branch that was left, has put there is passed over.
type ring struct{ headers *lru.Cache[uint64, Header] }

func newRing() *ring { return &ring{lru.NewCache[uint64, Header](2 * ringSize)} }

// add remembers headers. One that was proved stays so.
func (r *ring) add(list ...Header) {
	for _, h := range list {
		if had, _ := r.headers.Peek(h.Number); had.Hash != h.Hash || !had.Proved {
			r.headers.Add(h.Number, h)
		}
	}
}

// lacks lists the heights from..to without a header that will do.
func (r *ring) lacks(from, to uint64, do func(Header) bool) (numbers []uint64) {
	for n := from; n <= to; n++ {
		if h, known := r.headers.Get(n); !known || !do(h) {
			numbers = append(numbers, n)
		}
	}

	return numbers
}
