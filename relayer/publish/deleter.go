package publish

import (
	"cmp"
	"slices"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// Limits of deletions.
const (
	// deleteMost bounds the rows of one; after a failure the next has half as many, after a success twice as many.
	deleteMost = 1_000
	// deleteLimit bounds one deletion in time; that of a single row may take up to loneLimit.
	deleteLimit = 8 * time.Second
	loneLimit   = 2 * time.Minute
	// minDeletePause and maxDeletePause bound the pause after a failed deletion.
	minDeletePause = 100 * time.Millisecond
	maxDeletePause = 5 * time.Second
)

// deleter deletes the finished rows from the outbox: those that came while a deletion was in flight with the next one.
//
// A row is either in waiting or in batch, from add until a deletion with that row has succeeded. At
// most one deletion is in flight, of batch. It belongs to the goroutine of the loop.
type deleter struct {
	run func(rows []outbox.Sent, limit time.Duration) // deletes in a separate goroutine, and reports to the loop

	waiting []outbox.Sent
	batch   []outbox.Sent
	busy    bool      // a deletion is in flight
	size    int       // rows of the next one
	fails   int       // consecutive
	pause   time.Time // until then after a failure
}

func (d *deleter) add(s outbox.Sent) { d.waiting = append(d.waiting, s) }

// idle reports whether everything is deleted.
func (d *deleter) idle() bool { return !d.busy && len(d.waiting) == 0 }

// undeleted is the number of its rows.
func (d *deleter) undeleted() int { return len(d.waiting) + len(d.batch) }

// due is when the next deletion begins; zero while there is none to begin, or one is in flight.
func (d *deleter) due() time.Time {
	if d.busy || len(d.waiting) == 0 {
		return time.Time{}
	}

	return d.pause.Add(1) // not zero
}

// begin begins a deletion of the oldest rows: neighbours in the table and its indexes cost less
// together.
func (d *deleter) begin() {
	slices.SortFunc(d.waiting, func(a, b outbox.Sent) int { return cmp.Compare(a.Seq, b.Seq) })
	n, limit := min(len(d.waiting), d.size), deleteLimit
	if n == 1 {
		limit = loneLimit
	}

	d.batch = slices.Clone(d.waiting[:n])
	d.waiting, d.busy = append(d.waiting[:0], d.waiting[n:]...), true
	d.run(d.batch, limit)
}

// end handles the outcome of the deletion in flight and returns the rows that are gone. The others
// wait again.
func (d *deleter) end(now time.Time, err error, jitter float64) (gone []outbox.Sent) {
	rows := d.batch
	d.busy, d.batch = false, nil
	if err != nil {
		d.waiting = append(d.waiting, rows...)
		d.size = max(1, len(rows)/2)
		d.fails++
		d.pause = now.Add(backoff(minDeletePause, maxDeletePause, d.fails, jitter))

		return nil
	}

	d.size, d.fails, d.pause = min(2*d.size, deleteMost), 0, time.Time{}

	return rows
}
