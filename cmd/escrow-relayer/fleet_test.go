package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// bin is the binary under test, built with the race detector: a race in a process makes it exit
// with 66, which the tests see.
var bin string

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

func newWorld(t *testing.T, change func(*lab.Options)) *world {
	o := lab.Options{Bin: bin, Seed: 7, Env: map[string]string{"ADOPT_AFTER": "1s"}}
	if change != nil {
		change(&o)
	}

	l, err := lab.Start(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })

	return worldOf(t, l)
}

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
	ctx, cancel := context.WithTimeout(w.t.Context(), 60*time.Second)
	defer cancel()
	for _, id := range ids {
		if err := w.fleet[id].Ready(ctx); err != nil {
			log, _ := os.ReadFile(w.fleet[id].LogFile)
			require.NoError(w.t, err, "%s", log)
		}
	}
}

// blocks makes traffic and mines it.
func (w *world) blocks(n int) {
	for range n {
		require.NoError(w.t, w.traffic.Step(w.t.Context(), 5))
		require.NoError(w.t, w.Chain.Mine(w.t.Context(), 1))
	}
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
	}, 60*time.Second, 100*time.Millisecond, "%s: %+v %+v", what, &last.Slots, &last.Leader)
}

func slotsOf(id string, n int) func(*fleet.Fleet) bool {
	return func(f *fleet.Fleet) bool { i := f.Find(id); return i != nil && i.Slots == n && i.Alive }
}

func (w *world) leader() (id string, epoch int64) {
	require.NoError(w.t, w.DB.QueryRow(w.t.Context(), `select coalesce(instance_id, ''), epoch from leadership`).Scan(&id,
		&epoch))
	return id, epoch
}

// audit mines what makes everything processable, and requires that it was published once and in order.
func (w *world) audit(duplicates bool) {
	require.NoError(w.t, w.Chain.Mine(w.t.Context(), w.Confirmations))
	head, err := w.Head(w.t.Context())
	require.NoError(w.t, err)
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Minute) // one of two endpoints is believed after a minute
	defer cancel()
	a, err := w.Audit(ctx, head-uint64(w.Confirmations))
	require.NoError(w.t, err)
	require.Positive(w.t, a.Emitted)
	require.True(w.t, a.Exact(), a.String())
	if !duplicates {
		require.True(w.t, a.Clean(), a.String())
	}

	w.t.Log(a)
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
	for name, c := range map[string]struct {
		blow, after func(*world, *lab.Process)
		within      time.Duration
		duplicates  bool
	}{
		"killed": {blow: func(_ *world, p *lab.Process) { p.Kill() }, duplicates: true},
		"stopped": {blow: func(w *world, p *lab.Process) {
			ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
			defer cancel()
			require.NoError(w.t, p.Stop(ctx))
		}},
		"frozen": {
			blow:       func(_ *world, p *lab.Process) { p.Signal(syscall.SIGSTOP) },
			after:      func(_ *world, p *lab.Process) { p.Signal(syscall.SIGCONT) },
			duplicates: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.run("r0", 0, 2, nil)
			w.run("r1", 1, 2, nil)
			w.ready("r0", "r1")
			w.until("whole", func(f *fleet.Fleet) bool { return f.Slots.Unserved == 0 && f.Leader.Valid })
			w.blocks(3)
			id, epoch := w.leader()
			begun := time.Now()
			c.blow(w, w.fleet[id])
			w.until("another leads", func(f *fleet.Fleet) bool { return f.Leader.Valid && f.Leader.Instance != id })
			t.Logf("leader gap after it was %s: %s", name, time.Since(begun).Round(time.Millisecond))
			w.blocks(3)
			w.until("nothing unserved", func(f *fleet.Fleet) bool { return f.Slots.Unserved == 0 })
			_, now := w.leader()
			require.Greater(t, now, epoch)
			if c.after != nil {
				c.after(w, w.fleet[id])
				// It joins anew: its old epochs are over, so nothing that it had in hand was committed.
				w.until("back", slotsOf(id, 1260))
				w.blocks(3)
				require.True(t, w.fleet[id].Running())
			}

			w.audit(c.duplicates)
		})
	}
}

// The binary against nodes that this project did not embed, over HTTP and over WebSocket: geth, and
// anvil where there is npm.
func TestIndependentNode(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func() (testchain.Node, error){
		"geth":  func() (testchain.Node, error) { return testchain.StartGeth(t.Context(), testchain.Options{Seed: 7}) },
		"anvil": func() (testchain.Node, error) { return testchain.StartAnvil(t.Context(), testchain.Options{Seed: 7}) },
	} {
		node, err := start()
		if name == "anvil" && errors.Is(err, exec.ErrNotFound) {
			t.Log("no npm here, so no anvil: geth alone will do")
			continue
		}

		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, node.Stop()) })
		for scheme, url := range map[string]string{"http": node.HTTP(), "ws": node.WS()} {
			t.Run(name+" "+scheme, func(t *testing.T) {
				w := newWorld(t, func(o *lab.Options) { o.Node, o.RPC = node, []string{url} })
				w.run("r0", 0, 2, nil)
				w.run("r1", 1, 2, nil)
				w.ready("r0", "r1")
				w.blocks(6)
				w.audit(false)
			})
		}
	}
}
