package publish

import (
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

const (
	// readTimeout bounds one reading; one that takes longer is made smaller.
	readTimeout = 10 * time.Second
	// maxReadPause bounds the pause after a reading that failed.
	maxReadPause = 5 * time.Second
	// lanesAtOnce bounds the lanes of one reading by key.
	lanesAtOnce = 500
	// fewRows is what a lane that has got through is read of at least.
	fewRows = 16
)

// reader knows how far the outbox was read, and what is read next and when. It does no input or
// output and keeps no time.
//
// Rows of this instance's slots appear in the order of their seq, since one commit after the other
// writes them. So a pass reads from the start to the end, and then (caughtUp) every row that comes
// is offered, in order. An offer is passed over while a pass is under way, which reads its rows, and
// missed says that one was since the reading under way began: that reading may not show them. seen is
// the highest seq that was read or taken, in this pass or an earlier one: an offer up to there is of
// rows that were read. One reading is under way at most (busy), and it is void if a pass has begun
// meanwhile: something has happened that it may not show.
type reader struct {
	limits *limits
	jitter func() float64
	last   int64 // how far this pass has come
	seen   int64

	caughtUp bool
	missed   bool
	void     bool
	rereadAt time.Time // when a pass begins that nothing called for

	pace
}

// pace is how large a reading may be, and when the next one may begin.
type pace struct {
	busy     bool
	byKey    bool // the last reading was
	rows     int  // of the next page: fewer after a failure
	failures int  // in a row
	notUntil time.Time
}

// readings is what to read next.
type readings int8

const (
	nothing readings = iota
	aPage
	someLanes
)

// readResult is what a reading brought: a page of the outbox, or the rows of some lanes.
type readResult struct {
	err error

	page  []outbox.Found
	limit int

	wants []want // nil: it was a page
	lanes [][]outbox.Found
}

func newReader(l *limits, jitter func() float64, now time.Time) reader {
	return reader{limits: l, jitter: jitter, rereadAt: now.Add(l.rereadEvery), pace: pace{rows: l.pageRows}}
}

// rewind makes the outbox be read again from behind a seq; what is in the window is passed over.
func (r *reader) rewind(last int64) {
	r.last, r.caughtUp, r.void = min(r.last, last), false, r.busy
}

// refresh begins a pass if it is time for one. None is due while a pass is under way, or where it
// would find what is left out on purpose.
func (r *reader) refresh(now time.Time, leftOut bool) {
	if now.Before(r.rereadAt) {
		return
	}

	r.rereadAt = now.Add(r.limits.rereadEvery)
	if r.caughtUp && !leftOut {
		r.rewind(0)
	}
}

// take says whether a row that was offered is new; room, whether there is room for it. Where there
// is none, neither it nor those behind it are taken: they are read.
func (r *reader) take(seq int64, room bool) bool {
	if seq <= r.seen { // it was read before the offer was opened
		return false
	}

	if !r.caughtUp || !room {
		r.notTaken()
		return false
	}

	r.last, r.seen = seq, seq

	return true
}

// notTaken notes that an offer is left to be read.
func (r *reader) notTaken() { r.caughtUp, r.missed = false, true }

// next says what to read, by page and by key in turns where both can be: whether there is room for
// a page, and whether lanes wait to be read.
func (r *reader) next(now time.Time, room int, lanes bool) readings {
	page := !r.caughtUp && room >= r.rows
	switch {
	case r.busy || r.notUntil.After(now):
		return nothing
	case page && (r.byKey || !lanes || room == 0):
		return aPage
	case lanes && room > 0:
		return someLanes
	}

	return nothing
}

// at is when the reader may go on after a failure; zero: nothing keeps it waiting.
func (r *reader) at(now time.Time) time.Time {
	if r.busy || !r.notUntil.After(now) {
		return time.Time{}
	}

	return r.notUntil
}

// begin begins a reading, of a page or of lanes.
func (r *reader) begin(wants []want) readResult {
	r.busy, r.void, r.byKey = true, false, wants != nil
	if wants == nil {
		r.missed = false
	}

	return readResult{limit: r.rows, wants: wants}
}

// end takes the end of a reading, and says whether it is of use.
func (r *reader) end(result *readResult, now time.Time) (useful bool) {
	r.busy = false
	if result.err != nil {
		r.failures++
		r.rows = max(min(fewRows, r.limits.pageRows), r.rows/2)
		r.notUntil = now.Add(backoff(r.limits.firstDelay, maxReadPause, r.failures, r.jitter()))

		return false
	}

	if r.void {
		return false
	}

	r.failures, r.rows = 0, min(2*r.rows, r.limits.pageRows)

	return true
}

// page notes that a page was taken. One that is not full was the last, unless rows were committed since.
func (r *reader) page(result *readResult) {
	if n := len(result.page); n > 0 {
		r.last = result.page[n-1].Seq
		r.seen = max(r.seen, r.last)
	}

	r.caughtUp = len(result.page) < result.limit && !r.missed
}
