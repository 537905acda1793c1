// Package demo shows a fleet at work: a chain, a Postgres and a Pub/Sub server of its own, several relayer processes, traffic, the
// loss of the leader, and at the end an audit of the chain against what a subscriber received.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

// Options of a demo.
type Options struct {
	Bin       string // the relayer's binary
	Instances int
	Duration  time.Duration // of the traffic
	Seed      uint64
	Keep      bool // go on until interrupted
	Out       io.Writer
	Terminal  bool // Out is one: draw, instead of printing lines
}

const (
	blockTime = time.Second
	perBlock  = 6 // actions
	// auditTimeout is how long the last messages may take to arrive.
	auditTimeout = 30 * time.Second
)

// ErrDirty means that the audit found something.
var ErrDirty = errors.New("the audit found events missing, duplicated or out of order")

// Run runs the demo. It returns ErrDirty when the audit is not clean, and nil after an interruption: then nothing can be
// said, and everything that was started has ended.
func Run(ctx context.Context, o Options) (err error) {
	s := &scene{o: o, began: time.Now()}
	fmt.Fprintf(o.Out, "starting Postgres, a chain (one block a second) and a Pub/Sub server …\n")
	s.lab, err = lab.Start(ctx, lab.Options{Bin: o.Bin, Interval: blockTime, Seed: o.Seed, Confirmations: 2, Postgres: testpg.Options{}})
	if err != nil {
		return interrupted(ctx, err)
	}
	defer func() {
		if closeErr := s.lab.Close(); err == nil || errors.Is(err, ErrDirty) {
			err = errors.Join(err, closeErr)
		}
		if err != nil {
			fmt.Fprintf(o.Out, "logs of the relayers: %s\n", s.lab.Dir)
		}
	}()
	for i := range o.Instances {
		if err := s.start(i); err != nil {
			return err
		}
	}
	for _, p := range s.processes() {
		ready, cancel := context.WithTimeout(ctx, 30*time.Second)
		err := p.Ready(ready)
		cancel()
		if err != nil {
			return interrupted(ctx, err)
		}
	}
	s.say("%d relayers are ready; follow them at %s", o.Instances, s.processes()[0].URL)
	return interrupted(ctx, s.play(ctx))
}

func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(err, ErrDirty) {
		return nil
	}
	return err
}

// play runs traffic, faults and the view side by side, then audits.
func (s *scene) play(ctx context.Context) error {
	sim := s.lab.Chain.(*testchain.Sim)
	traffic, err := testchain.NewTraffic(ctx, testchain.TrafficConfig{
		URL: sim.HTTP(), Deployment: testchain.Deployment{Block: s.lab.Contracts.Block, Factory: s.lab.Contracts.Factory, Noise: s.lab.Contracts.Noise},
		Accounts: sim.Accounts()[:len(sim.Accounts())-1], Seed: s.o.Seed, Open: 200,
	})
	if err != nil {
		return err
	}
	defer traffic.Close()

	run, cancel := context.WithCancel(ctx)
	defer cancel()
	if !s.o.Keep {
		run, cancel = context.WithTimeout(ctx, s.o.Duration)
		defer cancel()
	}
	watching, endWatching := context.WithCancel(ctx)
	defer endWatching()
	var g, view errgroup.Group
	view.Go(func() error { return s.watchLeader(watching) })
	view.Go(func() error { return s.show(watching) })
	g.Go(func() error { return traffic.Run(run, blockTime, perBlock) })
	g.Go(func() error { return s.refunds(run, sim) })
	g.Go(func() error { return s.faults(run) })
	err = g.Wait()
	if err != nil || ctx.Err() != nil {
		endWatching()
		return errors.Join(err, view.Wait())
	}

	// Let what was sent be mined, and be deep enough; then the chain stands still.
	s.say("traffic ends; auditing the chain against what the subscriber received")
	sim.SetInterval(0)
	if err := sim.Mine(ctx, 2+s.lab.Confirmations); err != nil {
		return err
	}
	head, err := s.lab.Head(ctx)
	if err != nil {
		return err
	}
	auditing, endAudit := context.WithTimeout(ctx, auditTimeout)
	defer endAudit()
	audit, err := s.lab.Audit(auditing, head-uint64(s.lab.Confirmations))
	endWatching()
	if err = errors.Join(err, view.Wait()); err != nil {
		return err
	}
	return s.report(ctx, audit)
}

