package endpoint

import (
	"sync"
	"time"
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
