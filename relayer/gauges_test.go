package relayer

import (
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
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

// With the database out of reach since before the start nobody was ever seen to lead: RelayerNoLeader fires.
func TestGaugesBeforeAnythingHasAnswered(t *testing.T) {
	r, reg := fresh(t)
	r.started = time.Now().Add(-5 * time.Minute)
	r.condition.lastHeartbeat.Store(r.started.UnixNano())
	v := values(t, reg)
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

// FINALITY_LIMIT reaches the judge of every instance by the row of this one.
func TestFinalityLimitIsTold(t *testing.T) {
	r, _ := fresh(t)
	require.Equal(t, fleet.LimitHead.Behind, r.cfg.FinalityLimit, "an instance that tells none is judged by the default")
	require.Equal(t, r.cfg.FinalityLimit.String(), r.cfg.Agreed().Other["FINALITY_LIMIT"])
}
