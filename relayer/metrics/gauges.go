package metrics

import (
	"cmp"
	"context"
	"errors"
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// Gauges are the metrics of the instance, and of the fleet as the instance sees it. A package that
// measures its work registers those metrics itself.
//
// Each value is computed at the scrape from what the instance knows then, so it is current, and it exists from New on,
// before any database or node has answered. What only the database knows is as old as the last snapshot. Once that is
// older than snapshotLasts, the value is unknown (NaN, which matches no comparison of an alert) instead of frozen.
//
// Facts that must outlive their process are points in time rather than ages: an alert compares the
// newest one of any instance with its clock. So the series of a process that is gone only grows
// old, whether or not the monitoring system marks it as stale.
type Gauges struct {
	own           func() fleet.Self
	sessionLosses prometheus.Counter

	// The rest is atomic. Follow and Answers write it; a scrape of the leader writes leaderSeen too.
	pool                     atomic.Pointer[pgxpool.Pool]  // nil before Follow
	snapshot                 atomic.Pointer[fleet.Reading] // the last successful one; nil: none so far
	leaderSeen, databaseSeen atomic.Int64                  // moments in unix nanoseconds; 0: never
	answered                 atomic.Bool                   // the last verdict on the database was good
}

// snapshotLasts is how long a snapshot stays valid without a later one.
var snapshotLasts = fleet.LimitDatabase.Behind

// scrape is the input of one scrape: one moment for all gauges. It is constant.
type scrape struct {
	now      time.Time
	instance fleet.Self
	leader   bool
	snapshot *fleet.Reading // nil: unknown
	answered bool

	leaderSeen, databaseSeen time.Time // zero: never
}

// gauge is one metric, with no labels except the fleet's.
type gauge struct {
	desc  *prometheus.Desc
	value func(*scrape) float64
}

func newGauge(name, help string, value func(*scrape) float64) gauge {
	return gauge{describe(name, help), value}
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	elections = describe("leader_election_count", "Changes of leader since the database was made.")
	problem   = describe("relayer_problem", "1 while the page shows a problem of this kind and severity.", "kind", "severity",
		"runbook")
	connections = describe("relayer_db_connections", "Connections of the pool by state.", "state")
)

// The gauges of an instance are about itself. Those of the chain come from the database, and every
// instance reports the same values.
var allGauges = []gauge{
	newGauge("relayer_clock_timestamp_seconds",
		"What the clock of the instance said at the scrape. A series whose value is old is of a process that is gone.",
		func(s *scrape) float64 { return unix(s.now) }),
	newGauge("relayer_is_leader", "1 while this instance watches the factory.",
		func(s *scrape) float64 { return yes(s.leader) }),
	newGauge("relayer_joined", "1 while this instance is a member of the fleet: its session holds its lock.",
		func(s *scrape) float64 { return yes(s.instance.Joined) }),
	newGauge("relayer_last_heartbeat_age", "Seconds since this instance last wrote its heartbeat, or since it started.",
		func(s *scrape) float64 { return s.now.Sub(s.instance.LastHeartbeat).Seconds() }),
	newGauge("relayer_database_up", "1 while the database answers this instance and takes what it writes.",
		func(s *scrape) float64 { return yes(s.answered) }),
	newGauge("relayer_database_seen_timestamp_seconds", "When the database last answered this instance and took what it writes; 0: never.",
		func(s *scrape) float64 { return unix(s.databaseSeen) }),
	newGauge("relayer_leader_seen_timestamp_seconds", "When this instance last led or saw that somebody leads; 0: never.",
		func(s *scrape) float64 { return unix(s.leaderSeen) }),
	newGauge("relayer_node_up", "1 while the chain, and the blocks of its slots, can be read and the head moves.",
		func(s *scrape) float64 { return yes(s.instance.Node == nil) }),
	newGauge("relayer_believed", "1 while which blocks this instance processes is one endpoint's word.",
		func(s *scrape) float64 { return yes(s.instance.Trust == string(chain.Believed)) }),
	ofInstance("relayer_head_block", "Newest block of this instance's node.",
		func(i *fleet.Self) int64 { return i.Head }),
	ofInstance("relayer_target_block", "Newest block that may be processed.",
		func(i *fleet.Self) int64 { return i.Target }),
	ofInstance("relayer_final_block", "Newest block that the chain calls final.",
		func(i *fleet.Self) int64 { return i.Final }),
	ofInstance("relayer_cursor_block", "Next block of this instance's slots; 0 while it holds none.",
		func(i *fleet.Self) int64 { return i.Cursor }),
	ofInstance("relayer_lag_blocks", "Blocks that may be processed and are not, of this instance's slots.",
		(*fleet.Self).Lag),
	newGauge("relayer_behind_seconds", "How long the chain took for the blocks of relayer_lag_blocks.",
		func(s *scrape) float64 { return s.instance.Took(s.instance.Lag()).Seconds() }),
	newGauge("relayer_head_age_seconds", "Age of the newest block of this instance's node, by the database's clock.",
		func(s *scrape) float64 { return s.ageOf(s.instance.HeadTime) }),
	newGauge("relayer_target_age_seconds", "Age of the newest block that may be processed, by the database's clock.",
		func(s *scrape) float64 { return s.ageOf(s.instance.TargetTime) }),
	ofInstance("relayer_slots_owned", "Slots that this instance serves.",
		func(i *fleet.Self) int { return i.Slots }),
	ofInstance("relayer_slots_adopted", "Slots that this instance serves without preferring them.",
		func(i *fleet.Self) int { return i.Adopted }),

	ofChain("total_active_instances", "Instances of the chain that are alive.", (*fleet.Fleet).Live),
	ofChain("total_escrows_registered", "Escrows in the registry that are on the chain.",
		func(f *fleet.Fleet) int64 { return f.Escrows.Registered() }),
	ofChain("relayer_factory_cursor_block", "Next block of the factory watch.",
		func(f *fleet.Fleet) int64 { return f.Chain.FactoryCursor }),
	ofChain("relayer_past_blocks", "Blocks of the pasts of added factories that are still to be read.",
		func(f *fleet.Fleet) int64 { return f.Chain.Past }),
	ofChain("relayer_verified_block", "Newest block up to which everything was read twice and is stored.",
		func(f *fleet.Fleet) int64 { return f.Chain.Verified }),
	ofChain("relayer_slots_unserved", "Slots that nobody alive serves, of the chain.",
		func(f *fleet.Fleet) int { return f.Slots.Unserved }),
	ofChain("relayer_outbox_messages", "Messages that Pub/Sub has not acknowledged yet, of the chain.",
		func(f *fleet.Fleet) int64 { return f.Outbox.Messages }),
	ofChain("relayer_outbox_oldest_age_seconds", "Age of the oldest of them.",
		func(f *fleet.Fleet) float64 { return f.Outbox.OldestAge.Seconds() }),
	newGauge("relayer_factory_lag_blocks", "Blocks that the factory watch is behind the target.", (*scrape).factoryLag),
	newGauge("relayer_factory_behind_seconds", "How long the chain took for the blocks of relayer_factory_lag_blocks.",
		func(s *scrape) float64 { return s.factoryLag() * s.instance.Took(1).Seconds() }),
	newGauge("relayer_unverified_seconds", "How long the chain took for the final blocks that were not read twice yet.",
		func(s *scrape) float64 {
			if s.snapshot == nil {
				return math.NaN()
			}

			return s.instance.Unverified(s.snapshot.Fleet.Chain.Verified).Seconds()
		}),
}

// ofInstance is a gauge of what the instance knows of itself.
func ofInstance[N int | int64](name, help string, value func(*fleet.Self) N) gauge {
	return newGauge(name, help, func(s *scrape) float64 { return float64(value(&s.instance)) })
}

// ofChain is a gauge of the database's view; NaN while that is unknown.
func ofChain[N int | int64 | float64](name, help string, value func(*fleet.Fleet) N) gauge {
	return newGauge(name, help, func(s *scrape) float64 {
		if s.snapshot == nil {
			return math.NaN()
		}

		return float64(value(&s.snapshot.Fleet))
	})
}

// NewGauges registers the gauges. A scrape asks own.
func NewGauges(reg prometheus.Registerer, own func() fleet.Self, build fleet.Build) *Gauges {
	f := promauto.With(reg)
	f.NewGaugeVec(prometheus.GaugeOpts{Name: "relayer_build_info", Help: "1, labelled by what was built."},
		[]string{"version", "revision", "go"}).
		WithLabelValues(build.Version, build.Commit, runtime.Version()).Set(1)
	g := &Gauges{
		own: own,
		sessionLosses: f.NewCounter(prometheus.CounterOpts{
			Name: "relayer_session_losses_total", Help: "Tenures that ended with the loss of the database session.",
		}),
	}
	reg.MustRegister(g)

	return g
}

// SessionLost counts the loss of a database session.
func (g *Gauges) SessionLost() { g.sessionLosses.Inc() }

// Answers notes whether the database answers, and takes what is written. It reports whether that has changed, after the
// first time that it did.
func (g *Gauges) Answers(well bool) (changed bool) {
	changed = g.answered.Swap(well) != well && (!well || g.databaseSeen.Load() != 0)
	if well {
		g.databaseSeen.Store(time.Now().UnixNano())
	}

	return changed
}

// Describe implements prometheus.Collector.
func (g *Gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range allGauges {
		ch <- m.desc
	}

	for _, m := range senderGauges {
		ch <- m.desc
	}

	ch <- elections
	ch <- problem
	ch <- connections
}

// Collect implements prometheus.Collector.
func (g *Gauges) Collect(ch chan<- prometheus.Metric) {
	s := g.scrape(time.Now())
	report := func(desc *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	for _, m := range allGauges {
		report(m.desc, m.value(s))
	}

	if s.snapshot != nil { // while the database does not answer, RelayerDatabaseDown fires
		for _, m := range senderGauges {
			m.each(&s.snapshot.Fleet, func(value float64, labels ...string) { report(m.desc, value, labels...) })
		}
	}

	s.problems(report)
	ch <- prometheus.MustNewConstMetric(elections, prometheus.CounterValue, g.elections())

	used, idle, most := 0.0, 0.0, 0.0
	if pool := g.pool.Load(); pool != nil {
		stat := pool.Stat()
		used, idle, most = float64(stat.AcquiredConns()), float64(stat.IdleConns()), float64(stat.MaxConns())
	}

	for state, n := range map[string]float64{"used": used, "idle": idle, "max": most} {
		report(connections, n, state)
	}
}

// problems reports what the page shows, the others as 0.
func (s *scrape) problems(report func(*prometheus.Desc, float64, ...string)) {
	sight := fleet.Sight{Read: cmp.Or(s.snapshot, &fleet.Reading{}), Self: &s.instance, Now: s.now}
	seen := map[string]bool{}
	for _, p := range sight.Judge() {
		seen[p.Kind+string(p.Severity)] = true
	}

	for kind, about := range fleet.Kinds {
		for _, severity := range []fleet.Severity{fleet.Critical, fleet.Warning} {
			report(problem, yes(seen[kind+string(severity)]), kind, string(severity), about.Page)
		}
	}
}

// elections is the epoch of the last snapshot, however old: a counter only grows.
func (g *Gauges) elections() float64 {
	if s := g.snapshot.Load(); s != nil {
		return float64(s.Fleet.Leader.Epoch)
	}

	return 0
}

// scrape captures everything at one moment.
func (g *Gauges) scrape(now time.Time) *scrape {
	s := &scrape{now: now, instance: g.own(), snapshot: g.snapshot.Load(), answered: g.answered.Load()}
	s.leader = s.instance.Leader && s.instance.Session == nil // one whose lease is over may not commit any more
	if s.leader {
		g.leaderSeen.Store(now.UnixNano())
	}

	s.leaderSeen, s.databaseSeen = moment(g.leaderSeen.Load()), moment(g.databaseSeen.Load())
	if s.snapshot != nil && now.Sub(s.snapshot.At) > snapshotLasts {
		s.snapshot = nil
	}

	return s
}

// ageOf is the age of a block, by the database's clock, or by this one's while the database is
// silent; NaN if its time is unknown.
func (s *scrape) ageOf(made time.Time) float64 {
	if made.Unix() <= 0 {
		return math.NaN()
	}

	now := s.now
	if l := s.snapshot; l != nil {
		now = l.Fleet.At.Add(s.now.Sub(l.At))
	}

	return max(0, now.Sub(made).Seconds()) // some chains' blocks are ahead of the clock
}

func (s *scrape) factoryLag() float64 {
	if s.snapshot == nil {
		return math.NaN()
	}

	cursor := s.snapshot.Fleet.Chain.FactoryCursor
	if s.instance.Target == 0 || cursor == 0 {
		return 0
	}

	return float64(max(0, s.instance.Target-cursor+1))
}

func yes(b bool) float64 {
	if b {
		return 1
	}

	return 0
}

// unix is a time in unix seconds; 0 for never.
func unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}

	return float64(t.UnixMicro()) / 1e6
}

// moment is a time from unix nanoseconds; zero for 0, which is never.
func moment(nanoseconds int64) time.Time {
	if nanoseconds == 0 {
		return time.Time{}
	}

	return time.Unix(0, nanoseconds)
}

// Follow runs the reader until ctx ends, from the start of the process, and tells how each reading went. A
// database without our tables answers but has no data: it awaits its first migration.
func (g *Gauges) Follow(ctx context.Context, pool *pgxpool.Pool, reader *fleet.Reader, went func(error)) error {
	g.pool.Store(pool)
	return reader.Run(ctx, func(r fleet.Reading) {
		if errors.Is(r.Err, database.ErrNoSchema) {
			went(nil)
		} else if went(r.Err); r.Err == nil {
			g.took(&r)
		}
	})
}

// took stores a snapshot.
func (g *Gauges) took(s *fleet.Reading) {
	g.snapshot.Store(s)
	if s.Fleet.Leader.Held {
		g.leaderSeen.Store(s.At.UnixNano())
	}
}
