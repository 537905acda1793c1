package endpoint

import (
	"sync"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// span is how many blocks a node is asked for at once. size doubles until something was refused and
// is halved then; after that the space between what was answered and what was refused is halved.
// What was refused is remembered in ceiling and left alone for a while, since each refusal
// costs a request. That is what the node allows; how many blocks make a large answer is another
// matter for each kind of logs: a silent factory may have busy escrows.
type span struct {
	most uint64 // configured

	mu        sync.Mutex
	size      uint64
	ceiling   uint64          // the largest that may be tried: one less than what was refused
	good      uint64          // the largest answered since; size returns to it when a failure was none of the range's
	answered  uint64          // the largest answered, less where the node was too busy for it since
	fit       map[kind]uint64 // blocks whose logs make an answer that is large enough
	left      int             // answers until the ceiling is forgotten
	aloneFail int             // single blocks refused in a row
	told      int             // refusals in a row for another reason than the size
}

const (
	firstSpan = 64
	// Answers after which a refused size may be tried again: providers raise limits, and some refuse
	// for the number of logs. Sooner where the reason stayed open: it may have been another.
	forgetKnown, forgetUnknown = 512, 64
	// Answers with so many logs are large enough; twice as many are too large. A log takes some 600
	// bytes as it comes and 400 decoded, and a backfill holds eight answers: four per watch.
	enoughLogs = 1500
	// closeEnough to what was refused is one part in so many of what was answered.
	closeEnough = 10
	// What a refusal seems to say is believed so often in a row: then it is one of the size, whatever it says.
	believed = 2
	// Single blocks with logs refused in a row, without an answer between them, before a node
	// counts as one without logs.
	unfitAfter = 3
)

func newSpan(most uint64) *span {
	first := min(firstSpan, most)
	return &span{most: most, size: first, ceiling: most, good: first, fit: map[kind]uint64{}}
}

// kind of logs: the first of the topics that a filter wants, and how many it wants.
type kind struct {
	first  common.Hash
	topics int
}

func kindOf(f *Filter) kind {
	if len(f.Topics) == 0 {
		return kind{}
	}

	return kind{f.Topics[0], len(f.Topics)}
}

// now is the size to ask for.
func (s *span) now(kind kind) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return min(s.size, s.fitting(kind))
}

func (s *span) fitting(kind kind) uint64 {
	if fit, ok := s.fit[kind]; ok {
		return fit
	}

	return min(firstSpan, s.most)
}

// fullness is how many answers that are large enough one with so many logs and bytes makes.
func fullness(logs, bytes, enoughBytes int) float64 {
	return max(float64(logs)/enoughLogs, float64(bytes)/float64(enoughBytes))
}

// accepted notes an answer: of so many blocks, and how many answers that are large enough it makes.
func (s *span) accepted(kind kind, size uint64, full float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.aloneFail, s.told = 0, 0
	s.answered = max(s.answered, size)
	if s.left > 0 {
		if s.left--; s.left == 0 {
			s.ceiling = s.most
		}
	}

	if fit := s.fitting(kind); full > 2 && size <= fit || full <= 1 && size >= fit {
		s.fit[kind] = min(max(uint64(float64(size)/max(full, 0.5)), 1), s.most)
	}

	if size >= s.size || s.good > s.ceiling {
		s.good = size
	}

	switch {
	case size < s.size:
	case s.ceiling == s.most:
		s.size = min(2*size, s.ceiling)
	case s.ceiling-min(size, s.ceiling) > size/closeEnough: // nearer than that, a refusal costs more than it gains
		s.size = min(size+(s.ceiling-size+1)/2, s.ceiling)
	}
}

// refused notes that so many blocks were refused, and why; hint is how many would be,
// zero: unknown. It reports whether fewer are worth a try.
func (s *span) refused(size uint64, kind rpc.Kind, hint uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if size <= 1 {
		// One block is refused: it was not the range. What was given up for it comes back.
		s.aloneFail++
		s.size, s.ceiling, s.left = max(s.good, 1), s.most, 0
		return false
	}

	next := max(size/2, 1)
	if s.good < size {
		next = max(next, s.good)
	}

	if hint > 0 && hint < size {
		next = hint
	}

	s.size = min(s.size, next)
	s.ceiling = max(min(s.ceiling, size-1), 1)
	if hint > 0 && hint < size {
		s.ceiling = hint
	}

	s.left = forgetUnknown
	if kind == rpc.RangeTooLarge {
		s.left = forgetKnown
	}

	return true
}

// misread takes a refusal that seems to be for another reason than its size, and reports whether that is
// no longer believed: what was done about it did not help. A limit of the rate passes by waiting, and at
// one block there is no size to doubt.
func (s *span) misread(size uint64, kind rpc.Kind) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if kind == rpc.RateLimited || size <= 1 {
		return false
	}

	s.told++

	return s.told > believed
}

// proven reports whether the node has answered for so many blocks.
func (s *span) proven(size uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return size <= s.answered
}

// spares reports whether a node that was too busy for so many blocks may be asked for as many again, as
// it has answered for them before: it is the rate then, unless that goes on.
func (s *span) spares(size uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if size > s.answered {
		return false
	}

	s.answered /= 2

	return true
}

// unfit reports whether single blocks were refused so often that the node gives logs of none.
func (s *span) unfit() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.aloneFail >= unfitAfter
}
