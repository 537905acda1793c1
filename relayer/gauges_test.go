package relayer

import (
	"log/slog"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// fresh is a relayer that New made and nobody runs.
func fresh(t *testing.T) (*Relayer, *prometheus.Registry) {
	cfg, err := config.Load(map[string]string{
		"CHAIN_ID": "11155111", "RPC_URL": "http://127.0.0.1:1",
		"FACTORY_ADDRESS": "0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914", "START_BLOCK": "1",
		"PUBSUB_PROJECT_ID": "a-project", "PUBSUB_TOPIC_ID": "a-topic", "DATABASE_URL": "postgres://u@127.0.0.1:1/d",
		"INSTANCE_ID": "r0",
	})
	require.NoError(t, err)
	reg := prometheus.NewRegistry()
	r, err := New(cfg, slog.New(slog.DiscardHandler), reg, fleet.Build{Version: "v1", Commit: "abc"})
	require.NoError(t, err)

	return r, reg
}

// values of all gauges without labels of their own. Every series of ours must carry the chain and the fleet.
func values(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	found := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}

			require.Equal(t, "11155111", labels["chain_id"], "%s has no chain", f.GetName())
			require.Equal(t, "escrow-relayer", labels["fleet"], "%s has no fleet", f.GetName())
			if m.GetGauge() != nil && len(labels) == 2 {
				found[f.GetName()] = m.GetGauge().GetValue()
			}
		}
	}

	return found
}

// With the database out of reach since before the start the page of the first version, no leader
// for two minutes, needs a gap that grows.
func TestGaugesBeforeAnythingHasAnswered(t *testing.T) {
	r, reg := fresh(t)
	r.started = time.Now().Add(-5 * time.Minute)
	r.condition.lastHeartbeat.Store(r.started.UnixNano())
	v := values(t, reg)
	require.GreaterOrEqual(t, v["relayer_leader_gap_seconds"], 300.0)
	require.GreaterOrEqual(t, v["relayer_last_heartbeat_age"], 300.0)
	require.InDelta(t, float64(time.Now().Unix()), v["relayer_clock_timestamp_seconds"], 60)
	for _, name := range []string{"relayer_is_leader", "relayer_joined", "relayer_database_up",
		"relayer_leader_seen_timestamp_seconds",
		"relayer_database_seen_timestamp_seconds", "relayer_node_up", "relayer_believed"} {
		require.Contains(t, v, name)
		require.Zero(t, v[name], name)
	}

	for _, name := range []string{"relayer_slots_unserved", "relayer_outbox_oldest_age_seconds", "total_active_instances",
		"relayer_factory_lag_blocks"} {
		require.True(t, math.IsNaN(v[name]), "%s is unknown, not 0: nobody has asked", name)
	}
}

// What the database said counts for as long as it may be true, and is then unknown rather than frozen.
func TestGaugesOfTheChainGoUnknown(t *testing.T) {
	r, reg := fresh(t)
	found := time.Now().Add(-time.Hour)
	l := &snapshot{at: time.Now(), findings: map[string]time.Time{ledger.DeepReorg: found}}
	l.fleet.Slots.Unserved, l.fleet.Leader = 7, fleet.Leader{Held: true, Epoch: 3}
	for id, key := range map[string]string{"a": "slot", "b": "escrow"} {
		l.fleet.Instances = append(l.fleet.Instances, fleet.Instance{ID: id, Alive: true, Settings: partition.Settings{
			Stream: map[string]string{"ORDERING_KEY": key, "FINALITY": "safe"}, Other: map[string]string{"RETENTION": key}}})
	}

	r.gauges.snapshot.Store(l)
	r.gauges.answered.Store(true)
	r.gauges.leaderSeen.Store(l.at.UnixNano())
	v := values(t, reg)
	require.InDelta(t, 7, v["relayer_slots_unserved"], 0)
	require.Zero(t, v["relayer_leader_gap_seconds"], "somebody holds the lock")
	require.InDelta(t, 1, v["relayer_settings_differing"], 0)

	r.gauges.answered.Store(false)
	require.Positive(t, values(t, reg)["relayer_leader_gap_seconds"],
		"nobody can tell whether somebody leads: the gap begins")

	stale := *l
	stale.at = time.Now().Add(-snapshotLasts - time.Second)
	r.gauges.snapshot.Store(&stale)
	require.True(t, math.IsNaN(values(t, reg)["relayer_slots_unserved"]))
	require.InDelta(t, 3, r.gauges.elections(), 0, "a counter does not go back")
}

// FINALITY_LIMIT reaches the alerts by a metric, and the page of every instance by the row of this one.
func TestFinalityLimitIsTold(t *testing.T) {
	r, reg := fresh(t)
	require.Equal(t, fleet.LimitHead.Behind, r.cfg.FinalityLimit, "an instance that tells none is judged by the default")
	require.InDelta(t, r.cfg.FinalityLimit.Seconds(), values(t, reg)["relayer_finality_limit_seconds"], 0)
	require.Equal(t, r.cfg.FinalityLimit.String(), r.cfg.Agreed().Other["FINALITY_LIMIT"])
}

// The findings of the database are told with their moment, each kind from the start.
func TestGaugesOfFindings(t *testing.T) {
	r, reg := fresh(t)
	found := time.Unix(1_795_000_000, 0)
	r.gauges.snapshot.Store(&snapshot{at: time.Now(), findings: map[string]time.Time{ledger.DeepReorg: found}})
	families, err := reg.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "relayer_last_finding_timestamp_seconds" {
			continue
		}

		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "kind" {
					got[l.GetValue()] = m.GetGauge().GetValue()
				}
			}
		}
	}

	require.Equal(t, map[string]float64{ledger.DeepReorg: 1_795_000_000, ledger.MissingEvent: 0,
		ledger.ExtraEvent: 0, ledger.AnnouncedAgain: 0,
		ledger.UndecodableEvent: 0, ledger.UnannouncedContract: 0,
		ledger.EndpointFault: 0}, got)
}

// There are chains whose blocks are ahead of the clock: that is no lag below zero.
func TestLagIsNotNegative(t *testing.T) {
	now := time.Now()
	s := &scrape{now: now, instance: fleet.Self{Cursor: 5, Target: 9, CursorTime: now.Add(time.Minute)}}
	require.Zero(t, s.lagSeconds())
	s.instance.CursorTime = now.Add(-time.Minute)
	require.InDelta(t, 60, s.lagSeconds(), 0.001)
}

// The age of what may be processed is by the database's clock, which the snapshot told.
func TestAgesAreByTheClockOfTheDatabase(t *testing.T) {
	now := time.Now()
	l := &snapshot{at: now.Add(-3 * time.Second)}
	l.fleet.At = now.Add(time.Hour)
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
	l := &snapshot{}
	l.fleet.Chain.FactoryCursor, l.fleet.Chain.Verified, l.fleet.Chain.Past = 51, 40, 7
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
	for _, g := range allGauges {
		if strings.Contains(g.desc.String(), strconv.Quote(name)) {
			return g.value(s)
		}
	}

	require.Fail(t, "there is no gauge "+name)

	return 0
}
