package endpoint

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// span is how many blocks a node is asked for at once, for each kind of logs: how many blocks make a large answer
// differs. A silent factory may have busy escrows.
type span struct {
	most float64 // configured
	now  func() time.Time

	mu    sync.Mutex
	kinds map[kind]*limit

	alone atomic.Int32 // single blocks refused in a row
	told  atomic.Int32 // refusals in a row for another reason than the size
}

const (
	firstSpan = 64
	// Answers with so many logs are large enough; twice as many are too large. A log takes some 600
	// bytes as it comes and 400 decoded, and a backfill holds eight answers: four per watch.
	enoughLogs = 1500
	// What a refusal seems to say is believed so often in a row: then it is one of the size, whatever it says.
	believed = 2
	// Single blocks with logs refused in a row, without an answer between them, before a node
	// counts as one without logs.
	unfitAfter = 3
)

// kind of logs: the first of the topics that a filter wants, and how many it wants.
type kind struct {
	first  common.Hash
	topics int
}

func newSpan(most uint64, now func() time.Time) *span {
	return &span{most: float64(most), now: now, kinds: map[kind]*limit{}}
}

// Span is how many blocks the node is asked for at once, where such logs are wanted.
func (n *Node) Span(f *Filter) uint64 { return uint64(n.span.of(f).allowed()) }

// of is the limit of the logs that a filter wants.
func (s *span) of(f *Filter) *limit {
	var k kind
	if len(f.Topics) > 0 {
		k = kind{f.Topics[0], len(f.Topics)}
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kinds[k] == nil {
		s.kinds[k] = newLimit(blocksAtOnce, min(firstSpan, s.most), s.most, s.now)
	}

	return s.kinds[k]
}

// fullness is how many answers that are large enough one with so many logs and bytes makes.
func fullness(logs, bytes, enoughBytes int) float64 {
	return max(float64(logs)/enoughLogs, float64(bytes)/float64(enoughBytes))
}

// answered notes an answer: of so many blocks, and how many answers that are large enough it makes.
func (s *span) answered(f *Filter, size uint64, full float64) {
	s.alone.Store(0)
	s.told.Store(0)
	s.of(f).answered(float64(size), full)
}

// refused notes that so many blocks were refused. It reports whether fewer are worth a try.
func (s *span) refused(f *Filter, size uint64) bool {
	if size > 1 {
		s.of(f).refused(float64(size), 0)
		return true
	}

	s.alone.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.kinds) // it was not the range

	return false
}

// misread takes a refusal that seems to be for another reason than its size, and reports whether that is
// no longer believed: what was done about it did not help. A limit of the rate passes by waiting, and at
// one block there is no size to doubt.
func (s *span) misread(size uint64, kind rpc.Kind) bool {
	return kind != rpc.RateLimited && size > 1 && s.told.Add(1) > believed
}

// unfit reports whether single blocks were refused so often that the node gives logs of none.
func (s *span) unfit() bool { return s.alone.Load() >= unfitAfter }
