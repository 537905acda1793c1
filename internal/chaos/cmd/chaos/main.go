// Command chaos runs seeds against the relayer.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
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
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *seed, *first, *count, *minutes, *parallel); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, seed, first uint64, count int, minutes float64, parallel int) error {
	dir, err := os.MkdirTemp("", "escrow-chaos-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	bin := filepath.Join(dir, "escrow-relayer")
	build := exec.CommandContext(ctx, "go", "build", "-race", "-o", bin, "./cmd/escrow-relayer")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build the relayer: %w", err)
	}
	if seed != 0 {
		first, count, parallel = seed, 1, 1
	}
	end := time.Now().Add(time.Duration(minutes * float64(time.Minute)))
	var next, ran, bad atomic.Int64
	var printing sync.Mutex
	var wg sync.WaitGroup
	for range parallel {
		wg.Go(func() {
			for {
				i := next.Add(1) - 1
				if ctx.Err() != nil || count > 0 && i >= int64(count) || count == 0 && time.Now().After(end) {
					return
				}
				plan := chaos.NewPlan(first + uint64(i))
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
