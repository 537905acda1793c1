// Command chaos runs seeds against the relayer.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/fusion-prime/escrow-relayer/internal/chaos"
)

func main() {
	seed := flag.Uint64("seed", 0, "run the plan of this seed only")
	first := flag.Uint64("first", uint64(time.Now().Unix())*1000, "first of the seeds to try")
	count := flag.Int("count", 0, "how many seeds; 0: until the minutes are over")
	minutes := flag.Float64("minutes", 5, "how long to try new seeds")
	parallel := flag.Int("parallel", 2, "seeds at once")
	given := flag.String("bin", "", "binary of a relayer, instead of building one (its clock cannot be wrong then)")
	with := flag.String("with", "", "only seeds whose plan has one of these faults, comma-separated")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *given, *with, *seed, *first, *count, *minutes, *parallel); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, given, with string, seed, first uint64, count int, minutes float64, parallel int) error {
	dir, err := os.MkdirTemp("", "escrow-chaos-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	bin := given
	if bin == "" {
		bin = filepath.Join(dir, "escrow-relayer")
		err = chaos.Build(ctx, dir, "./cmd/escrow-relayer", bin)
	}

	if err != nil {
		return err
	}

	if seed != 0 {
		first, count, parallel = seed, 1, 1
	}

	wanted := func(p chaos.Plan) bool {
		if with == "" {
			return true
		}

		for kind := range strings.SplitSeq(with, ",") {
			if p.Has(chaos.Kind(kind)) {
				return true
			}
		}

		return false
	}
	end := time.Now().Add(time.Duration(minutes * float64(time.Minute)))
	var ran, bad atomic.Int64
	var choosing sync.Mutex
	begun, next := 0, first
	choose := func() (chaos.Plan, bool) {
		choosing.Lock()
		defer choosing.Unlock()
		if ctx.Err() != nil || count > 0 && begun >= count || count == 0 && time.Now().After(end) {
			return chaos.Plan{}, false
		}

		for begun++; ; next++ {
			if p := chaos.NewPlan(next); wanted(p) {
				next++
				return p, true
			}
		}
	}
	var printing sync.Mutex
	var wg sync.WaitGroup
	for range parallel {
		wg.Go(func() {
			for {
				plan, ok := choose()
				if !ok {
					return
				}

				verdict, err := chaos.Run(ctx, bin, plan)
				if ctx.Err() != nil {
					return
				}

				ran.Add(1)
				printing.Lock()
				switch {
				case err != nil:
					bad.Add(1)
					fmt.Printf("ERROR %v\n%s\n", err, plan.String())
				default:
					if !verdict.Clean() {
						bad.Add(1)
					}

					fmt.Println(verdict)
				}

				printing.Unlock()
			}
		})
	}

	wg.Wait()
	fmt.Printf("%d seeds, %d of them wrong\n", ran.Load(), bad.Load())
	if bad.Load() > 0 {
		return fmt.Errorf("repeat one with `make chaos SEED=n`")
	}

	return ctx.Err()
}
