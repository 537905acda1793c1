// Command chaos runs seeds against the relayer.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fusion-prime/escrow-relayer/internal/chaos"
)

// perCore is how many seeds run at once for each core. A seed takes some 25 s, most of which are waits, and
// computes for 5 s.
const perCore = 4

// options of the command line.
type options struct {
	bin, with   string
	seed, first uint64
	count       int
	minutes     float64
	parallel    int
	race        bool
	commands    bool
	broken      string
}

func main() {
	var o options
	flag.Uint64Var(&o.seed, "seed", 0, "run the plan of this seed only")
	flag.Uint64Var(&o.first, "first", uint64(time.Now().Unix())*1000, "first of the seeds to try")
	flag.IntVar(&o.count, "count", 0, "how many seeds to try; 0: new ones until -minutes are over")
	flag.Float64Var(&o.minutes, "minutes", 5, "how many minutes to try new seeds")
	flag.IntVar(&o.parallel, "parallel", perCore*runtime.NumCPU(), "seeds at once")
	flag.BoolVar(&o.race, "race", false, "relayers with the race detector; a seed computes for twice as long")
	flag.StringVar(&o.bin, "bin", "", "binary of a relayer to run, instead of building one (its clock is never wrong)")
	flag.StringVar(&o.with, "with", "",
		"only seeds whose plan has one of these faults, comma-separated; an unknown name lists all")
	flag.BoolVar(&o.commands, "commands", false, "plans with commands in the traffic, and the faults of the way back")
	flag.StringVar(&o.broken, "broken", "",
		"run a relayer that makes this mistake, and say whether the oracle sees it; an unknown name lists all of them")
	flag.Parse()
	if err := o.check(); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

// check refuses what would search for ever, or would try nothing and call that clean.
func (o options) check() error {
	if o.parallel < 1 {
		return fmt.Errorf("-parallel %d: use 1 or more", o.parallel)
	}

	if o.broken != "" {
		if _, err := chaos.FindBreakage(o.broken); err != nil {
			return fmt.Errorf("-broken: %w", err)
		}
	}

	known := chaos.Kinds(o.commands)
	for _, kind := range o.kinds() {
		if !slices.Contains(known, kind) {
			return fmt.Errorf("-with: no plan has the fault %q (-commands has other faults than the rest): use some of %v",
				kind, known)
		}
	}

	return nil
}

func run(ctx context.Context, o options) error {
	if o.bin == "" {
		dir, err := os.MkdirTemp("", "escrow-chaos-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)

		if o.broken != "" {
			return broken(ctx, o, dir)
		}

		o.bin = filepath.Join(dir, "escrow-relayer")
		if err := chaos.Build(ctx, dir, o.bin, o.race); err != nil {
			return err
		}
	}

	return seeds(ctx, o)
}

// broken runs a relayer that makes a mistake, with the plan of the mistake, or with the one of -seed.
func broken(ctx context.Context, o options, dir string) error {
	b, err := chaos.FindBreakage(o.broken)
	if err != nil {
		return err
	}

	bin := filepath.Join(dir, "escrow-relayer")
	if err := chaos.BuildBroken(ctx, b, ".", dir, bin); err != nil {
		return err
	}

	plan := b.Plan()
	if o.seed != 0 {
		plan = chaos.NewCommandsPlan(o.seed)
	}

	v, err := chaos.Run(ctx, bin, plan)
	if err != nil {
		return err
	}

	fmt.Println(v)
	if !b.Seen(v) {
		return fmt.Errorf("nobody noticed that the relayer %s: the verdict has no %q", b.What, b.Says)
	}

	fmt.Printf("seen: the relayer %s\n", b.What)

	return nil
}

// seeds runs as many plans side by side as -parallel says, and prints how many there were.
func seeds(ctx context.Context, o options) error {
	if o.seed != 0 {
		o.first, o.count, o.parallel = o.seed, 1, 1
	}

	searching, end := ctx, context.CancelFunc(func() {})
	if o.count == 0 {
		searching, end = context.WithTimeout(ctx, time.Duration(o.minutes*float64(time.Minute)))
	}
	defer end()

	var mu sync.Mutex
	ran, bad := 0, 0
	tell := func(v *chaos.Verdict, err error, plan chaos.Plan) {
		mu.Lock()
		defer mu.Unlock()
		if ran++; err != nil || !v.Clean() {
			bad++
		}

		if err != nil {
			fmt.Printf("ERROR %v\n%s\n", err, plan.String())
		} else {
			fmt.Println(v)
		}
	}
	var wg sync.WaitGroup
	plans := o.plans(searching)
	for range o.parallel {
		wg.Go(func() {
			for plan := range plans {
				verdict, err := chaos.Run(ctx, o.bin, plan)
				if ctx.Err() == nil {
					tell(verdict, err, plan)
				}
			}
		})
	}

	wg.Wait()
	fmt.Printf("%d seeds, %d of them wrong\n", ran, bad)
	if bad > 0 {
		return errors.New("repeat one with `make chaos SEED=n`")
	}

	return ctx.Err()
}

// plans are those of the seeds that are wanted, one after the other, until there were enough or ctx ends.
func (o options) plans(ctx context.Context) <-chan chaos.Plan {
	found := make(chan chaos.Plan)
	go func() { // ends with ctx
		defer close(found)
		for seed, n := o.first, 0; ctx.Err() == nil && (o.count == 0 || n < o.count); seed++ {
			p := o.plan(seed)
			if !o.wants(p) {
				continue
			}

			n++
			select {
			case found <- p:
			case <-ctx.Done():
			}
		}
	}()

	return found
}

// plan of a seed.
func (o options) plan(seed uint64) chaos.Plan {
	if o.commands {
		return chaos.NewCommandsPlan(seed)
	}

	return chaos.NewPlan(seed)
}

func (o options) wants(p chaos.Plan) bool { return o.with == "" || p.Has(o.kinds()...) }

// kinds of -with.
func (o options) kinds() (kinds []chaos.Kind) {
	if o.with == "" {
		return nil
	}

	for kind := range strings.SplitSeq(o.with, ",") {
		kinds = append(kinds, chaos.Kind(kind))
	}

	return kinds
}
