package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	gometrics "runtime/metrics"
	"runtime/pprof"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// Profiled runs a relayer as `escrow-relayer run` does, in this process. At its end it writes three
// profiles into dir: cpu.pprof, allocs.pprof, and heap.pprof of the moment with the largest heap.
// The bench command starts itself this way for -profile. The product cannot write profiles.
func Profiled(ctx context.Context, dir string) (err error) {
	cfg, err := config.Load(config.Environ())
	if err != nil {
		return err
	}

	r, err := relayer.NewProcess([]*config.Config{cfg}, slog.New(slog.DiscardHandler), fleet.Build{Version: "bench"})
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

	ctx, cancel := context.WithCancel(ctx)
	peak := make(chan error, 1)
	go func() { peak <- profilePeak(ctx, filepath.Join(dir, "heap.pprof")) }()
	err = r.Run(ctx)
	cancel()
	pprof.StopCPUProfile()

	return errors.Join(err, <-peak, pprof.Lookup("allocs").WriteTo(allocs, 0))
}

// profilePeak writes a heap profile of the moment at which the heap was largest, when ctx ends.
func profilePeak(ctx context.Context, file string) error {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()

	sample := []gometrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	most := uint64(0)
	var heap bytes.Buffer
	for {
		select {
		case <-ctx.Done():
			return os.WriteFile(file, heap.Bytes(), 0o600)
		case <-ticker.C:
		}

		if gometrics.Read(sample); sample[0].Value.Uint64() > most+most/10 {
			most = sample[0].Value.Uint64()
			heap.Reset()
			if err := pprof.Lookup("heap").WriteTo(&heap, 0); err != nil {
				return fmt.Errorf("write a heap profile: %w", err)
			}
		}
	}
}
