package relayer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
	"github.com/fusion-prime/escrow-relayer/relayer/start"
	"github.com/fusion-prime/escrow-relayer/relayer/web"
)

// Process is what one process runs: a relayer for each chain, and the HTTP server that they share.
//
// With one chain the process ends when its relayer does, and the platform starts it again. With several
// the end of one relayer leaves the others alone: it is made and run again, with growing pauses, and
// until then its chain is not ready. NewProcess makes it, Run runs it, once.
type Process struct {
	chains []*config.Config
	first  []*Relayer // of chains, in the same order: made by NewProcess, so that what is wrong with one is told at once
	log    *slog.Logger
	build  fleet.Build
	front  *web.Front
}

// processStarted is when this process began: it has no older connection.
var processStarted = time.Now()

const (
	// A relayer that ended is run again after the first of these pauses, and after the last one at most.
	againAfter, againAtMost = time.Second, time.Minute
	// wellAfter is how long a relayer runs before its next pause is the first one again.
	wellAfter = 10 * time.Minute
)

// NewProcess makes the relayers of all chains and starts nothing. Its error tells what is wrong with
// each, as start.ErrRefused.
func NewProcess(chains []*config.Config, log *slog.Logger, build fleet.Build) (*Process, error) {
	p := &Process{chains: chains, log: log, build: build}
	ids := make([]int64, len(chains))
	var wrong error
	for i, cfg := range chains {
		ids[i] = cfg.ChainID
		r, err := New(cfg, p.logOf(cfg), prometheus.NewRegistry(), build)
		if err != nil {
			wrong = errors.Join(wrong, p.explain(cfg, err))
		}

		p.first = append(p.first, r)
	}

	if wrong != nil {
		return nil, wrong
	}

	own := prometheus.NewRegistry()
	own.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	common := chains[0]
	front, err := web.NewFront(web.FrontConfig{
		Addr: net.JoinHostPort(common.HTTPHost, strconv.Itoa(common.Port)), Chains: ids, Metrics: own,
		Mask: config.Secrets(chains...).Mask, TokenFile: common.HTTPTokenFile,
		Log: log.With(slog.String("instance", common.InstanceID), slog.String("component", "web")),
	})
	if err != nil {
		return nil, start.Refuse(err)
	}

	p.front = front

	return p, nil
}

// logOf is the log of a chain's relayer. Where there are several, each line names its chain.
func (p *Process) logOf(cfg *config.Config) *slog.Logger {
	if len(p.chains) == 1 {
		return p.log
	}

	return p.log.With(slog.Int64("chain_id", cfg.ChainID))
}

// explain puts the chain before an error, where there are several, and takes its secrets out.
func (p *Process) explain(cfg *config.Config, err error) error {
	if err = cfg.Secrets().Error(err); len(p.chains) > 1 {
		err = fmt.Errorf("chain %d: %w", cfg.ChainID, err)
	}

	return err
}

// Run runs the relayers until ctx ends (nil), the HTTP server fails, or the one relayer of the process
// ends.
func (p *Process) Run(ctx context.Context) error {
	// The server outlives the relayers: the page shows how they stop.
	base, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	outer, serving := errgroup.WithContext(base)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(serving, cancel)() // without its server a process ends
	outer.Go(func() error { return p.front.Run(serving) })
	outer.Go(func() error {
		defer end()
		g, ctx := errgroup.WithContext(ctx)
		for i, cfg := range p.chains {
			r := p.first[i]
			g.Go(func() error { return p.follow(ctx, cfg, r) })
		}

		p.first = nil // one that has ended is not kept

		return g.Wait()
	})

	return outer.Wait()
}

// follow runs the relayer of a chain, and where there are other chains another one after it, until ctx
// ends (nil).
func (p *Process) follow(ctx context.Context, cfg *config.Config, r *Relayer) error {
	delays := backoff.NewExponentialBackOff()
	delays.InitialInterval, delays.MaxInterval, delays.MaxElapsedTime = againAfter, againAtMost, 0
	for ; ; r = nil {
		began := time.Now()
		err := p.run(ctx, cfg, r)
		if len(p.chains) == 1 || ctx.Err() != nil {
			return err
		}

		if time.Since(began) > wellAfter {
			delays.Reset()
		}

		pause := delays.NextBackOff()
		err = cfg.Secrets().Error(err)
		p.front.Ended(cfg.ChainID, err)
		p.logOf(cfg).ErrorContext(ctx, "this chain's relayer has ended, and is started again; the other chains go on",
			slog.Any("err", err), slog.Duration("after", pause))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// run runs a relayer; nil: one that it makes.
func (p *Process) run(ctx context.Context, cfg *config.Config, r *Relayer) (err error) {
	if r == nil {
		if r, err = New(cfg, p.logOf(cfg), prometheus.NewRegistry(), p.build); err != nil {
			return err
		}
	}

	return r.Run(ctx, p.front)
}
