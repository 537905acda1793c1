package endpoint

import (
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"golang.org/x/sync/semaphore"
)

// limit is how much of one thing a node takes, as its answers and refusals show. A wrong one costs time and never
// truth, since answers are proved. It grows with each answer to as much as is allowed, and falls to half, or to what
// was answered, with each refusal. What was refused is the wall: it is tried again after holds, which is twice as long
// each time that this fails. Its methods may be called concurrently.
type limit struct {
	row
	most float64
	now  func() time.Time

	mu    sync.Mutex
	size  float64
	seen  int     // answers to more than works
	works float64 // the most that was answered: what refuses no more than that has another reason, the first time
	late  float64 // so much was not answered in time, and nothing since; 0: something was
	wall  float64 // 0: none
	holds time.Duration
	until time.Time // when the wall is tried
}

// row is what the limits differ in.
type row struct {
	least   float64
	growth  float64       // by each answer to as much as is allowed, while there is no wall
	first   time.Duration // after which the wall is tried for the first time
	between bool          // what is between an answer and the wall is tried at once
	sure    int           // so many answers to more than is known to work show that it does
	doubt   float64       // how much less works than was refused without a reason, as a share of it; 0: one less
}

// All limits. Rates, and batches at a time, change sooner than what one request may ask for.
var (
	blocksAtOnce    = row{least: 1, growth: 2, first: time.Minute, between: true, doubt: 0.5}
	addressesAtOnce = row{least: 1, growth: 2, first: time.Minute, doubt: 0.5}
	callsAtOnce     = row{least: 1, growth: 2, first: time.Minute, doubt: 0.5}
	batchesAtOnce   = row{least: 1, growth: 2, first: 15 * time.Second, between: true, sure: 4}
	callsPerSecond  = row{least: 0.2, growth: 1.1, first: 15 * time.Second}
)

// closeEnough to the wall is one part in so many of what was answered.
const closeEnough = 10

func newLimit(of row, start, most float64, now func() time.Time) *limit {
	return &limit{row: of, size: start, most: most, now: now}
}

// allowed is how much to ask for.
func (l *limit) allowed() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wall > 0 && !l.now().Before(l.until) {
		return min(l.wall, l.most)
	}

	return l.size
}

// proven reports whether the node has answered for so much.
func (l *limit) proven(n float64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return n <= l.works
}

// answered notes an answer, and how many answers that are large enough it makes: more than one is no reason to ask
// for more, and more than two one to ask for less.
func (l *limit) answered(n, full float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n < l.late {
		l.refuse(l.late, 0)
	}

	l.late = 0
	if n > l.works {
		if l.seen++; l.seen >= l.sure {
			l.works, l.seen = n, 0
		}
	}

	if n >= l.wall {
		l.wall = 0
	}

	switch {
	case full > 2:
		l.size = min(l.size, max(n/full, l.least))
	case full > 1 || n < l.size:
	case l.wall == 0:
		l.size = max(l.size, min(n*l.growth, l.most))
	case l.between && l.wall-n > n/closeEnough:
		l.size = n + (l.wall-n)/2
	}
}

// refused notes a refusal; would is how much the node is known to take then, 0: that is not known.
func (l *limit) refused(n, would float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse(n, would)
}

// tooLate notes that so much was not answered in time. If nothing is answered after it either, less is asked for: the
// node may be busy with what nobody waits for any more. It was too much if less is answered next; a dead node answers
// nothing.
func (l *limit) tooLate(n float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.late > 0 {
		l.size, l.until = max(min(l.size, n/2), l.least), l.now().Add(l.holds)
	}

	l.late = n
}

// refuse is refused. Held: mu.
func (l *limit) refuse(n, would float64) {
	now := l.now()
	switch since := now.Sub(l.until); {
	case since > 2*l.holds: // that is long ago, or the first time
		l.holds = l.first
	case since >= 0:
		l.holds = min(2*l.holds, rememberedFor)
	}

	if would <= 0 || would >= n {
		if would = n / 2; l.works < n {
			would = max(would, l.works)
		}
	}

	l.size = max(min(l.size, would), l.least)
	if l.until = now.Add(l.holds); l.wall == 0 || n < l.wall {
		l.wall = n
	}

	l.works = min(l.works, l.size)
}

// spares reports whether a refusal without a reason is taken for something else, since as much was answered before.
// The next one is not.
func (l *limit) spares(n float64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > l.works {
		return false
	}

	if l.works = n * l.doubt; l.doubt == 0 {
		l.works = n - 1
	}

	return true
}

// span is how many blocks a node is asked for at once, for each kind of logs: how many blocks make a large answer
// differs. A silent factory may have busy escrows.
type span struct {
	most float64 // configured
	now  func() time.Time

	mu    sync.Mutex
	kinds map[kind]*limit

	larger *semaphore.Weighted // is held for a range that is larger than any that was answered
}

const (
	firstSpan = 64
	// Answers with so many logs are large enough; twice as many are too large. A log takes some 600
	// bytes as it comes and 400 decoded, and a backfill holds eight answers: four per watch.
	enoughLogs = 1500
)

// kind of logs: the first of the topics that a filter wants, and how many it wants.
type kind struct {
	first  common.Hash
	topics int
}

func newSpan(most uint64, now func() time.Time) *span {
	return &span{most: float64(most), now: now, kinds: map[kind]*limit{}, larger: semaphore.NewWeighted(1)}
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
	s.of(f).answered(float64(size), full)
}

// refused notes that so many blocks were refused. It reports whether fewer are worth a try.
func (s *span) refused(f *Filter, size uint64) bool {
	if size > 1 {
		s.of(f).refused(float64(size), 0)
		return true
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.kinds) // it was not the range

	return false
}
