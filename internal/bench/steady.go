package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

const (
	steadyEvents = 200 // per second, in one block
	// The most that something steady grows from the middle to the end, as a share of its value in the
	// middle.
	steadyGrowth = 0.1
	// The most dead rows of a table: those of two minutes, since autovacuum looks once per minute, and
	// each event leaves one dead row in the outbox.
	steadyDead = 2 * 60 * steadyEvents
)

// growing tables are meant to grow: events with what happens on the chain, and chain_blocks up to
// the 2,048 blocks that are kept, which is more than a run has.
var growing = []string{"events", "chain_blocks"}

// Steady observes a relayer for Options.Minutes at 200 events per second: its memory, goroutines
// and connections, and the size and the dead rows of each table, at the start, in the middle and at
// the end. The start is after a tenth of the time, when what is allocated once has been allocated.
func Steady(ctx context.Context, o *Options) (figures []Figure, err error) {
	l, err := lab.Start(ctx, lab.Options{Bin: o.Bin, Postgres: testpg.Options{Durable: true}})
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, l.Close()) }()
	load, err := testchain.OpenLoad(ctx, l.Chain, l.Contracts)
	if err != nil {
		return nil, err
	}
	defer load.Close()
	clones, err := load.Clone(ctx, steadyEvents)
	if err != nil {
		return nil, err
	}

	p, err := l.RunReady(ctx, "steady", 0, 1, map[string]string{"FACTORY_ADDRESS": l.Contracts.Load.Hex(),
		"ESCROW_ABI":      contracts.NoiseMetaData.ABI,
		"VERIFY_INTERVAL": "30s", "HEARTBEAT_INTERVAL": "30s", "LOG_LEVEL": "warn"})
	if err != nil {
		return nil, err
	}

	took := time.Duration(o.Minutes * float64(time.Minute))
	o.say("steady: %s at %d events/s", took, steadyEvents)
	blocks, samples, err := sampleUnderLoad(ctx, l, p, load, clones, took)
	if err != nil {
		return nil, err
	}

	rate := float64(blocks*steadyEvents) / took.Seconds()
	figures = append(figures, unlessFew(o.atLeast("steady.rate", "events/s", 0.95*steadyEvents, []float64{rate}),
		int(o.Minutes), 10))
	for _, name := range slices.Sorted(maps.Keys(samples[len(samples)-1].values)) {
		figures = append(figures, o.steady(name, samples))
	}

	return figures, p.Stop(ctx)
}

// sampleUnderLoad makes a block per second for that time, and takes up to 120 samples of the
// relayer meanwhile.
func sampleUnderLoad(ctx context.Context, l *lab.Lab, p *lab.Process, load *testchain.Load, clones []common.Address,
	took time.Duration) (blocks int, samples []sample, err error) {
	live, cancel := context.WithTimeout(ctx, took)
	defer cancel()
	g, live := errgroup.WithContext(live)
	g.Go(func() error {
		return lab.Every(live, time.Second, func() error { blocks++; return load.Emit(ctx, clones, 1) })
	})
	begun := time.Now()
	g.Go(func() error {
		return lab.Every(live, max(took/120, 250*time.Millisecond), func() error {
			s, err := takeSample(ctx, l, p)
			if s.after = time.Since(begun); err == nil && s.after > took/10 {
				samples = append(samples, s)
			}

			return err
		})
	})
	if err := g.Wait(); err != nil {
		return 0, nil, err
	}

	if len(samples) < 3 {
		return 0, nil, fmt.Errorf("only %d samples in %s: make it longer", len(samples), took)
	}

	return blocks, samples, nil
}

// sample is the state at one moment: values by name and unit, such as "rss MiB".
type sample struct {
	after  time.Duration
	values map[string]float64
}

const tableSizes = `
	select c.relname, pg_total_relation_size(c.oid)::float8 / 1024, coalesce(s.n_dead_tup, 0)::float8
	from pg_class c join pg_stat_user_tables s on s.relid = c.oid where c.relkind = 'r'
		and c.relname <> 'escrow_relayer_versions' order by 1`

func takeSample(ctx context.Context, l *lab.Lab, p *lab.Process) (s sample, err error) {
	m, err := p.Metrics(ctx)
	if err != nil {
		return s, err
	}

	s.values = map[string]float64{"rss MiB": resident(m), "goroutines ": m.Sum("go_goroutines")}
	var connections float64
	if err := l.DB.QueryRow(ctx,
		`select count(*)::float8 from pg_stat_activity where application_name like 'escrow-relayer%'`).Scan(&connections); err != nil {
		return s, fmt.Errorf("count connections: %w", err)
	}

	s.values["connections "] = connections
	rows, _ := l.DB.Query(ctx, tableSizes)
	var table string
	var size, dead float64
	_, err = pgx.ForEachRow(rows, []any{&table, &size, &dead}, func() error {
		s.values["size."+table+" KiB"], s.values["dead."+table+" rows"] = size, dead
		return nil
	})
	if err != nil {
		return s, fmt.Errorf("read the sizes of the tables: %w", err)
	}

	return s, nil
}

// steady is the figure of one value: the value at the end; of dead rows, the most that there were
// in the second half. Its runs are the start, the middle, the end, and the slope per minute over
// the second half.
func (o *Options) steady(name string, samples []sample) Figure {
	var x, y []float64
	for _, s := range samples {
		x, y = append(x, s.after.Minutes()), append(y, s.values[name])
	}

	half := len(y) / 2
	// a single sample may be from any stage of a garbage collection or a vacuum
	middle := Quantile(y[max(0, half-3):min(len(y), half+4)], 0.5)
	end := Quantile(y[max(0, len(y)-7):], 0.5)
	what, unit, _ := strings.Cut(name, " ")
	f := Figure{Name: "steady." + what, Value: end, Unit: unit,
		Runs: []float64{y[0], middle, end, slope(x[half:], y[half:])}, Scale: o.Scale, Commit: o.Commit}
	kind, table, _ := strings.Cut(what, ".")
	switch {
	case kind == "size" && slices.Contains(growing, table):
		return f
	case kind == "dead": // they come and go
		f.Value, f.Target = slices.Max(y[half:]), steadyDead
	case kind == "size":
		f.Target = middle*(1+steadyGrowth) + 64 // pages that a table gains in one step
	default:
		f.Target = middle*(1+steadyGrowth) + 2
	}

	if o.Minutes >= 10 {
		met := f.Value <= f.Target
		f.Met = &met
	}

	return f
}

// slope of the line through the points, by least squares.
func slope(x, y []float64) float64 {
	var mx, my, a, b float64
	for i := range x {
		mx, my = mx+x[i]/float64(len(x)), my+y[i]/float64(len(y))
	}

	for i := range x {
		a, b = a+(x[i]-mx)*(y[i]-my), b+(x[i]-mx)*(x[i]-mx)
	}

	if b == 0 {
		return 0
	}

	return a / b
}