func (s *scene) report(ctx context.Context, a *lab.Audit) error {
	// What crashes left in doubt may come twice: such a duplicate is known to be possible, and here it is shown, not hidden.
	out := s.o.Out
	fmt.Fprintf(out, "\naudit     %s\n", a)
	for _, gap := range s.leaderGaps() {
		fmt.Fprintf(out, "leader    %s: nobody led for %s, then %s (epoch %d)\n", gap.cause, gap.length.Round(time.Millisecond), gap.next, gap.epoch)
	}
	counts := s.counters(ctx)
	fmt.Fprintf(out, "fleet     %d duplicates suppressed by processed_events, %d messages left in doubt by a crash\n", int(counts["event_deduplication_hits"]), int(counts["relayer_republished_total"]))
	if !a.Clean() {
		return ErrDirty
	}
	fmt.Fprintln(out, "result    every event was published once, in order")
	return nil
}

// faults are the events of the play, as parts of its duration: the leader is killed after a third, comes back half-way, and
// another instance stops gracefully after two thirds and comes back later. With a single instance there is nobody to take over, so it is only restarted.
func (s *scene) faults(ctx context.Context) error {
	d := s.o.Duration
	var killed int
	steps := []struct {
		at time.Duration
		do func() error
	}{
		{d / 3, func() error {
			killed = s.leaderIndex(ctx)
			s.mark("SIGKILL to the leader, " + s.process(killed).ID)
			s.process(killed).Kill()
			return nil
		}},
		{d / 2, func() error {
			s.say("%s is started again", s.process(killed).ID)
			return s.start(killed)
		}},
		{d * 2 / 3, func() error {
			i := s.leaderIndex(ctx)
			s.mark("SIGTERM to " + s.process(i).ID + ", which leads")
			stop, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			begun := time.Now()
			if err := s.process(i).Stop(stop); err != nil {
				return err
			}
			s.say("%s stopped cleanly in %s", s.process(i).ID, time.Since(begun).Round(time.Millisecond))
			killed = i
			return nil
		}},
		{d * 5 / 6, func() error {
			s.say("%s is started again", s.process(killed).ID)
			return s.start(killed)
		}},
	}
	begun := time.Now()
	for _, step := range steps {
		timer := time.NewTimer(time.Until(begun.Add(step.at)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		if err := step.do(); err != nil {
			return interrupted(ctx, err)
		}
	}
	<-ctx.Done()
	return nil
}

// refunds are possible 30 days after the release time only, so now and then a month passes on this chain.
func (s *scene) refunds(ctx context.Context, sim *testchain.Sim) error {
	ticker := time.NewTicker(12 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := sim.AdvanceTime(ctx, 31*24*time.Hour); err != nil && ctx.Err() == nil {
			return err
		}
		s.say("a month passes on the chain, so that refunds are possible")
	}
}

func (s *scene) start(i int) error {
	p, err := s.lab.Run(fmt.Sprint("relayer-", i), i, s.o.Instances, nil)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i < len(s.procs) {
		s.procs[i] = p
	} else {
		s.procs = append(s.procs, p)
	}
	return nil
}

func (s *scene) processes() []*lab.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.procs)
}

func (s *scene) process(i int) *lab.Process { return s.processes()[i] }

// leaderIndex is the process that leads, or the first.
func (s *scene) leaderIndex(ctx context.Context) int {
	var id string
	if err := s.lab.DB.QueryRow(ctx, `select coalesce(instance_id, '') from leadership`).Scan(&id); err != nil {
		return 0
	}
	return max(0, slices.IndexFunc(s.processes(), func(p *lab.Process) bool { return p.ID == id }))
}
