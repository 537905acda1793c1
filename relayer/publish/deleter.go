package publish

import (
	"cmp"
	"slices"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// Limits of deletions. A slow database gets smaller ones and more time; a fast one gets larger
// ones.
const (
	// deleteLimit bounds one deletion; a single row that exceeds it may take up to maxDeleteLimit.
	deleteLimit    = 8 * time.Second
	maxDeleteLimit = 2 * time.Minute
	// minDeletePause and maxDeletePause bound the pause after a failed deletion.
	minDeletePause = 100 * time.Millisecond
	maxDeletePause = 5 * time.Second
)

// deleter deletes the finished rows from the outbox.
//
// A row is either in waiting or in batch, from add until a deletion with that row has succeeded. At
// most one deletion is in flight, of batch. It belongs to the goroutine of the loop.
type deleter struct {
	run     func(rows []outbox.Sent, limit time.Duration) // deletes in a separate goroutine, and reports to the loop
	linger  time.Duration
	full    int // rows from which a deletion begins before linger is over
	maxSize int

	waiting []outbox.Sent
	since   time.Time // when the oldest of waiting was added
	batch   []outbox.Sent
	busy    bool // a deletion is in flight
	begun   time.Time

	deletionPace
}

// deletionPace is the size and the deadline of the next deletion, and when it may begin. All of it
// changes with the outcome of a deletion.
type deletionPace struct {
	size  int // rows
	limit time.Duration
	fails int       // consecutive
	pause time.Time // until then
}

func (d *deleter) add(now time.Time, s outbox.Sent) {
	if len(d.waiting) == 0 {
		d.since = now
	}

	d.waiting = append(d.waiting, s)
}

// idle reports whether everything is deleted.
func (d *deleter) idle() bool { return !d.busy && len(d.waiting) == 0 }

// undeleted is the number of its rows.
func (d *deleter) undeleted() int { return len(d.waiting) + len(d.batch) }

// due is when the next deletion begins; zero while there is none to begin, or one is in flight.
func (d *deleter) due(deletionsAwaited bool) time.Time {
	switch {
	case d.busy || len(d.waiting) == 0:
		return time.Time{}
	case len(d.waiting) >= min(d.full, d.size) || deletionsAwaited:
		return d.pause.Add(1) // past, and not zero
	case d.pause.After(d.since.Add(d.linger)):
		return d.pause
	}

	return d.since.Add(d.linger)
}

// begin begins a deletion of the oldest rows: neighbours in the table and its indexes cost less
// together.
func (d *deleter) begin(now time.Time) {
	slices.SortFunc(d.waiting, func(a, b outbox.Sent) int { return cmp.Compare(a.Seq, b.Seq) })
	n := min(len(d.waiting), d.size)
	d.batch = slices.Clone(d.waiting[:n])
	d.waiting, d.since = append(d.waiting[:0], d.waiting[n:]...), now
	d.busy, d.begun = true, now
	d.run(d.batch, d.limit)
}

// end handles the outcome of the deletion in flight and returns the rows that are gone. The others
// wait again.
func (d *deleter) end(now time.Time, err error, jitter float64) (gone []outbox.Sent) {
	rows, took := d.batch, now.Sub(d.begun)
	d.busy, d.batch = false, nil
	if err != nil {
		d.waiting = append(d.waiting, rows...)
		d.slower(now, len(rows), jitter)

		return nil
	}

	d.faster(took, len(rows) == d.size, d.maxSize)

	return rows
}

// slower adapts to a failed deletion of so many rows.
func (p *deletionPace) slower(now time.Time, rows int, jitter float64) {
	if p.size == 1 {
		p.limit = min(2*p.limit, maxDeleteLimit)
	}

	p.size = max(1, min(p.size, max(rows, 1))/2)
	p.fails++
	p.pause = now.Add(backoff(minDeletePause, maxDeletePause, p.fails, jitter))
}

// faster adapts to a successful deletion; full: it had the size limit's number of rows.
func (p *deletionPace) faster(took time.Duration, full bool, maxSize int) {
	p.fails, p.pause = 0, time.Time{}
	if took <= p.limit/4 && full {
		p.size = min(2*p.size, maxSize)
	}

	if took <= deleteLimit/4 {
		p.limit = deleteLimit
	}
}
