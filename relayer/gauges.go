package relayer

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/web"
)

// gauges are the metrics of the instance, and of the fleet as the instance sees it. A package that
// measures its own work registers those metrics itself.
//
// Nothing is copied into a gauge: each value is computed at the scrape from what the instance knows at
// that moment, so it changes when the fact changes, and it exists from New on, before any database or
// node has answered. What only the database knows is as old as the last reading of it. Once that is
// older than lookHolds, the value is unknown (NaN, which no comparison of an alert matches) instead
// of frozen.
//
// Facts that must outlive their process are points in time, not ages: an alert compares the newest
// one that any instance reported with its own clock. So the series of a process that is gone only
// grows old, whether the monitoring system marks it as stale or not.
type gauges struct {
	r             *Relayer
	described     []*prometheus.Desc // of all, in order
	findings      *prometheus.Desc
	senders       []*prometheus.Desc // of senderGauges, in order
	connections   *prometheus.Desc
	sessionLosses prometheus.Counter

	pool atomic.Pointer[pgxpool.Pool] // nil before Run
	look atomic.Pointer[look]         // the last that succeeded; nil: none yet

	// Moments in unix nanoseconds, 0: never. Written by measure, and leaderSeen by each reading of a leader.
	leaderSeen, databaseSeen atomic.Int64
	answered                 atomic.Bool // by the database, at the last look
}

// look is what the database said of the whole chain at one moment.
type look struct {
	at       time.Time
	fleet    fleet.Fleet
	findings map[string]time.Time
}

// lookHolds is for how long a look counts when no later one succeeds.
var lookHolds = fleet.LimitDatabase.Behind

// reading is everything that one scrape is made of: one moment for all gauges.
type reading struct {
	now      time.Time
	instance web.Instance
	leader   bool
	joined   bool
	beaten   time.Time
	look     *look // nil: unknown
	answered bool

	leaderSeen, databaseSeen time.Time // zero: never
	started                  time.Time
}

// gauge is one metric without labels of its own.
type gauge struct {
	name, help string
	value      func(*reading) float64
}

// counterName is the one among them that only grows.
const counterName = "leader_election_count"

// The gauges of an instance tell of itself; those of the chain tell what the database says, and
// every instance tells the same.
var allGauges = []gauge{
	{"relayer_clock_timestamp_seconds",
		"What the clock of the instance said at the scrape. A series whose value is old is of a process that is gone.",
		func(r *reading) float64 { return unix(r.now) }},
	{"relayer_is_leader", "1 while this instance watches the factory.", func(r *reading) float64 { return yes(r.leader) }},
	{"relayer_joined", "1 while this instance is a member of the fleet: its session holds its lock.",
		func(r *reading) float64 { return yes(r.joined) }},
	{"relayer_last_heartbeat_age", "Seconds since this instance last wrote its heartbeat, or since it started.",
		func(r *reading) float64 { return r.now.Sub(r.beaten).Seconds() }},
	{"relayer_database_up", "1 while the database answers this instance.",
		func(r *reading) float64 { return yes(r.answered) }},
	{"relayer_database_seen_timestamp_seconds", "When the database last answered this instance; 0: never.",
		func(r *reading) float64 { return unix(r.databaseSeen) }},
	{"relayer_leader_seen_timestamp_seconds", "When this instance last led or saw that somebody leads; 0: never.",
		func(r *reading) float64 { return unix(r.leaderSeen) }},
	{"relayer_leader_gap_seconds",
		"Seconds for which nobody has led, as far as this instance can tell; 0 while somebody leads.", (*reading).leaderGap},
	{"relayer_node_up", "1 while the chain can be read and its head moves.",
		func(r *reading) float64 { return yes(r.instance.Node == nil) }},
	{"relayer_head_block", "Newest block of this instance's node.",
		func(r *reading) float64 { return float64(r.instance.Head) }},
	{"relayer_target_block", "Newest block that may be processed.",
		func(r *reading) float64 { return float64(r.instance.Target) }},
	{"relayer_final_block", "Newest block that the chain calls final.",
		func(r *reading) float64 { return float64(r.instance.Final) }},
	{"relayer_cursor_block", "Next block of this instance's slots; 0 while it holds none.",
		func(r *reading) float64 { return float64(r.instance.Cursor) }},
	{"relayer_lag_blocks", "Blocks that may be processed and are not, of this instance's slots.",
		func(r *reading) float64 { return float64(r.instance.Lag()) }},
	{"relayer_lag_seconds", "Age of the newest processed block when it lags, else 0.", (*reading).lagSeconds},
	{"relayer_slots_owned", "Slots that this instance serves.",
		func(r *reading) float64 { return float64(r.instance.Slots) }},
	{"relayer_slots_adopted", "Slots that this instance serves without preferring them.",
		func(r *reading) float64 { return float64(r.instance.Adopted) }},

	ofChain("total_active_instances", "Instances of the chain that are alive.",
		func(l *look) float64 { return float64(l.fleet.Live()) }),
	ofChain("total_escrows_registered", "Escrows in the registry that are on the chain.",
		func(l *look) float64 { return float64(l.fleet.Escrows.Registered()) }),
	ofChain("relayer_factory_cursor_block", "Next block of the factory watch.",
		func(l *look) float64 { return float64(l.fleet.Chain.FactoryCursor) }),
	ofChain("relayer_verified_block", "Newest block up to which everything was read twice and is stored.",
		func(l *look) float64 { return float64(l.fleet.Chain.Verified) }),
	ofChain("relayer_slots_unserved", "Slots that nobody alive serves, of the chain.",
		func(l *look) float64 { return float64(l.fleet.Slots.Unserved) }),
	ofChain("relayer_settings_differing", "Settings that would split the stream and differ among live instances.",
		func(l *look) float64 { return float64(len(l.fleet.Differences())) }),
	ofChain("relayer_outbox_messages", "Messages that Pub/Sub has not acknowledged yet, of the chain.",
		func(l *look) float64 { return float64(l.fleet.Outbox.Messages) }),
	ofChain("relayer_outbox_oldest_age_seconds", "Age of the oldest of them.",
		func(l *look) float64 { return l.fleet.Outbox.OldestAge.Seconds() }),
	ofChain(counterName, "Changes of leader since the database was made.",
		func(l *look) float64 { return float64(l.fleet.Leader.Epoch) }),
	{"relayer_factory_lag_blocks", "Blocks that the factory watch is behind the target.", (*reading).factoryLag},
}

