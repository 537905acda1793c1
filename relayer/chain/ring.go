package chain

import (
	"sync"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
)

// ring remembers the newest headers, each the parent of the next.
type ring struct {
	mu      sync.Mutex
	headers map[uint64]Header
	top     uint64
	owner   *endpoint.Node // whose head is on top
}

func newRing() *ring { return &ring{headers: map[uint64]Header{}} }

// ringSize covers any depth of finality by confirmations.
const ringSize = 1024

// head puts a head on the ring. Another endpoint's that is lower is left out: its node lags.
func (r *ring) head(h Header, n *endpoint.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.Number < r.top && n != r.owner {
		return
	}

	if r.headers[h.Number].Hash == h.Hash && n != r.owner {
		return
	}

	// What is below a gap cannot be compared; the reader that fills the gap compares it.
	if parent, ok := r.headers[h.Number-1]; ok && parent.Hash != h.Parent {
		clear(r.headers)
	}

	r.headers[h.Number] = h
	for number := range r.headers {
		if number > h.Number || number+ringSize < h.Number {
			delete(r.headers, number)
		}
	}

	r.top, r.owner = h.Number, n
}

// get returns the headers that are known of from..to.
func (r *ring) get(from, to uint64) map[uint64]Header {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := map[uint64]Header{}
	for n := from; n <= to; n++ {
		if k, ok := r.headers[n]; ok {
			found[n] = k
		}
	}

	return found
}

// fill adds headers that were read, below the top.
func (r *ring) fill(list []Header) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range list {
		had, ok := r.headers[k.Number]
		better := !ok || had.Hash == k.Hash && k.Proved // what came before the chain was known to hash
		if better && k.Number < r.top && k.Number+ringSize >= r.top {
			r.headers[k.Number] = k
		}
	}
}

// drop forgets everything: what was remembered turned out to be on no chain.
func (r *ring) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.headers)
	r.top = 0
}
