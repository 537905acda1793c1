package chaos

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// patience is how long slots may be unserved, or the lowest cursor stand still, while an instance is
// frozen, cut off or idle; and how long another instance may stand still then.
const patience = 20 * time.Second

// patience of the fleet with one instance out. One that holds its lock and does nothing is taken for dead later.
func (f Fault) patience() time.Duration {
	if f.Kind == HangingClaimer {
		return patience + partition.StaleAfter
	}

	return patience
}

// gap is the longest time without something, so far.
type gap struct {
	last    time.Time
	longest time.Duration
	why     string
}

// ended says that it is there now.
func (g *gap) ended() { g.last = time.Now() }

func (g *gap) lasts(why string) {
	if d := time.Since(g.last); d > g.longest {
		g.longest, g.why = d, why
	}
}

func (g *gap) String() string {
	return fmt.Sprintf("%s (%s)", g.longest.Round(10*time.Millisecond), g.why)
}

// endure lasts as long as a fault that has the instance out. If that is longer than the fleet may
// need, the fleet has to do without it meanwhile: every slot is served, and the lowest cursor moves.
// The other instances go on with their slots all the while.
func (r *run) endure(ctx context.Context, f Fault, out string) {
	if f.For <= f.patience() || r.plan.Instances < 2 {
		pause(ctx, f.For)
		return
	}

	begun := time.Now()
	whole, lowest := &gap{last: begun}, int64(0)
	others, cursors := map[string]*gap{}, map[string]int64{}
	for time.Since(begun) < f.For && pause(ctx, 50*time.Millisecond) {
		now, err := fleet.Read(ctx, r.lab.DB, r.chain.ChainID().Int64())
		if err == nil && now.Slots.Unserved == 0 && now.Chain.LowestCursor > lowest {
			lowest = now.Chain.LowestCursor
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
	if whole.longest > f.patience() {
		r.note("%s: the fleet as a whole stood still for %s", f, whole)
	}

	for id, g := range others {
		r.saw("%s: %s stood still for %s", f, id, g)
		if g.longest > patience {
			r.note("%s: %s stood still for %s", f, id, g)
		}
	}
}

// cursors of the instances that serve slots, but not of the one that is out.
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
