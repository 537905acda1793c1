package relayer

import (
	"context"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// gauges are the metrics of the instance and of the fleet as it sees it. Those of a package's own work are registered by that package.
type gauges struct {
	leader, heartbeatAge                                 prometheus.Gauge
	instances, escrows, leaderGap                        prometheus.Gauge
	head, target, final, cursor, factoryCursor, verified prometheus.Gauge
	lagBlocks, lagSeconds, factoryLag                    prometheus.Gauge
	owned, adopted, unserved                             prometheus.Gauge
	outbox, outboxAge                                    prometheus.Gauge
	connections                                          *prometheus.GaugeVec
	sessionLosses                                        prometheus.Counter
	elections                                            atomic.Int64 // the epoch of the leadership row, which only grows
}

func newGauges(reg prometheus.Registerer, version, revision string) *gauges {
	f := promauto.With(reg)
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	f.NewGaugeVec(prometheus.GaugeOpts{Name: "relayer_build_info", Help: "1, labelled by what was built."}, []string{"version", "revision", "go"}).
		WithLabelValues(version, revision, runtime.Version()).Set(1)
	g := &gauges{
		leader:        gauge("relayer_is_leader", "1 while this instance watches the factory."),
		heartbeatAge:  gauge("relayer_last_heartbeat_age", "Seconds since this instance last wrote its heartbeat."),
		instances:     gauge("total_active_instances", "Instances that hold their lock, of all."),
		escrows:       gauge("total_escrows_registered", "Escrows in the registry."),
		leaderGap:     gauge("relayer_leader_gap_seconds", "Seconds for which nobody has led; 0 while somebody leads."),
		head:          gauge("relayer_head_block", "Newest block of this instance's node."),
		target:        gauge("relayer_target_block", "Newest block that may be processed."),
		final:         gauge("relayer_final_block", "Newest block that the chain calls final."),
		cursor:        gauge("relayer_cursor_block", "Next block of this instance's slots; 0 while it holds none."),
		factoryCursor: gauge("relayer_factory_cursor_block", "Next block of the factory watch."),
		verified:      gauge("relayer_verified_block", "Newest block up to which everything was read twice and is stored."),
		lagBlocks:     gauge("relayer_lag_blocks", "Blocks that may be processed and are not, of this instance's slots."),
		lagSeconds:    gauge("relayer_lag_seconds", "Age of the newest processed block when it lags, else 0."),
		factoryLag:    gauge("relayer_factory_lag_blocks", "Blocks that the factory watch is behind the target."),
		owned:         gauge("relayer_slots_owned", "Slots that this instance serves."),
		adopted:       gauge("relayer_slots_adopted", "Slots that this instance serves without preferring them."),
		unserved:      gauge("relayer_slots_unserved", "Slots that nobody alive serves, of the chain."),
		outbox:        gauge("relayer_outbox_messages", "Messages that Pub/Sub has not acknowledged yet, of the chain."),
		outboxAge:     gauge("relayer_outbox_oldest_age_seconds", "Age of the oldest of them."),
		connections:   f.NewGaugeVec(prometheus.GaugeOpts{Name: "relayer_db_connections", Help: "Connections of the pool by state."}, []string{"state"}),
		sessionLosses: f.NewCounter(prometheus.CounterOpts{Name: "relayer_session_losses_total", Help: "Tenures that ended with the loss of the database session."}),
	}
	f.NewCounterFunc(prometheus.CounterOpts{Name: "leader_election_count", Help: "Changes of leader since the database was made."}, func() float64 {
		return float64(g.elections.Load())
	})
	for _, state := range []string{"used", "idle", "max"} {
		g.connections.WithLabelValues(state)
	}
	return g
}

// measureEvery is how often the gauges are brought up to date; Prometheus scrapes every 15 s or so.
const measureEvery = 5 * time.Second

// measure keeps the gauges up to date until ctx ends.
func (r *Relayer) measure(ctx context.Context) error {
	ticker := time.NewTicker(measureEvery)
	defer ticker.Stop()
	reader := &fleet.Reader{DB: r.db.Pool, ChainID: r.cfg.ChainID}
	var leaderSeen time.Time
	for {
		r.measureOnce(ctx, reader, &leaderSeen)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (r *Relayer) measureOnce(ctx context.Context, reader *fleet.Reader, leaderSeen *time.Time) {
	g, i := r.gauges, r.Instance()
	set := func(m prometheus.Gauge, n int64) { m.Set(float64(n)) }
	g.leader.Set(0)
	if i.Leader {
		g.leader.Set(1)
	}
	g.heartbeatAge.Set(time.Since(r.beaten()).Seconds())
	set(g.head, i.Head)
	set(g.target, i.Target)
	set(g.final, i.Final)
	set(g.cursor, i.Cursor)
	set(g.lagBlocks, i.Lag())
	set(g.owned, int64(i.Slots))
	set(g.adopted, int64(i.Adopted))
	g.lagSeconds.Set(0)
	if i.Lag() > 0 && !i.CursorTime.IsZero() {
		g.lagSeconds.Set(time.Since(i.CursorTime).Seconds())
	}
	stat := r.db.Pool.Stat()
	g.connections.WithLabelValues("used").Set(float64(stat.AcquiredConns()))
	g.connections.WithLabelValues("idle").Set(float64(stat.IdleConns()))
	g.connections.WithLabelValues("max").Set(float64(stat.MaxConns()))

	readCtx, cancel := context.WithTimeout(ctx, measureEvery)
	defer cancel()
	f, err := reader.Read(readCtx)
	r.databaseSaid(err)
	if err != nil {
		if ctx.Err() == nil {
			r.log.WarnContext(ctx, "fleet not read, trying again", slog.Any("err", err))
		}
		return
	}
	set(g.instances, int64(f.Live()))
	set(g.escrows, f.Escrows.Registered())
	g.elections.Store(f.Leader.Epoch)
	set(g.factoryCursor, f.Chain.FactoryCursor)
	set(g.verified, f.Chain.Verified)
	set(g.unserved, int64(f.Slots.Unserved))
	set(g.outbox, f.Outbox.Messages)
	g.outboxAge.Set(f.Outbox.OldestAge.Seconds())
	g.factoryLag.Set(0)
	if i.Target > 0 && f.Chain.FactoryCursor > 0 {
		set(g.factoryLag, max(0, i.Target-f.Chain.FactoryCursor+1))
	}
	if f.Leader.Held || leaderSeen.IsZero() {
		*leaderSeen = time.Now()
	}
	g.leaderGap.Set(0)
	if !f.Leader.Held {
		g.leaderGap.Set(time.Since(*leaderSeen).Seconds())
	}
}
