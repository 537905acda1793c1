package chaos

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// enduranceLimit is how long a fault that cuts one instance off lasts at most, until the others serve its
// slots. It is far beyond what that takes on a busy machine: how long it took is in the verdict.
const enduranceLimit = 120 * time.Second

// gap measures the longest time without progress, so far.
type gap struct {
	last    time.Time
	longest time.Duration
	why     string
}

// ended notes progress: a gap that was open ends now.
func (g *gap) ended() { g.last = time.Now() }

// lasts notes that there has been no progress, and why.
func (g *gap) lasts(why string) {
	if d := time.Since(g.last); d > g.longest {
		g.longest, g.why = d, why
	}
}

func (g *gap) String() string {
	return fmt.Sprintf("%s (%s)", g.longest.Round(10*time.Millisecond), g.why)
}

// endure waits for as long as a fault that cuts the instance off has to last. A long one lasts until the
// fleet does without that instance: every slot is served, and every cursor has passed the block that
// was the head when the fault began. The verdict says for how long each of the others, and the fleet as
// a whole, stood still meanwhile.
func (r *run) endure(ctx context.Context, f Fault, out string) {
	if f.For < long || r.plan.Instances < 2 {
		pause(ctx, f.For)
		return
	}

	head, _ := r.lab.Head(ctx)
	done := false
	begun := time.Now()
	whole, lowest := &gap{last: begun}, int64(0)
	others, cursors := map[string]*gap{}, map[string]int64{}
	for (time.Since(begun) < f.For || !done && time.Since(begun) < enduranceLimit) && pause(ctx, 50*time.Millisecond) {
		now, err := fleet.Read(ctx, r.lab.DB, r.chain.ChainID().Int64())
		if err == nil && now.Slots.Unserved == 0 && now.Chain.LowestCursor > lowest {
			lowest = now.Chain.LowestCursor
			done = done || lowest > int64(head)
			whole.ended()
		} else {
			whole.lasts(fmt.Sprintf("%d slots unserved, lowest cursor %d, %v", now.Slots.Unserved, now.Chain.LowestCursor, err))
		}

		at, err := r.cursors(ctx, out)
		for id, cursor := range at {
			if others[id] == nil {
				others[id] = &gap{last: begun}
			}

			if cursor != cursors[id] {
				cursors[id] = cursor
				others[id].ended()
			}

			others[id].lasts(fmt.Sprintf("at block %d after %s, %v", cursor, time.Since(begun).Round(100*time.Millisecond), err))
		}
	}

	r.saw("%s: the fleet as a whole stood still for %s", f, whole)
	if !done {
		r.note("%s: after %s the fleet does not do without %s: it stood still for %s", f, enduranceLimit, out, whole)
	}

	for id, g := range others {
		r.saw("%s: %s stood still for %s", f, id, g)
	}
}

// cursors of the instances that serve slots, but not of the one that is cut off.
func (r *run) cursors(ctx context.Context, out string) (map[string]int64, error) {
	rows, _ := r.lab.DB.Query(ctx, `select instance_id, next_block from cursors c where chain_id = $1 and instance_id <> $2
		and exists (select from slot_ownership s where s.chain_id = c.chain_id and s.owner = c.instance_id)`,
		r.chain.ChainID().Int64(), out)
	at := map[string]int64{}
	var id string
	var next int64
	_, err := pgx.ForEachRow(rows, []any{&id, &next}, func() error {
		at[id] = next
		return nil
	})

	return at, err
}