func ofChain(name, help string, value func(*look) float64) gauge {
	return gauge{name, help, func(r *reading) float64 {
		if r.look == nil {
			return math.NaN()
		}

		return value(r.look)
	}}
}

// newGauges registers them.
func newGauges(reg prometheus.Registerer, r *Relayer, build web.Build) *gauges {
	f := promauto.With(reg)
	f.NewGaugeVec(prometheus.GaugeOpts{Name: "relayer_build_info", Help: "1, labelled by what was built."},
		[]string{"version", "revision", "go"}).
		WithLabelValues(build.Version, build.Commit, runtime.Version()).Set(1)
	g := &gauges{
		r: r,
		findings: prometheus.NewDesc("relayer_last_finding_timestamp_seconds",
			"When something that a person must hear of was found last, by the database; 0: never.", []string{"kind"}, nil),
		connections: prometheus.NewDesc("relayer_db_connections", "Connections of the pool by state.",
			[]string{"state"}, nil),
		sessionLosses: f.NewCounter(prometheus.CounterOpts{
			Name: "relayer_session_losses_total", Help: "Tenures that ended with the loss of the database session.",
		}),
	}
	for _, m := range allGauges {
		g.described = append(g.described, prometheus.NewDesc(m.name, m.help, nil, nil))
	}

	for _, m := range senderGauges {
		g.senders = append(g.senders, prometheus.NewDesc(m.name, m.help, m.labels, nil))
	}

	reg.MustRegister(g)

	return g
}

// fleetLabels are on every metric of ours: alerts tell fleets apart by them, wherever the scrape
// comes from. A fleet follows one factory of one chain. The address is in lower case, since labels
// are compared as text.
func fleetLabels(cfg *config.Config) prometheus.Labels {
	return prometheus.Labels{"chain_id": strconv.FormatInt(cfg.ChainID, 10), "factory": strings.ToLower(cfg.Factory.Hex())}
}

// Describe implements prometheus.Collector.
func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range g.described {
		ch <- d
	}

	for _, d := range g.senders {
		ch <- d
	}

	ch <- g.findings
	ch <- g.connections
}

