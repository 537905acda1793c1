package publish

import (
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

const (
	// readTimeout bounds one reading; after a longer one the next is smaller.
	readTimeout = 10 * time.Second
	// maxReadPause bounds the pause after a failed reading.
	maxReadPause = 5 * time.Second
	// fewRows is the least number of rows of a page.
	fewRows = 16
)

// reader tracks the position in the outbox, and decides what is read next and when. It performs no
// I/O and has no clock.
//
// Rows of this instance's slots appear in the order of their seq, since one commit after the other
// writes them. So a pass reads from the start to the end, and from then on (caughtUp) every new row
// is offered, in order. An offer during a pass is skipped, because the pass reads its rows; missed
// means that one was skipped since the current reading began, which may lack its rows. seen is the
// highest seq that was read or taken, in this pass or an earlier one: offers up to it are
// duplicates. At most one reading is in flight (busy), and it is void if a pass has begun
// meanwhile: the cause of the new pass may be invisible to it.
type reader struct {
	limits *limits
	jitter func() float64
	last   int64 // position of this pass
	seen   int64

	caughtUp bool
	missed   bool
	again    bool // rows may have come that nobody offers, of any number: another pass follows this one
	void     bool
	rereadAt time.Time // when the next periodic pass begins

	pace
}

// pace is the size of the next reading, and when it may begin.
type pace struct {
	busy     bool
	rows     int // of the next page: fewer after a failure
	failures int // consecutive
	notUntil time.Time
}

// readings is what to read next.
type readings int8

const (
	nothing   readings = iota
	thePlaces          // up to which the log of each slot is sent
	theLog             // a page of it
	aPage              // of the outbox
)

// readResult is the result of a reading.
type readResult struct {
	what  readings
	right outbox.Right // under which it was read
	next  int64        // of the outbox: the next block of the cursor then
	err   error

	sent map[int16]contract.Place
	from int64 // the block behind which log was read
	log  outbox.Page

	page  []outbox.Found
	limit int
}

func newReader(l *limits, jitter func() float64, now time.Time) reader {
	return reader{limits: l, jitter: jitter, rereadAt: now.Add(l.rereadEvery), pace: pace{rows: l.pageRows}}
}

// rewind restarts reading after a seq; rows in the window are skipped.
func (r *reader) rewind(last int64) {
	r.last, r.caughtUp, r.void = min(r.last, last), false, r.busy
}

// refresh begins a periodic pass if it is due, and reports whether it was. It is postponed during a
// pass, and while rows are skipped on purpose.
func (r *reader) refresh(now time.Time, leftOut bool) (due bool) {
	if r.again && r.caughtUp && !r.busy && !leftOut {
		r.again = false
		r.rewind(0)
	}

	if now.Before(r.rereadAt) {
		return false
	}

	r.rereadAt, due = now.Add(r.limits.rereadEvery), r.caughtUp // one pass ends before the next begins
	if r.caughtUp && !leftOut {
		r.rewind(0)
	}

	return due
}

// take reports whether an offered row is new and, given room, accepted. Without room, it and the
// later ones are left to be read.
func (r *reader) take(seq int64, room bool) bool {
	if seq <= r.seen { // it was read before the offer was handled
		return false
	}

	if !r.caughtUp || !room {
		r.notTaken()
		return false
	}

	r.last, r.seen = seq, seq

	return true
}

// notTaken records that an offer is left to be read.
func (r *reader) notTaken() { r.caughtUp, r.missed = false, true }

// next decides what to read: the log first, then a page of the outbox. room is the free space of the window.
func (r *reader) next(now time.Time, room int, log *places) readings {
	switch {
	case r.busy || r.notUntil.After(now):
		return nothing
	case log.unowned:
		return thePlaces
	case room < r.rows:
		return nothing
	case !log.caughtUp:
		return theLog
	case !r.caughtUp:
		return aPage
	}

	return nothing
}

// at is when the reader may continue after a failure; zero: at once.
func (r *reader) at(now time.Time) time.Time {
	if r.busy || !r.notUntil.After(now) {
		return time.Time{}
	}

	return r.notUntil
}

// begin begins a reading.
func (r *reader) begin(what readings) readResult {
	r.busy, r.void, r.missed = true, false, r.missed && what != aPage

	return readResult{what: what, limit: r.rows}
}

// end handles the end of a reading, and reports whether its result is usable.
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

// page handles a page. A partial page is the last one, unless rows were committed meanwhile.
func (r *reader) page(result *readResult) {
	if n := len(result.page); n > 0 {
		r.last = result.page[n-1].Seq
		r.seen = max(r.seen, r.last)
	}

	r.caughtUp = len(result.page) < result.limit && !outbox.Full(result.page) && !r.missed
}
