package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// bin is the binary under test.
var bin string

// patience is what only something that hangs exceeds, also on a machine that does much else.
const patience = 10 * time.Minute

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "escrow-relayer-bin-")
	if err != nil {
		panic(err)
	}

	bin = filepath.Join(dir, "escrow-relayer")
	if err := lab.Build(context.Background(), ".", bin); err != nil {
		panic(err)
	}

	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// world is a lab with traffic.
type world struct {
	*lab.Lab
	t       *testing.T
	traffic *testchain.Traffic
	fleet   map[string]*lab.Process
}

// newWorld has a database on the server of all tests; one that is stopped, or whose roles are, has ownServer.
func newWorld(t *testing.T, change func(*lab.Options)) *world {
	o := lab.Options{Bin: bin, Seed: 7, Server: testpg.Shared(t),
		Env: map[string]string{"ADOPT_AFTER": "1s", "DB_MAX_CONNS": "4"}}
	if change != nil {
		change(&o)
	}

	l, err := lab.Start(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })

	return worldOf(t, l)
}

func ownServer(o *lab.Options) { o.Server = nil }

// worldOf is a lab with traffic on its chain.
func worldOf(t *testing.T, l *lab.Lab) *world {
	w := &world{Lab: l, t: t, fleet: map[string]*lab.Process{}}
	var err error
	w.traffic, err = testchain.NewTraffic(t.Context(), testchain.TrafficConfig{
		URL: l.Chain.HTTP(), Deployment: testchain.Deployment{Block: l.Contracts.Block, Factory: l.Contracts.Factory,
			Noise: l.Contracts.Noise},
		Accounts: l.Chain.Accounts()[:len(l.Chain.Accounts())-1], Seed: 7,
	})
	require.NoError(t, err)
	t.Cleanup(w.traffic.Close)

	return w
}

func (w *world) run(id string, number, total int, env map[string]string) *lab.Process {
	p, err := w.Run(id, number, total, env)
	require.NoError(w.t, err)
	w.fleet[id] = p

	return p
}

func (w *world) ready(ids ...string) {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	for _, id := range ids {
		if err := w.fleet[id].Ready(ctx); err != nil {
			log, _ := os.ReadFile(w.fleet[id].LogFile)
			require.NoError(w.t, err, "%s", log)
		}
	}
}

// another makes an empty database beside the world's, and returns its URL.
func (w *world) another(suffix string) (url string) {
	url, err := w.AnotherDatabase(w.t.Context(), suffix)
	require.NoError(w.t, err)

	return url
}

// blocks makes traffic and mines it.
func (w *world) blocks(n int) {
	for range n {
		require.NoError(w.t, w.traffic.Step(w.t.Context(), 5))
		require.NoError(w.t, w.Chain.Mine(w.t.Context(), 1))
	}
}

// reorg replaces the newest blocks.
func (w *world) reorg(depth int, fate testchain.Fate) {
	w.t.Helper()
	require.NoError(w.t, w.Chain.(*testchain.Sim).Reorg(w.t.Context(), depth, fate))
}

// until waits for the fleet, as the database has it, to be as wanted.
func (w *world) until(what string, ok func(*fleet.Fleet) bool) {
	var last fleet.Fleet
	require.Eventually(w.t, func() bool {
		f, err := fleet.Read(w.t.Context(), w.DB, w.Chain.ChainID().Int64())
		if err != nil {
			return false
		}

		last = f

		return ok(&f)
	}, patience, 100*time.Millisecond, "%s: %+v %+v", what, &last.Slots, &last.Leader)
}

func slotsOf(id string, n int) func(*fleet.Fleet) bool {
	return func(f *fleet.Fleet) bool { i := f.Find(id); return i != nil && i.Slots == n && i.Alive }
}

func (w *world) leader() (id string, epoch int64) {
	require.NoError(w.t, w.DB.QueryRow(w.t.Context(), `select coalesce(instance_id, ''), epoch from leadership`).Scan(&id,
		&epoch))
	return id, epoch
}

// audit mines what makes everything processable, and requires that it was published in order, and once but for crashes.
func (w *world) audit(crashed bool) {
	require.NoError(w.t, w.Chain.Mine(w.t.Context(), w.Confirmations))
	ctx, cancel := context.WithTimeout(w.t.Context(), patience) // one of two endpoints is believed after a minute
	defer cancel()
	a, err := w.Audit(ctx)
	require.NoError(w.t, err)
	require.Positive(w.t, a.Emitted)
	w.t.Log(a)
	told, warnings := w.warnings()
	if !a.Exact() || !crashed && len(a.Duplicated) > told {
		w.t.Fatal(warnings)
	}
}