// Collect implements prometheus.Collector.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	r := g.read(time.Now())
	for i, m := range allGauges {
		kind, v := prometheus.GaugeValue, m.value(r)
		if m.name == counterName {
			kind, v = prometheus.CounterValue, g.elections()
		}

		ch <- prometheus.MustNewConstMetric(g.described[i], kind, v)
	}

	g.collectSenders(ch, r)

	for _, kind := range ledger.FindingKinds {
		v := math.NaN()
		if r.look != nil {
			v = unix(r.look.findings[kind])
		}

		ch <- prometheus.MustNewConstMetric(g.findings, prometheus.GaugeValue, v, kind)
	}

	used, idle, most := 0.0, 0.0, 0.0
	if pool := g.pool.Load(); pool != nil {
		stat := pool.Stat()
		used, idle, most = float64(stat.AcquiredConns()), float64(stat.IdleConns()), float64(stat.MaxConns())
	}

	for state, n := range map[string]float64{"used": used, "idle": idle, "max": most} {
		ch <- prometheus.MustNewConstMetric(g.connections, prometheus.GaugeValue, n, state)
	}
}

// elections is the epoch of the last look, however old: a counter must not go back.
func (g *gauges) elections() float64 {
	if l := g.look.Load(); l != nil {
		return float64(l.fleet.Leader.Epoch)
	}

	return 0
}

// read takes everything at one moment.
func (g *gauges) read(now time.Time) *reading {
	i := g.r.Instance()
	r := &reading{
		now: now, instance: i, joined: g.r.current.Load() != nil, beaten: g.r.beaten(), look: g.look.Load(),
		answered: g.answered.Load(),
		started:  g.r.started,
	}
	r.leader = i.Leader && i.Session == nil // one whose lease is over may not commit any more
	if r.leader {
		g.leaderSeen.Store(now.UnixNano())
	}

	r.leaderSeen, r.databaseSeen = moment(g.leaderSeen.Load()), moment(g.databaseSeen.Load())
	if r.look != nil && now.Sub(r.look.at) > lookHolds {
		r.look = nil
	}

	return r
}

// leaderGap counts from the start of the process when it has never seen a leader.
func (r *reading) leaderGap() float64 {
	if r.leader || r.answered && r.look != nil && r.look.fleet.Leader.Held {
		return 0
	}

	since := r.leaderSeen
	if since.IsZero() {
		since = r.started
	}

	return r.now.Sub(since).Seconds()
}

func (r *reading) lagSeconds() float64 {
	if r.instance.Lag() == 0 || r.instance.CursorTime.IsZero() {
		return 0
	}

	return r.now.Sub(r.instance.CursorTime).Seconds()
}

func (r *reading) factoryLag() float64 {
	switch {
	case r.look == nil:
		return math.NaN()
	case r.instance.Target == 0 || r.look.fleet.Chain.FactoryCursor == 0:
		return 0
	}

	return float64(max(0, r.instance.Target-r.look.fleet.Chain.FactoryCursor+1))
}

func yes(b bool) float64 {
	if b {
		return 1
	}

	return 0
}

// unix is a moment in seconds; 0 for never.
func unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}

	return float64(t.UnixMicro()) / 1e6
}

func moment(nanoseconds int64) time.Time {
	if nanoseconds == 0 {
		return time.Time{}
	}

	return time.Unix(0, nanoseconds)
}

// measureEvery is how often the database is asked about the chain, and how long it may take to
// answer. Prometheus scrapes every 15 s or so.
const measureEvery = 5 * time.Second

// measure looks at the chain through the database until ctx ends, from the first second of the process on.
func (r *Relayer) measure(ctx context.Context, reader *fleet.Reader) error {
	ticker := time.NewTicker(measureEvery)
	defer ticker.Stop()
	r.gauges.pool.Store(r.db.Pool)
	for {
		r.measureOnce(ctx, reader)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (r *Relayer) measureOnce(ctx context.Context, reader *fleet.Reader) {
	g := r.gauges
	readCtx, cancel := context.WithTimeout(ctx, measureEvery)
	defer cancel()
	f, err := reader.Read(readCtx)
	err = database.Explain(err)
	var findings map[string]time.Time
	if err == nil {
		findings, err = r.ledger.LastFindings(readCtx)
		err = database.Explain(err)
	}

	now := time.Now()
	if ctx.Err() != nil {
		return
	}

	answered := err == nil || errors.Is(err, database.ErrNoSchema)
	if was := g.answered.Swap(answered); was && !answered {
		r.log.WarnContext(ctx, "the database does not answer, trying again", slog.Any("err", err))
	} else if !was && answered && g.databaseSeen.Load() != 0 {
		r.log.InfoContext(ctx, "the database answers again")
	}

	if !answered {
		r.databaseSaid(err)
		return
	}

	r.databaseSaid(nil)
	g.databaseSeen.Store(now.UnixNano())
	if err != nil { // before the first migration there is nothing to see
		return
	}

	if f.Leader.Held {
		g.leaderSeen.Store(now.UnixNano())
	}

	g.look.Store(&look{at: now, fleet: f, findings: findings})
}
