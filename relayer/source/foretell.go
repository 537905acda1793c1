package source

import (
	"slices"
	"sync"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
)

// hints are logs that were asked for in the same batch as the head, before it was known whether there is a new block: where there mostly is one, that saves
// a round trip and a request a block. They are used only where they prove themselves against a header of the chain; else the block is read as if
// there were none, and that reading judges the node.
type hints struct {
	mu     sync.Mutex
	filter *Filter // that the head was last read by
	list   []*hint // oldest first
	worth  float64 // share of hints that were used, lately
	rest   int     // looks without hints before they are tried again
}

type hint struct {
	by       *endpoint
	filter   *Filter
	from, to uint64
	hash     common.Hash // of the only block, where it was asked for by hash
	head     Header      // that the same batch told of
	logs     []types.Log
	used     bool
}

const (
	hintsKept = 4
	// A hint that is used saves a request, and one that is not costs one.
	worthwhile = 0.6
	hintRest   = 256
)

func (h *hints) init() { h.worth = 1 }

// note remembers by what filter the newest blocks are read.
func (h *hints) note(f *Filter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.filter = f
}

// wanted is the filter to ask by; nil: none is known, or it does not pay.
func (h *hints) wanted() *Filter {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.worth < worthwhile {
		if h.rest++; h.rest < hintRest {
			return nil
		}
		h.rest, h.worth = 0, (1+worthwhile)/2
	}
	return h.filter
}

// pay says whether hints are in use.
func (h *hints) pay() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.worth >= worthwhile && len(h.list) > 0
}

// judge counts whether a hint was of use. Held: mu.
func (h *hints) judge(used bool) {
	value := 0.
	if used {
		value = 1
	}
	h.worth += (value - h.worth) / 16
}

func (h *hints) add(n *hint) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.list) == hintsKept {
		if !h.list[0].used {
			h.judge(false)
		}
		h.list = h.list[1:]
	}
	h.list = append(h.list, n)
}

func (h *hints) wasted() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.judge(false)
}

func (h *hints) used(n *hint) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !n.used {
		n.used = true
		h.judge(true)
	}
}

func (h *hints) of(k known, f *Filter) *hint {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range slices.Backward(h.list) {
		if n.filter == f && n.from <= k.Number && k.Number <= n.to && (n.hash == common.Hash{} || n.hash == k.Hash) {
			return n
		}
	}
	return nil
}

// foretell is what to ask for together with the head: the logs of the block that a new head will make readable. nil: nothing.
func (s *Source) foretell(e *endpoint) (*call, *hint) {
	depth := uint64(0)
	switch s.cfg.Finality {
	case Latest:
	case Confirmations:
		depth = s.cfg.Confirmations
	default: // those move by epochs
		return nil, nil
	}
	e.mu.Lock()
	head, single, chunk, steps, misses := e.head, e.single, e.chunk, e.tempo.steps, e.tempo.misses
	e.mu.Unlock()
	if single || misses > 1 || head.Hash == (common.Hash{}) || head.Number+1 < depth {
		return nil, nil
	}
	f := s.hints.wanted()
	if f == nil {
		return nil, nil
	}
	queries := f.parts(chunk)
	if len(queries) != 1 {
		return nil, nil
	}
	n := head.Number + 1 - depth
	h := &hint{by: e, filter: f, from: n, to: n}
	where := `"fromBlock":"` + quantity(n) + `","toBlock":"latest"`
	if depth > 0 {
		h.to = min(n+max(steps, 1)-1, head.Number)
		where = `"fromBlock":"` + quantity(n) + `","toBlock":"` + quantity(h.to) + `"`
		if h.to == n {
			k, ok := s.ring.get(n, n)[n]
			if !ok {
				return nil, nil
			}
			h.hash = k.Hash
			where = `"blockHash":"` + k.Hash.Hex() + `"`
		}
	}
	return &call{method: logsMethod, params: "[{" + where + queries[0] + "}]"}, h
}

// foretold keeps what came with a head.
func (s *Source) foretold(c *call, h *hint, head Header, news bool) {
	if c == nil {
		return
	}
	var err error
	if h.logs, err = parseLogs(c.result); err != nil || c.err != nil || !news {
		s.hints.wasted()
		return
	}
	h.head = head
	if s.cfg.Finality == Latest || s.cfg.Confirmations == 0 {
		h.to = head.Number
	}
	s.hints.add(h)
}

// hinted returns a block's logs where a hint has them and proves it: logs by the block's hash, in its bloom filter; or none, if either the block's bloom filter has
// none, or they were asked for by its hash of a node whose head, in the same batch, is a descendant of it.
func (s *Source) hinted(k known, f *Filter) ([]types.Log, *endpoint) {
	h := s.hints.of(k, f)
	if h == nil || h.by.doubtful(s.now()) {
		return nil, nil
	}
	logs := []types.Log{}
	for i := range h.logs {
		if l := h.logs[i]; l.BlockNumber == k.Number {
			logs = append(logs, l)
		}
	}
	if len(logs) == 0 {
		has := s.ring.has(h.head) && h.hash == k.Hash && !suspicious(&k.Bloom, f)
		if !has && (!s.blooms.Load() || mayHold(&k.Bloom, f)) {
			return nil, nil
		}
	}
	if judged(logs, k, f) != nil {
		return nil, nil
	}
	s.hints.used(h)
	return logs, h.by
}
