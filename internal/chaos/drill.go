package chaos

import (
	"context"
	"fmt"
	"time"
)

// Recovery is how long the fleet took, after a fault had ended, to serve every slot again, to have
// committed everything up to the chain's head of that moment, and to have published it.
type Recovery struct {
	Fault Fault
	Took  time.Duration
}

func (r Recovery) String() string {
	return fmt.Sprintf("%-16s n=%-3d for %-6s whole again after %s", r.Fault.Kind, r.Fault.N, r.Fault.For,
		r.Took.Round(10*time.Millisecond))
}

// Drill makes the faults of a plan one after the other, whatever their times, each on a fleet that has
// recovered from the one before, under traffic all the time. In the end the oracle judges everything.
// After an error the recoveries say how far it came.
func Drill(ctx context.Context, bin string, p Plan) (done []Recovery, v *Verdict, err error) {
	v, err = carryOut(ctx, bin, p, func(r *run, ctx context.Context) error {
		for _, f := range p.Faults {
			if err := r.grow(ctx, f); err != nil {
				return err
			}

			if err := r.attempt(ctx, f); err != nil {
				return err
			}

			took, err := r.recover(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", f, err)
			}

			d := Recovery{f, took}
			if done = append(done, d); took > recoveryLimit {
				r.note("longer than %s: %s", recoveryLimit, d)
			}
		}

		return nil
	})

	return done, v, err
}

// grow waits until the chain has enough new blocks for a reorganisation to replace, and the relayers
// have processed those that are final.
func (r *run) grow(ctx context.Context, f Fault) error {
	head, err := r.lab.Head(ctx)
	if err != nil {
		return err
	}

	enough := head + 5
	if f.reorganises() {
		enough += uint64(f.N + r.plan.Confirmations)
	}

	if _, err = r.reach(ctx, enough); err != nil {
		return err
	}

	_, err = r.recover(ctx)

	return err
}

// reach waits until the chain has a block, and returns the newest one.
func (r *run) reach(ctx context.Context, block uint64) (head uint64, err error) {
	for {
		if head, err = r.lab.Head(ctx); err != nil || head >= block {
			return head, err
		}

		if !pause(ctx, r.plan.BlockTime) {
			return head, ctx.Err()
		}
	}
}

// recoveryLimit is far beyond what any fault of a drill takes on a busy machine: a fleet that needs longer
// waits for something that does not come.
const recoveryLimit = 90 * time.Second

// recover waits until the fleet is whole, without starting anything.
func (r *run) recover(ctx context.Context) (time.Duration, error) {
	begun := time.Now()
	head, err := r.lab.Head(ctx)
	if err != nil {
		return 0, err
	}

	bounded, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	if why := r.settle(bounded, side{r.chain, r.lab.Contracts}, int64(head)-int64(r.plan.Confirmations), -1); why != "" {
		return 0, fmt.Errorf("not whole after %s: %s", settleTimeout, why)
	}

	return time.Since(begun), nil
}
