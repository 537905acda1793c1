package relayer

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

// standing is a tenure whose watches do not run.
func standing(t *testing.T) *tenure {
	t.Helper()
	r, _ := fresh(t)
	common := watch.Config{Source: r.source, ABI: r.cfg.ABI, Filters: r.filters, Log: r.log, Metrics: r.metrics.watch}
	leader := watch.FactoryConfig{Config: common}
	r.factory, r.past = watch.NewFactoryWatch(leader), watch.NewPastWatch(leader)

	return &tenure{r: r, slots: watch.NewSlotWatch(watch.SlotConfig{Config: common})}
}

// A watch that goes round and stores nothing, with nodes and a database that are well, is told after a
// minute by /readyz, the page, the metric and the report; a stored block ends it.
func TestASilentStandIsTold(t *testing.T) {
	w := standing(t)
	r, at := w.r, time.Unix(1_700_000_000, 0)
	look := func(after time.Duration, cursor int64) fleet.Self {
		i := fleet.Self{Slots: 2520, Cursor: cursor, Target: 9000, Leader: true, FactoryCursor: 9001}
		r.noteProgress(&i, w, at.Add(after))

		return i
	}
	require.True(t, new(look(0, 400)).Ready())
	i := look(time.Minute-time.Nanosecond, 400)
	require.True(t, i.Ready())
	require.Equal(t, at, i.StandingSince)

	i = look(time.Minute, 400)
	require.False(t, i.Ready())
	require.ErrorContains(t, i.Checks()["storing"],
		"the watch of the slots has stored no block since 22:13:20 UTC, though blocks 400 to 9000 are there")
	sight := fleet.Sight{Read: &fleet.Reading{At: at}, Self: &i, Now: at.Add(2 * time.Minute)}
	problems := sight.Judge()
	require.Len(t, problems, 1)
	require.Equal(t, fleet.Standing, problems[0].Kind)
	require.Equal(t, fleet.Critical, problems[0].Severity)

	require.True(t, new(look(time.Hour, 401)).Ready(), "a block is stored")
	require.False(t, new(look(2*time.Hour, 401)).Ready())
	require.True(t, new(look(2*time.Hour, 9001)).Ready(), "there is nothing to store")
	r.noteProgress(&i, nil, at)
	require.True(t, new(look(3*time.Hour, 401)).Ready(), "outside the fleet its slots are the others'")
}

// So is the past of an added factory that cannot be read, or not be stored, by the leader.
func TestAPastThatStandsIsTold(t *testing.T) {
	w := standing(t)
	r, at := w.r, time.Unix(1_700_000_000, 0)
	look := func(after time.Duration, leads bool, pasts ...int64) error {
		list := []registry.Factory{{ID: 1, Start: 1}}
		for _, p := range pasts {
			list = append(list, registry.Factory{Start: 1, Past: p, Until: 500})
		}

		r.followed.Set(list)
		i := fleet.Self{Target: 9000, Leader: leads, FactoryCursor: 9001}
		r.noteProgress(&i, w, at.Add(after))

		return i.Checks()["storing"]
	}
	require.NoError(t, look(0, true, 100, 7))
	require.ErrorContains(t, look(time.Minute, true, 200, 7),
		"watch of the past of a factory has stored no block since 22:13:20")
	require.NoError(t, look(time.Hour, true, 200, 8), "a block is stored")
	require.Error(t, look(2*time.Hour, true, 300, 8))
	require.NoError(t, look(2*time.Hour, true), "all is read")
	require.NoError(t, look(3*time.Hour, true, 8))
	require.NoError(t, look(4*time.Hour, false, 8), "the leader reads it")
}

// A database that refuses what joining writes is one that takes nothing, for as long as joining fails;
// the end of a connection is a matter of the session.
func TestARefusedJoiningIsTheDatabase(t *testing.T) {
	t.Parallel()
	var c condition
	require.NoError(t, c.verdict())
	c.lastLoss.set(errors.New("connection lost"))
	require.NoError(t, c.verdict())
	c.lastLoss.set(&pgconn.PgError{Code: "P0001", Message: "no commits today"})
	require.ErrorContains(t, c.verdict(), "no commits today")
	c.committed.set(&pgconn.PgError{Code: "25006", Message: "read-only"})
	require.ErrorContains(t, c.verdict(), "read-only", "what no instance can write counts first")
}
