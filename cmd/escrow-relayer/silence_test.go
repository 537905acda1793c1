package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// behindProxy starts an instance whose database is behind a proxy of its own, and returns the proxy.
func (w *world) behindProxy(id string, number, total int, env map[string]string) *faults.TCP {
	proxy, url, err := faults.ProxyURL(w.URL)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = proxy.Close() })
	all := map[string]string{"DATABASE_URL": url}
	maps.Copy(all, env)

	w.run(id, number, total, all)

	return proxy
}

// joined is when an instance joined last, by the database's clock.
func (w *world) joined(id string) (at time.Time) {
	require.NoError(w.t, w.DB.QueryRow(w.t.Context(), `select started_at from relayer_instances where instance_id = $1`,
		id).Scan(&at))
	return at
}

// The connections of a leader and of a follower swallow bytes, for good, while new ones work: a
// database that failed over to another machine looks like that. Both notice, and are back over new
// connections.
// Not beside other tests: the third instance must notice nothing.
func TestSwallowedConnectionsAreReplaced(t *testing.T) {
	w := newWorld(t, nil)
	leader := w.behindProxy("r0", 0, 3, nil)
	w.ready("r0")
	follower := w.behindProxy("r1", 1, 3, nil)
	w.run("r2", 2, 3, nil)
	w.ready("r1", "r2")
	w.until("three share", func(f *fleet.Fleet) bool {
		return slotsOf("r0", 840)(f) && slotsOf("r1", 840)(f) && slotsOf("r2", 840)(f)
	})
	w.blocks(3)
	before := map[string]time.Time{"r0": w.joined("r0"), "r1": w.joined("r1"), "r2": w.joined("r2")}

	begun := time.Now()
	for _, proxy := range []*faults.TCP{leader, follower} {
		undo := proxy.Swallow(false)
		t.Cleanup(func() { _ = undo() })
	}

	w.blocks(2)
	w.until("both joined again", func(f *fleet.Fleet) bool {
		return w.joined("r0").After(before["r0"]) && w.joined("r1").After(before["r1"]) &&
			slotsOf("r0", 840)(f) && slotsOf("r1", 840)(f) && slotsOf("r2", 840)(f)
	})
	t.Logf("all slots back where they belong after %s", time.Since(begun).Round(100*time.Millisecond))
	require.Equal(t, before["r2"], w.joined("r2"), "the one in between noticed nothing")
	w.blocks(2)
	w.audit(true)
}

// With new connections dark as well, each instance keeps DB_OUTAGE_LIMIT.
func TestOutageLimitIsKeptWhenBytesAreSwallowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	env := map[string]string{"DB_OUTAGE_LIMIT": "10s"} // a statement on a busy machine is shorter
	proxies := map[string]*faults.TCP{}
	for i := range 3 {
		id := fmt.Sprint("r", i)
		proxies[id] = w.behindProxy(id, i, 3, env)
		w.ready(id)
	}

	w.blocks(2)
	begun := time.Now()
	for _, proxy := range proxies {
		undo := proxy.Swallow(true)
		t.Cleanup(func() { _ = undo() })
	}

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for id := range proxies {
		code, err := w.fleet[id].Wait(ctx)
		require.NoError(t, err, "%s goes on", id)
		require.NotZero(t, code)
		log, err := os.ReadFile(w.fleet[id].LogFile)
		require.NoError(t, err)
		require.Contains(t, string(log), "DB_OUTAGE_LIMIT=10s")
		t.Logf("%s ended after %s, code %d", id, time.Since(begun).Round(100*time.Millisecond), code)
	}
}

// One instance's node is gone and another's is not: its slots are served by the other one until it is back.
func TestSlotsGoWhereANodeIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	env := map[string]string{"RESIGN_AFTER": "2s"}
	w.run("r0", 0, 2, env)
	w.ready("r0")
	node, url, err := faults.ProxyURL(w.Chain.HTTP())
	require.NoError(t, err)
	t.Cleanup(func() { _ = node.Close() })
	w.run("r1", 1, 2, map[string]string{"RESIGN_AFTER": "2s", "RPC_URLS": url})
	w.ready("r1")
	share := func(f *fleet.Fleet) bool { return slotsOf("r0", 1260)(f) && slotsOf("r1", 1260)(f) }
	w.until("two share", share)
	w.blocks(2)
	undo := node.Cut()
	t.Cleanup(func() { _ = undo() })
	w.until("the one with a node serves all", slotsOf("r0", 2520))
	w.blocks(2)
	require.NoError(t, undo())
	w.until("two share again", share)
	w.blocks(2)
	w.audit(false)
}
