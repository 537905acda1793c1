package chaos

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
)

// otherSettings would split the stream: what a consumer gets would depend on the instance that serves an escrow.
var otherSettings = []func(*Plan) map[string]string{
	func(p *Plan) map[string]string {
		return map[string]string{"FINALITY": "confirmations", "CONFIRMATIONS": strconv.Itoa(p.Confirmations + 1)}
	},
	func(*Plan) map[string]string { return map[string]string{"FINALITY": "finalized"} },
	func(p *Plan) map[string]string {
		if p.OrderingKey == "slot" {
			return map[string]string{"ORDERING_KEY": "escrow"}
		}

		return map[string]string{"ORDERING_KEY": "slot"}
	},
}

// guest starts a process that does not belong to the fleet, and stops it later: one with the INSTANCE_ID of
// another, with another total, or with settings that do not fit the fleet's.
func (r *run) guest(ctx context.Context, f Fault) error {
	p, env, err := r.startGuest(ctx, f)
	if err != nil {
		return err
	}

	timer := time.NewTimer(f.For + 2*time.Second)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.Exited(): // a twin while the other one runs; any guest while nodes or topics are not what they should be
		code, err := p.Wait(ctx)
		if err == nil && code != refused {
			r.note("%s exited with %d by itself: %s", p.ID, code, tail(p.LogFile))
		}

		return err
	case <-ctx.Done():
	}

	// While all others are dead for a moment, there is nobody to disagree with.
	log, err := os.ReadFile(p.LogFile)
	if f.Kind == OtherSettings && bytes.Contains(log, []byte(`"joined the fleet"`)) && !r.doubtful(r.lost()) {
		r.note("%s joined a fleet with other settings: %v", p.ID, env)
	}

	if err != nil {
		return err
	}

	p.Signal(syscall.SIGTERM)
	bounded, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	if code, err := p.Wait(bounded); err != nil || code != 0 && code != refused { // it may be refused at that moment
		r.note("%s exited with %d after SIGTERM, %v: %s", p.ID, code, err, tail(p.LogFile))
	}

	return nil
}

// startGuest starts the process, and returns where its environment differs from the fleet's.
func (r *run) startGuest(ctx context.Context, f Fault) (*lab.Process, map[string]string, error) {
	head, err := r.lab.Head(ctx)
	if err != nil {
		return nil, nil, err
	}

	r.mu.Lock()
	r.guests++
	name, number, total := "guest"+strconv.Itoa(r.guests), min(f.Who, r.total-1), r.total
	env := map[string]string{"INSTANCE_ID": name, "RPC_URLS": r.nodes.front[0].HTTP() + "," + r.nodes.front[1].HTTP()}
	if f.Kind == Twin || f.Kind == OtherSettings && f.Keep {
		env["INSTANCE_ID"], env["INSTANCE_LOCK_WAIT"] = "r"+strconv.Itoa(f.Who), "500ms"
	}

	r.mu.Unlock()
	switch f.Kind {
	case Stale:
		total = max(f.N, 1)
		number = f.Who % total
	case OtherSettings:
		maps.Copy(env, otherSettings[f.N](&r.plan))
	case WrongStart:
		env["START_BLOCK"] = strconv.FormatUint(head, 10)
		if f.N == 1 {
			env["START_BLOCK"] = strconv.FormatUint(head+1_000_000, 10)
		}
	}

	p, err := r.lab.Run(name, number, total, env)

	return p, env, err
}

// beginLate makes escrows below a START_BLOCK. The fleet has to refuse that START_BLOCK. Then
// ALLOW_LATE_START permits it, and the fleet begins there.
func (r *run) beginLate(ctx context.Context) error {
	traffic, err := newTraffic(ctx, r.chain, r.lab.Contracts, r.plan.Seed+1)
	if err != nil {
		return err
	}
	defer traffic.Close()

	for range 6 {
		if err := traffic.Step(ctx, 6); err != nil {
			return err
		}

		if err := r.chain.Mine(ctx, 1); err != nil {
			return err
		}
	}

	head, err := r.lab.Head(ctx)
	if err != nil {
		return err
	}

	for name, block := range map[string]uint64{"above": head + 1_000_000, "late": head} {
		p, err := r.lab.Run(name, 0, r.plan.Instances, map[string]string{
			"RPC_URLS": r.nodes.front[0].HTTP(), "START_BLOCK": strconv.FormatUint(block, 10),
		})
		if err != nil {
			return err
		}

		bounded, cancel := context.WithTimeout(ctx, settleTimeout)
		code, err := p.Wait(bounded)
		cancel()
		if err != nil || code != refused {
			r.note("START_BLOCK=%d was not refused: code %d, %v: %s", block, code, err, tail(p.LogFile))
		}
	}

	r.lab.Env["START_BLOCK"], r.lab.Env["ALLOW_LATE_START"] = strconv.FormatUint(head, 10), "true"

	return nil
}

// rewind moves the first block back to the deployment, as an operator does.
func (r *run) rewind(ctx context.Context) error {
	for {
		cmd := exec.CommandContext(ctx, r.lab.Bin, "rewind", "--to", strconv.FormatUint(r.lab.Contracts.Block, 10))
		cmd.Env = r.lab.Environ("operator", 0, 1, nil)
		out, err := cmd.CombinedOutput()
		// It says so too when it is carried out again, because the first answer was lost.
		if err == nil || bytes.Contains(out, []byte("can only be moved back")) {
			return nil
		}

		if !pause(ctx, 200*time.Millisecond) {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
}
