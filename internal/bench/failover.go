package bench

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
)

// Failover is the time for which nobody commits for the factory after its leader was killed, stopped and frozen: from the signal to
// the next leader's epoch.
func Failover(ctx context.Context, o *Options) (figures []Figure, err error) {
	l, err := lab.Start(ctx, lab.Options{Bin: o.Bin, Interval: time.Second})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	fleet := map[string]*lab.Process{}
	for i := range 2 {
		if err := join(ctx, l, fleet, fmt.Sprintf("relayer-%d", i), i); err != nil {
			return nil, err
		}
	}
	for _, way := range []struct {
		name   string
		signal syscall.Signal
		target float64 // ms
	}{{"kill", syscall.SIGKILL, 2000}, {"stop", syscall.SIGTERM, 300}, {"freeze", syscall.SIGSTOP, 20_000}} {
		var gaps []float64
		for range o.Trials {
			gap, err := fail(ctx, l, fleet, way.signal)
			if err != nil {
				return nil, fmt.Errorf("failover by %s: %w", way.name, err)
			}
			gaps = append(gaps, milliseconds(gap))
		}
		figures = append(figures,
			o.atMost("failover."+way.name+".p50", "ms", 0, Quantile(gaps, 0.5), gaps),
			undecided(o.atMost("failover."+way.name+".p99", "ms", way.target, Quantile(gaps, 0.99), gaps), o.Trials, 50))
	}
	return figures, nil
}

func join(ctx context.Context, l *lab.Lab, fleet map[string]*lab.Process, id string, number int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	p, err := l.Run(id, number, 2, nil)
	if err != nil {
		return err
	}
	fleet[id] = p
	return p.Ready(ctx)
}

// fail takes the leader away, measures, and brings it back.
func fail(ctx context.Context, l *lab.Lab, fleet map[string]*lab.Process, signal syscall.Signal) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	leader, epoch := "", int64(0)
	leads := func() (id string, e int64) {
		if l.DB.QueryRow(ctx, `select coalesce(instance_id, ''), epoch from leadership`).Scan(&id, &e) != nil {
			return "", 0
		}
		return id, e
	}
	if err := poll(ctx, 10*time.Millisecond, "a leader", func() bool { leader, epoch = leads(); return fleet[leader] != nil }); err != nil {
		return 0, err
	}
	p := fleet[leader]
	start := time.Now()
	p.Signal(signal)
	err := poll(ctx, 2*time.Millisecond, "another leader", func() bool { id, e := leads(); return e > epoch && id != "" && id != leader })
	gap := time.Since(start)
	if err != nil {
		return 0, err
	}
	if signal == syscall.SIGTERM {
		if _, err := p.Wait(ctx); err != nil {
			return 0, err
		}
	} else {
		p.Kill()
	}
	return gap, join(ctx, l, fleet, leader, int(leader[len(leader)-1]-'0'))
}
