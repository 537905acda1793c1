package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// manifests writes the manifests of a fleet with the binary.
func (p *platform) manifests(n int) string {
	dir := filepath.Join(p.t.TempDir(), "manifests")
	code, out := call(p.t, nil, "plan", "manifests", "--partitions", strconv.Itoa(n), "--image", "relayer@sha256:0",
		"--region", "r", "--project", "lab-project",
		"--service-account", "relayer@lab-project.iam.gserviceaccount.com", "--chain-id", p.Chain.ChainID().String(),
		"--factory", p.Contracts.Factory.Hex(),
		"--start-block", strconv.FormatUint(p.Contracts.Block, 10), "--topic", "escrow-events", "--retractions-topic",
		"escrow-retractions",
		"--env", fmt.Sprintf("CONFIRMATIONS=%d,ADOPT_AFTER=1s", p.Confirmations), "--out", dir)
	require.Zero(p.t, code, out)

	return dir
}

// sh runs a command line as an operator types it.
func (p *platform) sh(line string) (code int, out string) {
	ctx, cancel := context.WithTimeout(p.t.Context(), 90*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", line)
	cmd.Dir, cmd.Env = "../..", p.environ()
	text, _ := cmd.CombinedOutput()

	return cmd.ProcessState.ExitCode(), string(text)
}

// grown is a platform with n services, whole, under traffic until stop is called.
func grown(t *testing.T, n int) (p *platform, stop func()) {
	p = newPlatform(newWorld(t, nil))
	code, out := p.sh("escrow-relayer migrate") // the services may not
	require.Zero(t, code, out)
	dir := p.manifests(n)
	for i := range n {
		code, out := p.sh(fmt.Sprintf("gcloud run services replace %s/escrow-relayer-%d.yaml --region r --quiet", dir, i))
		require.Zero(t, code, out)
	}

	code, out = p.sh("escrow-relayer plan wait --timeout 60s --every 100ms --lag 50")
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

const repartition = "deploy/repartition.sh --apply --timeout 30s "

func TestRepartitionScriptOnRealProcesses(t *testing.T) {
	t.Parallel()
	p, stop := grown(t, 3)
	code, out := p.sh(repartition + "--from 3 --to 4 --manifests " + p.manifests(4))
	t.Log(out)
	require.Zero(t, code, out)
	p.shares(4)
	code, out = p.sh(repartition + "--from 4 --to 2")
	t.Log(out)
	require.Zero(t, code, out)
	p.shares(2)
	stop()
	p.audit(false)
}

// What does not come up stops the script; the fleet goes on, and the way back that the script
// prints makes it whole, as does the way on once the cause is mended.
func TestRepartitionScriptStopsAtWhatDoesNotComeUp(t *testing.T) {
	t.Parallel()
	p, stop := grown(t, 3)
	four := p.manifests(4)
	unlocked := func(f *fleet.Fleet) bool { return f.Slots.Unserved == 0 && f.Leader.Valid }

	// The new service's container does not start.
	p.sicken("escrow-relayer-3", map[string]string{"CONFIRMATIONS": "twelve"})
	code, out := p.sh(repartition + "--from 3 --to 4 --manifests " + four)
	t.Log(out)
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "STOPPED: escrow-relayer-3 could not be created")

	// Begun anew, it starts, and reaches no node. Nothing else is changed.
	p.sicken("escrow-relayer-3", map[string]string{"RPC_URLS": "http://127.0.0.1:1"})
	code, out = p.sh(ways(t, out)["Go on, when mended"] + " --timeout 4s")
	t.Log(out)
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "is there, and did not start")
	require.Contains(t, out, "escrow-relayer-3 is not alive")
	require.NotContains(t, out, "escrow-relayer-0: 3 -> 4")
	p.until("safe", unlocked)

	// Mended, it goes on; and the next one does not start: its service says 4, and the revision with 3 goes on.
	p.sicken("escrow-relayer-3", nil)
	p.sicken("escrow-relayer-1", map[string]string{"CONFIRMATIONS": "twelve"})
	code, _ = p.sh("gcloud run services delete escrow-relayer-3 --quiet") // as an operator mends a container that loops
	require.Zero(t, code)
	code, out = p.sh(ways(t, out)["Go on, when mended"] + " --timeout 30s")
	t.Log(out)
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "STOPPED: escrow-relayer-1 could not be changed")
	p.until("all four serve", func(f *fleet.Fleet) bool { return unlocked(f) && f.Live() == 4 })

	// Going on without mending it does not take the service's word for it.
	code, again := p.sh(ways(t, out)["Go on, when mended"])
	require.Equal(t, 1, code, again)
	require.Contains(t, again, "STOPPED: escrow-relayer-1 could not be changed")
	p.sicken("escrow-relayer-1", nil)
	code, back := p.sh(ways(t, again)["Go back"])
	t.Log(back)
	require.Zero(t, code, back)
	p.shares(3)
	stop()
	p.audit(false)
}
