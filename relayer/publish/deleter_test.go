package publish

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// database deletes rows at a speed, in simulated time, and ends a deletion that exceeds its limit.
type database struct {
	perRow, perStatement time.Duration
	stalledUntil         time.Time
}

func (db *database) delete(now time.Time, rows []outbox.Sent, limit time.Duration) (took time.Duration, err error) {
	took = db.perStatement + time.Duration(len(rows))*db.perRow + max(0, db.stalledUntil.Sub(now))
	if took > limit {
		return limit, errors.New("statement timeout")
	}

	return took, nil
}

// drainBy deletes rows until none is left and returns the simulated time that it took, and the
// sizes of the deletions that succeeded.
func drainBy(t *testing.T, db *database, rows int) (took time.Duration, sizes []int) {
	now := time.Unix(0, 0)
	start := now
	var outcome error
	d := deleter{size: deleteMost}
	d.run = func(rows []outbox.Sent, limit time.Duration) {
		var took time.Duration
		took, outcome = db.delete(now, rows, limit)
		now = now.Add(took)
	}
	for seq := rows; seq > 0; seq-- {
		d.add(outbox.Sent{ID: outbox.ID{Seq: int64(seq)}})
	}

	last := int64(0)
	for len(d.waiting) > 0 {
		now = maxTime(now, d.due())
		d.begin()
		gone := d.end(now, outcome, 0.5)
		for _, s := range gone {
			require.Greater(t, s.Seq, last, "the oldest first")
			last = s.Seq
		}

		if len(gone) > 0 {
			sizes = append(sizes, len(gone))
		}

		require.Less(t, now.Sub(start), 24*time.Hour, "%d rows are left", len(d.waiting))
	}

	return now.Sub(start), sizes
}

func maxTime(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}

	return a
}

// However slow the database, deletions get there (at worst every other fails), and however long it stood
// still, they grow again.
func TestDeletionsAdapt(t *testing.T) {
	for name, c := range map[string]struct {
		db      database
		rows    int
		atMost  time.Duration
		largest int
	}{
		"fast":              {database{perRow: 10 * time.Microsecond}, 20_000, time.Second, deleteMost},
		"0.25 ms per row":   {database{perRow: 250 * time.Microsecond}, 20_000, 6 * time.Second, deleteMost},
		"100 ms per row":    {database{perRow: 100 * time.Millisecond}, 20_000, 2 * time.Hour, 80},
		"5 s per row":       {database{perRow: 5 * time.Second}, 1_000, 4 * time.Hour, 1},
		"10 s a row":        {database{perRow: 10 * time.Second}, 100, time.Hour, 1},
		"3 s per statement": {database{perStatement: 3 * time.Second}, 20_000, 5 * time.Minute, deleteMost},
		"it stands still for a day": {database{perRow: 10 * time.Microsecond, stalledUntil: time.Unix(20*3600, 0)}, 20_000,
			21 * time.Hour, deleteMost},
	} {
		t.Run(name, func(t *testing.T) {
			took, sizes := drainBy(t, &c.db, c.rows)
			t.Logf("%s in %d deletions of %d to %d rows", took, len(sizes), slices.Min(sizes), slices.Max(sizes))
			require.LessOrEqual(t, took, c.atMost)
			require.LessOrEqual(t, slices.Max(sizes), c.largest)
		})
	}
}
