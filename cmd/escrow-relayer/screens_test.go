package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// Whatever happens to the database, the leader or Pub/Sub, page, /readyz, status and doctor say the same cause, while
// the instances run. `make outage` measures the same beside the alerts, for deploy/watching.md.
func TestEveryScreenNamesTheFault(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *lab.Options) { o.Server, o.Postgres.MaxConnections = nil, 40 })
	database, url, err := faults.ProxyURL(w.URL)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, database.Close()) })
	pubsub, addr, err := faults.ProxyURL("grpc://" + w.PubSub.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pubsub.Close()) })
	w.DatabaseURL, w.PubSubAddr = url, strings.TrimPrefix(addr, "grpc://")
	w.startTwo(nil)
	w.until("two share", func(f *fleet.Fleet) bool { return slotsOf("r0", 1260)(f) && slotsOf("r1", 1260)(f) })
	w.blocks(3)
	for _, f := range w.Faults(database, pubsub, func() *lab.Process { id, _ := w.leader(); return w.fleet[id] }) {
		id, _ := w.leader()
		other := map[string]string{"r0": "r1", "r1": "r0"}[id]
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		require.NoError(t, w.Quiet(ctx, w.fleet[other], &f))
		end, err := f.Begin(t.Context())
		require.NoError(t, err, f.Name)
		w.blocks(1)
		took := w.Told(ctx, w.fleet[other], &f)
		cancel()
		row := "FAULT | " + f.Name
		for _, name := range lab.Screens {
			row += fmt.Sprintf(" | %.1f", took[name].Seconds())
			require.True(t, took[name] > 0 || f.Ready && name == "/readyz", "%s: %s does not say it", f.Name, name)
		}

		t.Log(row)
		require.NoError(t, end(), f.Name)
		w.blocks(1)
		w.until("all is served again", func(f *fleet.Fleet) bool {
			return f.Slots.Unserved == 0 && f.Leader.Valid && f.Live() == 2
		})
		w.ready("r0", "r1")
	}

	w.audit(true)
}
