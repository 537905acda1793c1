package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fusion-prime/escrow-relayer/relayer"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/web"
)

// Profiled runs a relayer as `escrow-relayer run` does, in this process, and writes cpu.pprof and
// allocs.pprof into dir at its end. It is what the command runs itself as for -profile; the product
// has no such thing.
func Profiled(ctx context.Context, dir string) (err error) {
	cfg, err := config.Load(config.Environ())
	if err != nil {
		return err
	}

	r, err := relayer.New(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), web.Build{Version: "bench"})
	if err != nil {
		return err
	}

	cpu, err := os.Create(filepath.Join(dir, "cpu.pprof"))
	if err != nil {
		return fmt.Errorf("write a profile: %w", err)
	}

	defer func() { err = errors.Join(err, cpu.Close()) }()
	allocs, err := os.Create(filepath.Join(dir, "allocs.pprof"))
	if err != nil {
		return fmt.Errorf("write a profile: %w", err)
	}

	defer func() { err = errors.Join(err, allocs.Close()) }()
	runtime.MemProfileRate = 64 << 10
	if err := pprof.StartCPUProfile(cpu); err != nil {
		return fmt.Errorf("start the CPU profile: %w", err)
	}

	err = r.Run(ctx)
	pprof.StopCPUProfile()

	return errors.Join(err, pprof.Lookup("allocs").WriteTo(allocs, 0))
}