// warnings are what the relayers logged when not all was well, and how many messages a second time they tell of: a
// machine that is busy enough has them stop before the database has noted what Pub/Sub acknowledged.
func (w *world) warnings() (repeats int, all string) {
	logs, err := filepath.Glob(filepath.Join(w.Dir, "*.log"))
	require.NoError(w.t, err)
	for _, name := range logs {
		text, err := os.ReadFile(name)
		require.NoError(w.t, err)
		for line := range strings.Lines(string(text)) {
			var said struct {
				Severity, Message string
				Messages          int
			}
			if json.Unmarshal([]byte(line), &said) == nil && (said.Severity == "INFO" || said.Severity == "DEBUG") {
				continue
			}

			all += filepath.Base(name) + ": " + line
			if strings.HasPrefix(said.Message, "stopped with") {
				repeats += said.Messages
			}
		}
	}

	return repeats, all
}

func TestFleetSharesAdoptsAndGivesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	for i := range 3 {
		w.run(fmt.Sprint("r", i), i, 3, nil)
	}

	w.ready("r0", "r1", "r2")
	w.until("three share", func(f *fleet.Fleet) bool {
		return slotsOf("r0", 840)(f) && slotsOf("r1", 840)(f) && slotsOf("r2", 840)(f) && f.Slots.Unserved == 0
	})
	w.blocks(5)

	w.fleet["r2"].Kill()
	w.blocks(2)
	w.until("adopted", func(f *fleet.Fleet) bool { return f.Slots.Adopted == 840 && f.Slots.Unserved == 0 })
	w.blocks(2)

	// A second instance with number 0 stands by, and takes over at once.
	w.run("standby", 0, 3, nil)
	w.ready("standby")
	w.run("r2", 2, 3, nil)
	w.ready("r2")
	w.until("given back", func(f *fleet.Fleet) bool { return slotsOf("r2", 840)(f) && f.Slots.Adopted == 0 })
	w.blocks(2)
	w.fleet["r0"].Kill()
	w.until("standby serves", slotsOf("standby", 840))
	w.blocks(2)
	w.audit(true)
}

func TestLeaderKilledStoppedFrozen(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.run("r0", 0, 2, nil)
	w.run("r1", 1, 2, nil)
	w.ready("r0", "r1")
	again := func(id string) {
		w.run(id, int(id[1]-'0'), 2, nil)
		w.ready(id)
	}
	for _, c := range []struct {
		name        string
		blow, after func(id string)
		duplicates  bool // also of the blows before
	}{
		{name: "stopped", blow: w.stop, after: again},
		{name: "killed", blow: func(id string) { w.fleet[id].Kill() }, after: again, duplicates: true},
		{name: "frozen", blow: func(id string) { w.fleet[id].Signal(syscall.SIGSTOP) },
			after: func(id string) { w.fleet[id].Signal(syscall.SIGCONT) }, duplicates: true},
	} {
		share := func(f *fleet.Fleet) bool { return slotsOf("r0", 1260)(f) && slotsOf("r1", 1260)(f) && f.Leader.Valid }
		w.until("whole, before it is "+c.name, share)
		w.blocks(3)
		id, epoch := w.leader()
		begun := time.Now()
		c.blow(id)
		w.until("another leads", func(f *fleet.Fleet) bool { return f.Leader.Valid && f.Leader.Instance != id })
		t.Logf("leader gap after it was %s: %s", c.name, time.Since(begun).Round(time.Millisecond))
		w.blocks(3)
		w.until("nothing unserved", func(f *fleet.Fleet) bool { return f.Slots.Unserved == 0 })
		_, now := w.leader()
		require.Greater(t, now, epoch, c.name)

		// It joins anew: its old epochs are over, so nothing that it had in hand was committed.
		c.after(id)
		w.until("back, after it was "+c.name, share)
		w.blocks(3)
		require.True(t, w.fleet[id].Running(), c.name)
		w.audit(c.duplicates)
	}
}

// independent are nodes that this project did not embed; with the tag long also anvil, which needs npm.
var independent = map[string]func(context.Context, testchain.Options) (testchain.Node, error){
	"geth": func(ctx context.Context, o testchain.Options) (testchain.Node, error) {
		return testchain.StartGeth(ctx, o)
	},
}

// The binary against such nodes, by HTTP and by WebSocket.
func TestIndependentNode(t *testing.T) {
	t.Parallel()
	for name, start := range independent {
		node, err := start(t.Context(), testchain.Options{Seed: 7})
		if errors.Is(err, exec.ErrNotFound) {
			t.Logf("%s: %s", name, err)
			continue
		}

		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, node.Stop()) })
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(o *lab.Options) { o.Node = node })
			for i, url := range []string{node.HTTP(), node.WS()} {
				w.run(fmt.Sprint("r", i), i, 2, map[string]string{"RPC_URLS": url})
			}

			w.ready("r0", "r1")
			w.blocks(6)
			w.audit(false)
		})
	}
}
