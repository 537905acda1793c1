package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/migrations"
)

const (
	flatBlocks = 1000 // of each stretch that is measured
	flatEvents = 10   // a block
	flatWithin = 1.25 // of the cost at the smallest number of escrows: more is not flat
)

// flatSizes are the numbers of registered escrows at which Flat measures.
var flatSizes = []int{10, 1000, 10_000, 100_000, 1_000_000}

// Flat is what 1,000 blocks cost in requests and bytes, and a block in CPU time, by the number of
// registered escrows, of which one in a hundred has events. There are as many events at every size,
// so that what grows with them stays the same, and the registry alone differs. Live blocks are
// processed one by one as the node announces them. The blocks of a backfill are read by range, and
// twice again by the verifier.
func Flat(ctx context.Context, o *Options) (figures []Figure, err error) {
	l, err := lab.Start(ctx, lab.Options{Bin: o.Bin})
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, l.Close()) }()
	if _, err := migrations.Up(ctx, l.DB.Config().ConnConfig); err != nil {
		return nil, err
	}

	f := flat{Options: o, lab: l, blocks: o.scaled(flatBlocks)}
	if f.load, err = testchain.OpenLoad(ctx, l.Chain, l.Contracts); err != nil {
		return nil, err
	}

	defer f.load.Close()
	if f.clones, err = f.load.Clone(ctx, active(o.scaled(flatSizes[len(flatSizes)-1]))); err != nil {
		return nil, err
	}

	head, err := finalise(ctx, l)
	if err != nil {
		return nil, err
	}

	f.start = head
	if f.gate, err = faults.NewNode(l.Chain.HTTP(), l.Chain.WS(), 1); err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, f.gate.Close()) }()
	var sizes []float64
	costs := map[string][]usage{}
	for _, size := range flatSizes {
		n := max(10, o.scaled(size))
		if len(sizes) > 0 && float64(n) == sizes[len(sizes)-1] {
			continue
		}

		if err := register(ctx, l.DB, l, f.clones[:active(n)], n); err != nil {
			return nil, err
		}

		sizes = append(sizes, float64(n))
		for _, way := range []struct {
			name string
			run  func(context.Context, int) (usage, error)
		}{{"live", f.live}, {"backfill", f.backfill}} {
			u, err := way.run(ctx, n)
			if err != nil {
				return nil, fmt.Errorf("%s with %d escrows: %w", way.name, n, err)
			}

			o.say("flat: %s, %d escrows: %.0f requests, %.0f bytes, %.2f s CPU for 1,000 blocks", way.name, n, u.requests,
				u.bytes, u.cpu)
			costs[way.name] = append(costs[way.name], u)
		}
	}

	p := plot{x: sizes, xName: "registered escrows, 1 % of them with events"}
	for _, kind := range []struct {
		name, unit string
		of         func(usage) float64
	}{
		{"requests", "requests/1000 blocks", func(u usage) float64 { return u.requests }},
		{"bytes", "bytes/1000 blocks", func(u usage) float64 { return u.bytes }},
		{"cpu", "CPU ms/block", func(u usage) float64 { return u.cpu }},
	} {
		panel := panel{title: kind.unit}
		for _, way := range []string{"live", "backfill"} {
			var values []float64
			for _, u := range costs[way] {
				values = append(values, kind.of(u))
			}

			for i, v := range values {
				figures = append(figures, o.atMost(fmt.Sprintf("flat.%s.%s.%.0f", way, kind.name, sizes[i]), kind.unit, 0, v,
					[]float64{v}))
			}

			last := values[len(values)-1]
			figures = append(figures, o.atMost("flat."+way+"."+kind.name+".growth", "of the smallest", flatWithin,
				last/values[0], ratios(values)))
			panel.lines = append(panel.lines, line{name: way, y: values})
		}

		if kind.name == "requests" { // a block a range, which is how the seed's plan follows the head
			var seed []float64
			for _, n := range sizes {
				seed = append(seed, 1000*(1+3*n))
			}

			panel.lines = append(panel.lines, line{name: "a filter an escrow and event", y: seed, dashed: true})
		}

		p.panels = append(p.panels, panel)
	}

	return figures, o.draw("flat.svg", &p)
}

// ratios of values to the first.
func ratios(values []float64) (r []float64) {
	for _, v := range values {
		r = append(r, v/values[0])
	}

	return r
}

// active is how many of n escrows have events.
func active(n int) int { return max(1, n/100) }

// flat measures stretches of blocks, one after the other, on one chain and with one registry that grows.
type flat struct {
	*Options
	lab    *lab.Lab
	load   *testchain.Load
	clones []common.Address
	gate   *faults.Node // in front of the chain's
	start  uint64       // block at which all relayers begin
	blocks int          // of a stretch
	round  int          // of the clones' turn to emit
}

// emit makes one block with flatEvents events of the first n clones, who take turns.
func (f *flat) emit(ctx context.Context, n int) error {
	turn := make([]common.Address, 0, flatEvents)
	for range min(n, flatEvents) {
		turn = append(turn, f.clones[f.round%n])
		f.round++
	}

	return f.load.Emit(ctx, turn, flatEvents/len(turn))
}

