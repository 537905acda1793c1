package chaos

import (
	"context"
	"fmt"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// enduranceLimit is how long a fault that cuts one instance off lasts at most, until the others serve its
// slots. It is far beyond what that takes on a busy machine: how long it took is in the verdict.
const enduranceLimit = 120 * time.Second

// endure waits for as long as a fault that cuts the instance off has to last. A long one lasts until the
// fleet does without that instance: every slot is served, and every cursor has passed the block that
// was the head when the fault began.
func (r *run) endure(ctx context.Context, f Fault, out string) {
	if f.For < long || r.plan.Instances < 2 {
		pause(ctx, f.For)
		return
	}

	head, _ := r.lab.Head(ctx)
	begun, without, why := time.Now(), time.Duration(0), ""
	for (time.Since(begun) < f.For || without == 0 && time.Since(begun) < enduranceLimit) &&
		pause(ctx, 50*time.Millisecond) {
		now, err := fleet.Read(ctx, r.lab.DB, r.chain.ChainID().Int64())
		why = fmt.Sprintf("%d slots unserved, lowest cursor %d, %v", now.Slots.Unserved, now.Chain.LowestCursor, err)
		if without == 0 && err == nil && now.Slots.Unserved == 0 && now.Chain.LowestCursor > int64(head) {
			without = time.Since(begun)
		}
	}

	if without == 0 {
		r.note("%s: after %s the fleet does not do without %s: %s", f, enduranceLimit, out, why)
		return
	}

	r.saw("%s: the fleet did without %s after %s", f, out, without.Round(10*time.Millisecond))
}
