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
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/migrations"
)

const (
	flatBlocks = 1000 // per measurement
	flatEvents = 10   // per block
	flatWithin = 1.25 // times the cost at the smallest number of escrows: more is not flat
)

// flatSizes are the numbers of registered escrows at which Flat measures.
var flatSizes = []int{10, 1000, 10_000, 100_000, 1_000_000}

// Flat is the cost of 1,000 blocks in requests and bytes, and of one block in CPU time, by the
// number of registered escrows, one in a hundred of which has events. The number of events is the
// same at every size, so that only the registry differs. Live blocks are processed one by one as
// the node announces them. The blocks of a backfill are read by range, and then twice more by the
// verifier.
func Flat(ctx context.Context, o *Options) (figures []Figure, err error) {
	l, err := lab.Start(ctx, lab.Options{Bin: o.Bin})
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, l.Close()) }()
	if _, err := migrations.Up(ctx, l.DB.Config().ConnConfig); err != nil {
		return nil, err
	}

	f := flat{Options: o, lab: l, blocks: o.scaled(flatBlocks), costs: map[string][]usage{}}
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
	for _, size := range flatSizes {
		n := max(10, o.scaled(size))
		if len(f.sizes) > 0 && float64(n) == f.sizes[len(f.sizes)-1] {
			continue
		}

		if err := f.measureSize(ctx, n); err != nil {
			return nil, err
		}
	}

	return f.figures()
}

// measureSize measures both ways with n registered escrows.
func (f *flat) measureSize(ctx context.Context, n int) error {
	if err := register(ctx, f.lab.DB, f.lab, f.clones[:active(n)], n); err != nil {
		return err
	}

	f.sizes = append(f.sizes, float64(n))
	for _, way := range []struct {
		name string
		run  func(context.Context, int) (usage, error)
	}{{"live", f.live}, {"backfill", f.backfill}} {
		u, err := way.run(ctx, n)
		if err != nil {
			return fmt.Errorf("%s with %d escrows: %w", way.name, n, err)
		}

		f.say("flat: %s, %d escrows: %.0f requests, %.0f bytes, %.2f s CPU for 1,000 blocks", way.name, n, u.requests,
			u.bytes, u.cpu)
		f.costs[way.name] = append(f.costs[way.name], u)
	}

	return nil
}

// figures of what measureSize has measured, and the plot.
func (f *flat) figures() (figures []Figure, err error) {
	p := plot{x: f.sizes, xName: "registered escrows, 1 % of them with events"}
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
			for _, u := range f.costs[way] {
				values = append(values, kind.of(u))
			}

			for i, v := range values {
				figures = append(figures, f.once(fmt.Sprintf("flat.%s.%s.%.0f", way, kind.name, f.sizes[i]), kind.unit, 0, v))
			}

			last := values[len(values)-1]
			figures = append(figures, f.atMost("flat."+way+"."+kind.name+".growth", "of the smallest", flatWithin,
				last/values[0], ratios(values)))
			panel.lines = append(panel.lines, line{name: way, y: values})
		}

		if kind.name == "requests" { // a range per block, which is how the seed's plan follows the head
			var seed []float64
			for _, n := range f.sizes {
				seed = append(seed, 1000*(1+3*n))
			}

			panel.lines = append(panel.lines, line{name: "a filter per escrow and event", y: seed, dashed: true})
		}

		p.panels = append(p.panels, panel)
	}

	return figures, f.draw("flat.svg", &p)
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

// flat measures one stretch of blocks after the other, on one chain, with one registry that grows.
// round, sizes and costs change from one measurement to the next; one goroutine does all of them.
type flat struct {
	*Options
	lab    *lab.Lab
	load   *testchain.Load
	clones []common.Address
	gate   *faults.Node // in front of the chain's node
	start  uint64       // block at which all relayers begin
	blocks int          // per stretch
	round  int          // events emitted so far: whose turn it is

	sizes []float64          // measured so far
	costs map[string][]usage // by way: live, backfill; one for each of sizes
}

// emit makes one block with flatEvents events of the first n clones, which take turns.
func (f *flat) emit(ctx context.Context, n int) error {
	turn := make([]common.Address, 0, flatEvents)
	for range min(n, flatEvents) {
		turn = append(turn, f.clones[f.round%n])
		f.round++
	}

	return f.load.Emit(ctx, turn, flatEvents/len(turn))
}

// live mines blocks one by one, each when the one before has been processed. The verifier has
// nothing to do at the start, and does not run again.
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

// backfill mines blocks while the relayer's requests wait at the gate, so that it sees them all at
// once. It takes final blocks only: each look at the head asks for the node's final block, too.
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

// measure starts a relayer, waits until it watches all n escrows and has nothing to do, and calls
// do. It returns the usage during do, per 1,000 blocks.
func (f *flat) measure(ctx context.Context, n int, verifies bool, env map[string]string,
	do func(context.Context) error) (u usage, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute+time.Duration(f.blocks)*100*time.Millisecond)
	defer cancel()
	env["FACTORY_ADDRESS"], env["START_BLOCK"], env["LOG_LEVEL"] = f.lab.Contracts.Load.Hex(), fmt.Sprint(f.start), "warn"
	env["ESCROW_ABI"] = contracts.NoiseMetaData.ABI
	env["ALLOW_LATE_START"] = "true" // the escrows below START_BLOCK are registered already
	p, err := f.lab.RunReady(ctx, "flat", 0, 1, env)
	if err != nil {
		return u, err
	}

	defer func() { err = errors.Join(err, p.Stop(context.WithoutCancel(ctx))) }()
	err = poll(ctx, 20*time.Millisecond, fmt.Sprintf("%d escrows to be watched", n), func() bool {
		m, err := p.Metrics(ctx)
		return err == nil && m.Sum("relayer_escrows_monitored") == float64(n)
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

// processed waits until the cursors have passed the head, and with verified the verifier too. It
// asks the database, so that the relayer has no work with it.
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

	more := 32 - head%32 // the last is empty: a relayer that starts at it reads no event twice

	return head + more, l.Chain.Mine(ctx, int(more))
}
