package publish

import (
	"time"

	"github.com/ethereum/go-ethereum/common"

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
// A pass over the outbox reads from the start to the end. Every row of this instance's slots up to
// last has been looked at in this pass, and every one up to looked in this or an earlier one:
// looked >= last. If caughtUp, what comes behind last comes as an offer, in order; if not, offers
// are not taken, since rows before them have to be read first. One reading is under way at most
// (busy), and it is void if turn has changed meanwhile: something has happened that it may not show.
//
// Readings see the outbox at different times. So once an event's row was seen that has to wait for
// its event to come back from a reorganisation, later readings take no event of that escrow (waiting)
// until another pass from the start begins: it may have come back between two readings, together with
// those behind it. Whoever brings it back, or gives it up, calls for such a pass.
type reader struct {
	limits  *limits
	jitter  func() float64
	last    int64
	looked  int64
	offered int64 // highest seq that was offered, taken or not

	caughtUp        bool
	turn            int
	rereadAt        time.Time // when a pass begins that nothing called for
	retractionsHeld bool      // retractions were seen that wait for the deletion of their event's row
	waiting         map[common.Address]bool
	seen            []common.Address // to wait, in the reading that is being taken

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
	turn int
	err  error

	page    []outbox.Found
	limit   int
	offered int64 // when it began: what was offered by then was committed by then

	wants []want // nil: it was a page
	lanes [][]outbox.Found
}

func newReader(l *limits, jitter func() float64, now time.Time) reader {
	return reader{limits: l, jitter: jitter, rereadAt: now.Add(l.rereadEvery), pace: pace{rows: l.pageRows},
		waiting: map[common.Address]bool{}}
}

// rewind makes the outbox be read again from behind a seq; what is in the window is passed over. A
// reading under way is void: what called for this may have happened after it.
func (r *reader) rewind(last int64) {
	r.last, r.caughtUp = min(r.last, last), false
	r.turn++
	if last == 0 {
		clear(r.waiting)
	}
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
	if !r.caughtUp || seq <= max(r.last, r.looked) { // it was read before the offer was opened
		return false
	}

	if !room {
		r.caughtUp = false
		return false
	}

	r.last, r.looked = seq, seq

	return true
}

// notTaken notes that an offer is left to be read.
func (r *reader) notTaken() { r.caughtUp = false }

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
	r.busy, r.byKey = true, wants != nil
	return readResult{turn: r.turn, limit: r.rows, offered: r.offered, wants: wants}
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

	if result.turn != r.turn {
		return false
	}

	r.failures, r.rows = 0, min(2*r.rows, r.limits.pageRows)

	return true
}

// page notes that a page was taken. One that is not full was the last: everything that was offered
// when its reading began was there to be read, or was left out for a reason.
func (r *reader) page(result *readResult) {
	if n := len(result.page); n > 0 {
		r.last = result.page[n-1].Seq
	}

	if len(result.page) < result.limit {
		r.last = max(r.last, result.offered)
		r.caughtUp = r.offered <= r.last
	}

	r.looked = max(r.looked, r.last)
}

// taken notes that all of a reading was taken.
func (r *reader) taken() {
	for _, escrow := range r.seen {
		r.waiting[escrow] = true
	}

	r.seen = nil
}

// deleted notes that rows were deleted, for which retractions may have waited.
func (r *reader) deleted() {
	if r.retractionsHeld {
		r.retractionsHeld = false
		r.rewind(0)
	}
}
