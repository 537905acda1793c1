package publish

import (
	"cmp"
	"maps"
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

// deleter writes down what became of rows: those that need not be sent any more leave the outbox,
// and what may have been sent and may not raises the doubt of its slot.
//
// A row is in waiting or in batch, and in one of them only, from add until a deletion that named it
// has succeeded; likewise a doubt in doubts or in doubting. One task is under way at most, with
// batch and doubting. It belongs to the goroutine of the loop.
type deleter struct {
	run     func(task) // works in a goroutine of its own, and reports to the loop
	linger  time.Duration
	full    int // rows that are worth a deletion before linger is over
	maxSize int

	waiting  []outbox.Sent
	since    time.Time // when the first of waiting came
	doubts   map[int16]int64
	batch    []outbox.Sent
	doubting map[int16]int64
	busy     bool // a task is under way
	begun    time.Time

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

// task is what the database is to be told in one go: first the doubts.
type task struct {
	doubts map[int16]int64
	rows   []outbox.Sent
	limit  time.Duration // of the deletion
}

func (d *deleter) add(now time.Time, s outbox.Sent) {
	if len(d.waiting) == 0 {
		d.since = now
	}

	d.waiting = append(d.waiting, s)
}

// doubt notes that rows of a slot up to a seq may have been sent.
func (d *deleter) doubt(slot int16, seq int64) {
	if d.doubts == nil {
		d.doubts = map[int16]int64{}
	}

	d.doubts[slot] = max(d.doubts[slot], seq)
}

// doubtful says whether there are doubts that are not written down yet.
func (d *deleter) doubtful() bool { return len(d.doubts) > 0 || len(d.doubting) > 0 }

// doubtfulSlot says the same of one slot.
func (d *deleter) doubtfulSlot(slot int16) bool { return d.doubts[slot] > 0 || d.doubting[slot] > 0 }

// idle says that everything is written down, and nothing is under way.
func (d *deleter) idle() bool { return !d.busy && len(d.waiting) == 0 && !d.doubtful() }

// rest is what has not been written down: of each slot the highest seq that may have been sent,
// although its row is in the outbox. Nothing is under way.
func (d *deleter) rest() map[int16]int64 {
	seqs := map[int16]int64{}
	maps.Copy(seqs, d.doubts)
	for _, s := range d.waiting {
		seqs[s.Slot] = max(seqs[s.Slot], s.Seq)
	}

	return seqs
}

// undeleted is how many rows it has.
func (d *deleter) undeleted() int { return len(d.waiting) + len(d.batch) }

// due is when the next task is to begin; zero while there is nothing to do, or while one is under way.
func (d *deleter) due(deletionsAwaited bool) time.Time {
	switch {
	case d.busy || len(d.waiting) == 0 && len(d.doubts) == 0:
		return time.Time{}
	case len(d.doubts) > 0 || len(d.waiting) >= min(d.full, d.size) || deletionsAwaited:
		return d.pause.Add(1) // past, and not zero
	case d.pause.After(d.since.Add(d.linger)):
		return d.pause
	}

	return d.since.Add(d.linger)
}

// begin begins a task. Of the rows it deletes the oldest, since neighbours in the table and its
// indexes cost less together.
func (d *deleter) begin(now time.Time) {
	slices.SortFunc(d.waiting, func(a, b outbox.Sent) int { return cmp.Compare(a.Seq, b.Seq) })
	n := min(len(d.waiting), d.size)
	d.batch = slices.Clone(d.waiting[:n])
	d.waiting, d.since = append(d.waiting[:0], d.waiting[n:]...), now
	d.doubting, d.doubts = d.doubts, nil
	d.busy, d.begun = true, now
	d.run(task{d.doubting, d.batch, d.limit})
}

// end takes the outcome of the task under way and returns the rows that are gone. What could not be
// written down waits again.
func (d *deleter) end(now time.Time, err error, jitter float64) (gone []outbox.Sent) {
	rows, took := d.batch, now.Sub(d.begun)
	doubting := d.doubting
	d.busy, d.batch, d.doubting = false, nil, nil
	if err != nil {
		d.waiting = append(d.waiting, rows...)
		for slot, seq := range doubting {
			d.doubt(slot, seq)
		}

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
