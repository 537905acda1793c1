package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/migrations"
)

// Start is the time until an instance is ready and watches its share, and its resident memory then, with a million escrows in the registry.
func Start(ctx context.Context, o *Options) (figures []Figure, err error) {
	l, err := lab.Start(ctx, lab.Options{Bin: o.Bin})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if _, err := migrations.Up(ctx, l.DB.Config().ConnConfig); err != nil {
		return nil, err
	}
	n := o.scaled(1_000_000)
	o.say("start: registering %d escrows", n)
	if err := register(ctx, l, n); err != nil {
		return nil, err
	}
	for _, share := range []struct {
		total  int
		memory float64
	}{{1, 150}, {10, 60}} {
		var times, memory []float64
		for range o.Runs {
			took, rss, err := startOne(ctx, l, share.total)
			if err != nil {
				return nil, err
			}
			times, memory = append(times, took.Seconds()), append(memory, rss)
		}
		name := fmt.Sprintf("start.1of%d", share.total)
		figures = append(figures,
			o.atMost(name+".ready", "s", 5, Quantile(times, 0.5), times),
			o.atMost(name+".rss", "MiB", share.memory, Quantile(memory, 0.5), memory))
	}
	return figures, nil
}

// register puts n idle escrows into the registry, as if they had been discovered and caught up long ago.
func register(ctx context.Context, l *lab.Lab, n int) error {
	_, err := l.DB.Exec(ctx, registerIdle, l.Chain.ChainID().Int64(), n, int64(l.Contracts.Block))
	if err != nil {
		return fmt.Errorf("register %d escrows: %w", n, err)
	}
	_, err = l.DB.Exec(ctx, `analyze escrow_registry`)
	return err
}

// registerIdle makes addresses whose first 12 bytes are zero: uint160 mod 2520, the slot, is then the remainder of a number that fits into
// a bigint.
const registerIdle = `
	insert into escrow_registry (chain_id, address, slot, discovered_block_number, event_id, announced, caught_up, last_monitored_block)
	select $1, '0x' || lpad(to_hex(i * 1000003), 40, '0'), (i * 1000003) % 2520, $3, '0x' || lpad(to_hex(i), 64, '0') || ':0', true, true, $3
	from generate_series(1, $2::bigint) i on conflict do nothing`

// startOne starts an instance, waits until it is ready and watches every escrow of its share, and stops it. Its resident memory is in MiB.
func startOne(ctx context.Context, l *lab.Lab, total int) (took time.Duration, rss float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	start := time.Now()
	p, err := l.Run("start-"+strconv.Itoa(total), 0, total, map[string]string{"ADOPT_AFTER": "10m", "RPC_URLS": l.Chain.HTTP()})
	if err != nil {
		return 0, 0, err
	}
	if err := p.Ready(ctx); err != nil {
		return 0, 0, err
	}
	var want float64
	if err := l.DB.QueryRow(ctx, `select count(*)::float8 from escrow_registry where slot % $1::int = 0`, total).Scan(&want); err != nil {
		return 0, 0, err
	}
	err = poll(ctx, 10*time.Millisecond, "all escrows to be watched", func() bool { // readiness may come before
		n, err := metric(ctx, p, "relayer_escrows_monitored")
		return err == nil && n >= want
	})
	if err != nil {
		return 0, 0, err
	}
	took = time.Since(start)
	if rss, err = resident(p.PID()); err != nil {
		return 0, 0, err
	}
	return took, rss, p.Stop(ctx)
}

// resident memory of a process in MiB, as Linux counts it.
func resident(pid int) (float64, error) {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d (Linux only): %w", pid, err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("read the memory of process %d: it has none", pid)
}
