package metrics

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// fresh are the gauges of an instance that knows nothing of itself.
func fresh() (*Gauges, *prometheus.Registry) {
	reg := prometheus.NewRegistry()
	return NewGauges(reg, func() fleet.Self { return fleet.Self{} }, fleet.Build{}), reg
}

// values of all gauges without labels.
func values(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	found := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetGauge() != nil && len(m.GetLabel()) == 0 {
				found[f.GetName()] = m.GetGauge().GetValue()
			}
		}
	}

	return found
}

// What the database said counts for as long as it may be true, and is then unknown rather than frozen.
func TestGaugesOfTheChainGoUnknown(t *testing.T) {
	g, reg := fresh()
	l := &fleet.Reading{At: time.Now()}
	l.Fleet.Slots.Unserved, l.Fleet.Leader = 7, fleet.Leader{Held: true, Epoch: 3}

	g.snapshot.Store(l)
	g.answered.Store(true)
	g.leaderSeen.Store(l.At.UnixNano())
	v := values(t, reg)
	require.InDelta(t, 7, v["relayer_slots_unserved"], 0)

	stale := *l
	stale.At = time.Now().Add(-snapshotLasts - time.Second)
	g.snapshot.Store(&stale)
	require.True(t, math.IsNaN(values(t, reg)["relayer_slots_unserved"]))
	require.InDelta(t, 3, g.elections(), 0, "a counter does not go back")
}

// What the page shows is what pages: of the fleet while it can be read, and of the instance itself always.
func TestProblemsAreThoseOfThePage(t *testing.T) {
	now := time.Now()
	s := &scrape{now: now, instance: fleet.Self{StandingSince: now.Add(-3 * time.Minute), Stuck: errors.New("stuck")},
		snapshot: &fleet.Reading{At: now, Fleet: fleet.Fleet{Problems: []fleet.Problem{
			{Kind: fleet.OldOutbox, Severity: fleet.Warning}, {Kind: fleet.Redundancy, Severity: fleet.Notice}}}}}
	told := func() (all []string) {
		series := 0
		s.problems(func(desc *prometheus.Desc, value float64, labels ...string) {
			require.Equal(t, problem, desc)
			require.Equal(t, fleet.Kinds[labels[0]].Page, labels[2])
			series++
			if value > 0 {
				all = append(all, labels[0]+" "+labels[1])
			}
		})
		require.Equal(t, 2*len(fleet.Kinds), series, "the others are 0: their alerts end at once")

		return all
	}
	require.ElementsMatch(t, []string{"stands_still critical", "old_outbox warning"}, told())
	s.snapshot = nil
	require.ElementsMatch(t, []string{"stands_still critical"}, told())
}

// The age of what may be processed is by the database's clock, which the snapshot told.
func TestAgesAreByTheClockOfTheDatabase(t *testing.T) {
	now := time.Now()
	l := &fleet.Reading{At: now.Add(-3 * time.Second)}
	l.Fleet.At = now.Add(time.Hour)
	s := &scrape{now: now, snapshot: l, instance: fleet.Self{HeadTime: now, TargetTime: now.Add(-time.Hour)}}
	require.InDelta(t, 3603, valueOf(t, s, "relayer_head_age_seconds"), 0.001)
	require.InDelta(t, 7203, valueOf(t, s, "relayer_target_age_seconds"), 0.001)
	s.snapshot = nil
	require.InDelta(t, 3600, valueOf(t, s, "relayer_target_age_seconds"), 0.001, "while the database is silent")
	s.instance.HeadTime = now.Add(time.Minute)
	require.Zero(t, valueOf(t, s, "relayer_head_age_seconds"), "some chains' blocks are ahead of the clock")
	s.instance.TargetTime = time.Unix(0, 0)
	require.True(t, math.IsNaN(valueOf(t, s, "relayer_target_age_seconds")), "a genesis block says nothing")
}

// What is behind is told in the time that the chain took for it: a hundred blocks are 20 minutes of one
// chain and 25 seconds of another.
func TestBehindIsToldInTime(t *testing.T) {
	l := &fleet.Reading{}
	l.Fleet.Chain.FactoryCursor, l.Fleet.Chain.Verified, l.Fleet.Chain.Past = 51, 40, 7
	s := &scrape{snapshot: l, instance: fleet.Self{Cursor: 101, Target: 200, Final: 190}}
	behind := func() (slots, factory, verifier float64) {
		return valueOf(t, s, "relayer_behind_seconds"), valueOf(t, s, "relayer_factory_behind_seconds"),
			valueOf(t, s, "relayer_unverified_seconds")
	}
	require.InDelta(t, 7, valueOf(t, s, "relayer_past_blocks"), 0)
	slots, factory, verifier := behind()
	require.InDelta(t, 1200, slots, 0, "blocks of Ethereum, while none was seen")
	require.InDelta(t, 1800, factory, 0)
	require.InDelta(t, 1800, verifier, 0)

	s.instance.BlockTime = 250 * time.Millisecond
	slots, factory, verifier = behind()
	require.InDelta(t, 25, slots, 0)
	require.InDelta(t, 37.5, factory, 0)
	require.InDelta(t, 37.5, verifier, 0)

	s.instance.Final = 0
	require.Zero(t, valueOf(t, s, "relayer_unverified_seconds"))
	s.snapshot = nil
	require.True(t, math.IsNaN(valueOf(t, s, "relayer_factory_behind_seconds")))
	require.True(t, math.IsNaN(valueOf(t, s, "relayer_unverified_seconds")))
}

// valueOf is a gauge of a scrape.
func valueOf(t *testing.T, s *scrape, name string) float64 {
	t.Helper()
	for _, one := range allGauges {
		if strings.Contains(one.desc.String(), strconv.Quote(name)) {
			return one.value(s)
		}
	}

	require.Fail(t, "there is no gauge "+name)

	return 0
}
