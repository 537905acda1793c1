// Command bench measures the relayer and prints a table.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/fusion-prime/escrow-relayer/internal/bench"
	"github.com/fusion-prime/escrow-relayer/internal/lab"
)

func main() {
	only := flag.String("only", "", "run only one of: "+bench.Names())
	out := flag.String("out", "", "also write the figures as JSON to this file")
	var o bench.Options
	flag.Float64Var(&o.Scale, "scale", 1, "factor of all sizes; targets hold for 1")
	flag.IntVar(&o.Runs, "runs", 3, "runs per figure whose median is taken")
	flag.IntVar(&o.Trials, "trials", 50, "trials per kind of failover")
	flag.IntVar(&o.Blocks, "blocks", 100, "blocks that live measures")
	flag.StringVar(&o.Bin, "bin", "", "binary of a relayer to measure, instead of building one")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	flag.Parse()
	if err := run(ctx, &o, *only, *out); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o *bench.Options, only, out string) (err error) {
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

	if only == "" || only == "backfill" {
		if o.Base, err = baseline(ctx); err != nil {
			return fmt.Errorf("build the baseline: %w", err)
		}
	}

	commit, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		commit = []byte("unknown")
	}

	o.Commit = strings.TrimSpace(string(commit))
	figures := []bench.Figure{}
	found := false
	for _, b := range bench.All {
		if only != "" && only != b.Name && !strings.HasPrefix(b.Name, only+".") {
			continue
		}

		found = true
		more, err := b.Run(ctx, o)
		if err != nil {
			return fmt.Errorf("%s: %w", b.Name, err)
		}

		figures = append(figures, more...)
	}

	if !found {
		return fmt.Errorf("there is no benchmark %q: name one of %s", only, bench.Names())
	}

	bench.Print(os.Stdout, figures)
	if out == "" {
		return nil
	}

	body, err := json.MarshalIndent(figures, "", "  ")
	if err != nil {
		return err
	}

	return os.WriteFile(out, append(body, '\n'), 0o644) //nolint:gosec // not secret
}

// baseline is the binary of the commit that internal/bench/BASELINE names, built once and kept in the cache folder;
// empty where the clone does not have that commit.
func baseline(ctx context.Context) (bin string, err error) {
	named, err := os.ReadFile("internal/bench/BASELINE")
	if err != nil {
		return "", err
	}

	commit := strings.TrimSpace(string(named))
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}

	bin = filepath.Join(cache, "escrow-relayer", "baseline-"+commit)
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}

	run := func(dir, name string, args ...string) error {
		c := exec.CommandContext(ctx, name, args...)
		c.Dir, c.Stderr = dir, os.Stderr

		return c.Run()
	}
	if run("", "git", "cat-file", "-e", commit+"^{commit}") != nil {
		fmt.Fprintln(os.Stderr, "bench: this clone lacks the baseline", commit+": nothing is compared with it")
		return "", nil
	}

	dir, err := os.MkdirTemp("", "escrow-baseline-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	tree := filepath.Join(dir, "tree")
	if err := run("", "git", "worktree", "add", "--detach", tree, commit); err != nil {
		return "", err
	}

	defer func() {
		err = errors.Join(err, run("", "git", "worktree", "remove", "--force", tree))
	}()

	return bin, run(tree, "go", "build", "-trimpath", "-o", bin, "./cmd/escrow-relayer")
}
