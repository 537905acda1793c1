package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// platform is Cloud Run as far as a resize touches it, on processes of this machine. As there, a new revision is
// started beside the old one, which is stopped some time after the new one answers /healthz; a revision that does not
// answer leaves the old one as it is.
type platform struct {
	*world
	serving map[string]*lab.Process
	retired sync.WaitGroup
}

// linger is how long a revision that is not wanted any more goes on.
const linger = 300 * time.Millisecond

// apply gives a service its place in a fleet of so many, as `terraform apply` does for the services that it is told
// to change. It reports whether the revision came up.
func (p *platform) apply(number, total int, sick map[string]string) bool {
	name := fmt.Sprint("escrow-relayer-", number)
	env := map[string]string{"INSTANCE_LOCK_WAIT": "20m", "MIGRATE_ON_START": "false"}
	maps.Copy(env, sick)
	next, err := p.Run(name, number, total, env)
	require.NoError(p.t, err)
	if !p.healthy(next) {
		next.Kill()
		return false
	}

	p.retire(p.serving[name])
	p.serving[name] = next

	return true
}

// remove deletes a service.
func (p *platform) remove(number int) {
	name := fmt.Sprint("escrow-relayer-", number)
	p.retire(p.serving[name])
	delete(p.serving, name)
}

// retire stops an old revision's process after a while, as Cloud Run does: nobody waits for it.
func (p *platform) retire(old *lab.Process) {
	if old == nil {
		return
	}

	p.retired.Go(func() {
		timer := time.NewTimer(linger)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-old.Exited():
		}

		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = old.Stop(ctx)
	})
}

// healthy waits until a process answers its startup probe, or has ended.
func (p *platform) healthy(proc *lab.Process) bool {
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, proc.URL+"/healthz", nil)
		require.NoError(p.t, err)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return true
			}
		}

		select {
		case <-proc.Exited():
			return false
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
}

// wait is `plan wait`, which follows each step.
func (p *platform) wait(timeout string, args ...string) (code int, out string) {
	return p.operator(nil, append([]string{"plan", "wait", "--lag", "200", "--timeout", timeout}, args...)...)
}

// moves resizes as deploy/runbooks/repartition.md does: what is new first, then those that stay, and last what is left
// over, each waited for.
func (p *platform) moves(from, to int) {
	step := func(number int) {
		require.True(p.t, p.apply(number, to, nil))
		code, out := p.wait("5m", "--instance", fmt.Sprint("escrow-relayer-", number), "--total", strconv.Itoa(to))
		require.Zero(p.t, code, out)
	}
	for i := from; i < to; i++ {
		step(i)
	}

	for i := range min(from, to) {
		step(i)
	}

	for i := from - 1; i >= to; i-- {
		p.remove(i)
		code, out := p.wait("5m", "--gone", fmt.Sprint("escrow-relayer-", i))
		require.Zero(p.t, code, out)
	}

	p.shares(to)
}

// grown is a platform with n services, whole, under traffic until stop is called.
func grown(t *testing.T, n int) (p *platform, stop func()) {
	p = &platform{world: newWorld(t, nil), serving: map[string]*lab.Process{}}
	t.Cleanup(p.retired.Wait)
	code, out := p.operator(nil, "migrate") // the services may not
	require.Zero(t, code, out)
	for i := range n {
		require.True(t, p.apply(i, n, nil))
	}

	code, out = p.wait("5m")
	require.Zero(t, code, out)
	done, ended := make(chan struct{}), make(chan error, 1)
	var blocks atomic.Int64
	go func() { // ends with stop
		ticker := time.NewTicker(150 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				ended <- nil
				return
			case <-ticker.C:
			}

			err := p.traffic.Step(context.Background(), 3)
			if err == nil {
				err = p.Chain.Mine(context.Background(), 1)
			}

			if err != nil {
				ended <- err
				return
			}

			blocks.Add(1)
		}
	}()

	return p, func() {
		close(done)
		require.NoError(t, <-ended)
		t.Logf("%d blocks with traffic", blocks.Load())
	}
}

// shares requires a fleet of exactly these totals, each serving its share.
func (p *platform) shares(total int) {
	p.until(fmt.Sprint("shared by ", total), func(f *fleet.Fleet) bool {
		if f.Slots.Unserved > 0 || f.Slots.Adopted > 0 || f.Live() != total {
			return false
		}

		for i := range total {
			in := f.Find(fmt.Sprint("escrow-relayer-", i))
			if in == nil || !in.Alive || in.Total != total || in.Number != i || in.Slots != 2520/total {
				return false
			}
		}

		return true
	})
}

// A fleet grows and shrinks by a rolling change of TOTAL_PARTITIONS under traffic: no event is lost or published twice.
func TestRepartition(t *testing.T) {
	t.Parallel()
	p, stop := grown(t, 3)
	p.moves(3, 4)
	p.moves(4, 2)
	stop()
	p.audit(false)
}

// What does not come up ends the resize there; the fleet goes on, and the way back makes it whole.
func TestRepartitionStopsAtWhatDoesNotComeUp(t *testing.T) {
	t.Parallel()
	p, stop := grown(t, 3)
	unlocked := func(f *fleet.Fleet) bool { return f.Slots.Unserved == 0 && f.Leader.Valid }
	require.False(t, p.apply(3, 4, map[string]string{"CONFIRMATIONS": "twelve"}), "its container does not start")
	p.until("safe", unlocked)

	// It starts, and reaches no node.
	require.True(t, p.apply(3, 4, map[string]string{"RPC_URLS": "http://127.0.0.1:1"}))
	code, out := p.wait("4s", "--instance", "escrow-relayer-3", "--total", "4")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "escrow-relayer-3 is not alive")
	p.until("safe", unlocked)

	// Mended, and the next one does not start: its old revision goes on beside the others, which have four already.
	p.remove(3)
	require.True(t, p.apply(3, 4, nil))
	require.True(t, p.apply(0, 4, nil))
	code, out = p.wait("5m", "--instance", "escrow-relayer-0", "--total", "4")
	require.Zero(t, code, out)
	require.False(t, p.apply(1, 4, map[string]string{"CONFIRMATIONS": "twelve"}))
	p.until("all four serve", func(f *fleet.Fleet) bool { return unlocked(f) && f.Live() == 4 })

	p.moves(4, 3)
	stop()
	p.audit(false)
}
