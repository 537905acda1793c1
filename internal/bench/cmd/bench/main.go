// Command bench measures the relayer and prints a table.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/fusion-prime/escrow-relayer/internal/bench"
	"github.com/fusion-prime/escrow-relayer/internal/lab"
)

func main() {
	only := flag.String("only", "", "run only one of: "+bench.Names())
	var o bench.Options
	flag.Float64Var(&o.Scale, "scale", 1, "factor of all sizes; targets hold for 1")
	flag.IntVar(&o.Runs, "runs", 3, "runs per figure whose median is taken")
	flag.IntVar(&o.Trials, "trials", 50, "trials per kind of failover")
	flag.IntVar(&o.Blocks, "blocks", 100, "blocks that live measures")
	flag.StringVar(&o.Bin, "bin", "", "binary of a relayer to measure, such as an earlier one, instead of building one")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	flag.Parse()
	if err := run(ctx, &o, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o *bench.Options, only string) error {
	o.Log = os.Stderr
	if o.Bin == "" {
		dir, err := os.MkdirTemp("", "escrow-bench-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		o.Bin = filepath.Join(dir, "escrow-relayer")
		if err := lab.Build(ctx, "./cmd/escrow-relayer", o.Bin); err != nil {
			return err
		}
	}

	var figures []bench.Figure
	for _, b := range bench.All {
		if only != "" && only != b.Name && !strings.HasPrefix(b.Name, only+".") {
			continue
		}

		more, err := b.Run(ctx, o)
		if err != nil {
			return fmt.Errorf("%s: %w", b.Name, err)
		}

		figures = append(figures, more...)
	}

	if len(figures) == 0 {
		return fmt.Errorf("there is no benchmark %q: name one of %s", only, bench.Names())
	}

	o.Print(os.Stdout, figures)

	return nil
}
