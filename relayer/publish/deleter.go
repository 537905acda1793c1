package publish

import (
	"cmp"
	"slices"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// Limits of deletions. A database that is slow gets smaller ones and more time; one that is fast gets larger ones.
const (
	// deleteLimit bounds one deletion, and maxDeleteLimit one of a single row where even that took too long.
	deleteLimit    = 8 * time.Second
	maxDeleteLimit = 2 * time.Minute
	// minDeletePause and maxDeletePause bound the pause after a deletion that failed.
	minDeletePause = 100 * time.Millisecond
	maxDeletePause = 5 * time.Second
)

// deleter has the rows leave the outbox that need not be sent any more.
//
// A row is in waiting or in batch, and in one of them only, from add until a deletion that named it
// has succeeded. One deletion is under way at most, of batch. It belongs to the goroutine of the loop.
type deleter struct {
	run     func(rows []outbox.Sent, limit time.Duration) // deletes in a goroutine of its own, and reports to the loop
	linger  time.Duration
	full    int // rows that are worth a deletion before linger is over
	maxSize int

	waiting []outbox.Sent
	since   time.Time // when the first of waiting came
	batch   []outbox.Sent
	busy    bool // a deletion is under way
	begun   time.Time

	deletionPace
}

// deletionPace is how large the next deletion may be, how long it may take, and when it may begin.
// All of it changes with the outcome of a deletion.
type deletionPace struct {
	size  int // rows
	limit time.Duration
	fails int       // in a row
	pause time.Time // until then
}

func (d *deleter) add(now time.Time, s outbox.Sent) {
	if len(d.waiting) == 0 {
		d.since = now
	}

	d.waiting = append(d.waiting, s)
}

// idle says that everything is deleted, and nothing is under way.
func (d *deleter) idle() bool { return !d.busy && len(d.waiting) == 0 }

// undeleted is how many rows it has.
func (d *deleter) undeleted() int { return len(d.waiting) + len(d.batch) }

// due is when the next deletion is to begin; zero while there is nothing to do, or while one is under way.
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

// begin begins a deletion, of the oldest rows, since neighbours in the table and its
// indexes cost less together.
func (d *deleter) begin(now time.Time) {
	slices.SortFunc(d.waiting, func(a, b outbox.Sent) int { return cmp.Compare(a.Seq, b.Seq) })
	n := min(len(d.waiting), d.size)
	d.batch = slices.Clone(d.waiting[:n])
	d.waiting, d.since = append(d.waiting[:0], d.waiting[n:]...), now
	d.busy, d.begun = true, now
	d.run(d.batch, d.limit)
}

// end takes the outcome of the deletion under way and returns the rows that are gone. What could not
// be deleted waits again.
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

// slower takes a deletion of so many rows that failed.
func (p *deletionPace) slower(now time.Time, rows int, jitter float64) {
	if p.size == 1 {
		p.limit = min(2*p.limit, maxDeleteLimit)
	}

	p.size = max(1, min(p.size, max(rows, 1))/2)
	p.fails++
	p.pause = now.Add(backoff(minDeletePause, maxDeletePause, p.fails, jitter))
}

// faster takes a deletion that succeeded after a while, and whether it was as large as it could be.
func (p *deletionPace) faster(took time.Duration, full bool, maxSize int) {
	p.fails, p.pause = 0, time.Time{}
	if took <= p.limit/4 && full {
		p.size = min(2*p.size, maxSize)
	}

	if took <= deleteLimit/4 {
		p.limit = deleteLimit
	}
}
