package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/migrations"
)

// Start is the time until an instance is ready and watches its share of a million registered
// escrows, and its resident memory at that moment.
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
	if err := register(ctx, l.DB, l, nil, n); err != nil {
		return nil, err
	}

	for _, share := range []struct {
		total  int
		memory float64
	}{{1, 110}, {10, 60}} {
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
			o.atMost(name+".ready", "s", 1, Quantile(times, 0.5), times),
			o.atMost(name+".rss", "MiB", share.memory, Quantile(memory, 0.5), memory))
	}

	return figures, nil
}

// startOne starts an instance, waits until it is ready and watches every escrow of its share, and
// stops it. Its resident memory is in MiB.
func startOne(ctx context.Context, l *lab.Lab, total int) (took time.Duration, rss float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	start := time.Now()
	p, err := l.RunReady(ctx, "start-"+strconv.Itoa(total), 0, total,
		map[string]string{"ADOPT_AFTER": "10m", "RPC_URLS": l.Chain.HTTP()})
	if err != nil {
		return 0, 0, err
	}

	var want float64
	if err := l.DB.QueryRow(ctx, `select count(*)::float8 from escrow_registry where slot % $1::int = 0`,
		total).Scan(&want); err != nil {
		return 0, 0, err
	}

	err = poll(ctx, 10*time.Millisecond, "all escrows to be watched", func() bool { // it may be ready before
		m, err := p.Metrics(ctx)
		return err == nil && m.Sum("relayer_escrows_monitored") >= want
	})
	if err != nil {
		return 0, 0, err
	}

	took = time.Since(start)
	m, err := p.Metrics(ctx)
	if err != nil {
		return 0, 0, err
	}

	return took, resident(m), p.Stop(ctx)
}