// live mines blocks one by one, each when the last has been processed. The verifier stays out; it
// finds nothing to do at the start.
func (f *flat) live(ctx context.Context, n int) (u usage, err error) {
	env := map[string]string{"FINALITY": "latest", "RPC_URLS": f.lab.Chain.WS(), "VERIFY_INTERVAL": "1h"}

	return f.measure(ctx, n, false, env, func(ctx context.Context) error {
		for range f.blocks {
			if err := f.emit(ctx, active(n)); err != nil {
				return err
			}

			if err := f.processed(ctx, false); err != nil {
				return err
			}
		}

		if _, err := finalise(ctx, f.lab); err != nil {
			return err
		}

		return f.processed(ctx, false)
	})
}

// backfill mines blocks behind a gate, and lets the relayer see them all at once. It takes final
// blocks only, so that the node's final block is asked for with each look at the head.
func (f *flat) backfill(ctx context.Context, n int) (u usage, err error) {
	env := map[string]string{"FINALITY": "finalized", "RPC_URLS": f.gate.HTTP(), "VERIFY_INTERVAL": "200ms",
		"RPC_TIMEOUT": "10m", "RESIGN_AFTER": "10m"}

	return f.measure(ctx, n, true, env, func(ctx context.Context) error {
		closed := f.gate.Inject(faults.Fault{Mode: faults.Slow, Delay: time.Hour})
		defer closed.Remove()
		for range f.blocks {
			if err := f.emit(ctx, active(n)); err != nil {
				return err
			}
		}

		if _, err := finalise(ctx, f.lab); err != nil {
			return err
		}

		closed.Remove()

		return f.processed(ctx, true)
	})
}

// measure starts a relayer, and once it watches all n escrows and has nothing to do, does what is
// to be measured. It returns the usage for 1,000 blocks.
func (f *flat) measure(ctx context.Context, n int, verifies bool, env map[string]string,
	do func(context.Context) error) (u usage, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute+time.Duration(f.blocks)*100*time.Millisecond)
	defer cancel()
	env["FACTORY_ADDRESS"], env["START_BLOCK"], env["LOG_LEVEL"] = f.lab.Contracts.Load.Hex(), fmt.Sprint(f.start), "warn"
	env["ALLOW_LATE_START"] = "true" // what was before it is registered already
	p, err := f.lab.Run("flat", 0, 1, env)
	if err != nil {
		return u, err
	}

	defer func() { err = errors.Join(err, p.Stop(context.WithoutCancel(ctx))) }()
	if err := p.Ready(ctx); err != nil {
		return u, err
	}

	err = poll(ctx, 20*time.Millisecond, fmt.Sprintf("%d escrows to be watched", n), func() bool {
		m, err := scrape(ctx, p)
		return err == nil && m.sum("relayer_escrows_monitored") == float64(n)
	})
	if err != nil {
		return u, err
	}

	if err := f.processed(ctx, verifies); err != nil {
		return u, err
	}

	from, err := f.lab.Head(ctx)
	if err != nil {
		return u, err
	}

	before, err := used(ctx, p)
	if err != nil {
		return u, err
	}

	if err := do(ctx); err != nil {
		return u, err
	}

	after, err := used(ctx, p)
	if err != nil {
		return u, err
	}

	to, err := f.lab.Head(ctx)

	return after.minus(before).times(1000 / float64(to-from)), err
}

// processed waits until the cursor has passed the head, and the verifier too where there is one, by
// way of the database so that the relayer has no work with it.
func (f *flat) processed(ctx context.Context, verified bool) error {
	head, err := f.lab.Head(ctx)
	if err != nil {
		return err
	}

	if err := passed(ctx, f.lab.DB, head); err != nil || !verified {
		return err
	}

	return poll(ctx, 5*time.Millisecond, fmt.Sprintf("block %d to be verified", head), func() bool {
		var block int64
		return f.lab.DB.QueryRow(ctx, `select verified_block from leadership`).Scan(&block) == nil && block >= int64(head)
	})
}

// passed waits until the cursor of every slot, and the factory's, has passed a block.
func passed(ctx context.Context, db *pgxpool.Pool, block uint64) error {
	return poll(ctx, 2*time.Millisecond, fmt.Sprintf("block %d to be processed", block), func() bool {
		var next int64
		return db.QueryRow(ctx, leastCursor).Scan(&next) == nil && next > int64(block)
	})
}

// leastCursor is null while a slot is not owned.
const leastCursor = `
	select case when (select count(owner) from slot_ownership) = 2520 then least(
		(select min(next_block) from cursors where instance_id in (select owner from slot_ownership)), next_block) end
	from leadership`

// finalise mines until the head is final, and returns it: a simulated chain finalises the newest
// block whose number divides by 32.
func finalise(ctx context.Context, l *lab.Lab) (uint64, error) {
	head, err := l.Head(ctx)
	if err != nil {
		return 0, err
	}

	more := 32 - head%32 // the last is empty: who starts at it reads nothing twice

	return head + more, l.Chain.Mine(ctx, int(more))
}
