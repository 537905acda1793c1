// Package demo shows a fleet at work: a chain, a Postgres and a Pub/Sub server of its own, several
// relayer processes, traffic, the loss of the leader, and at the end an audit of the chain against
// what a subscriber received.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
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
	Seed      uint64        // decides accounts and traffic
	Keep      bool          // traffic goes on until ctx ends, instead of Duration
	Commands  bool          // a service asks the relayers to approve and release escrows, too
	Out       io.Writer
	// Size of the terminal that Out is, in characters. Nil when Out is none: then lines are printed instead of a picture.
	Size func() (width, height int)
}

const (
	blockTime = time.Second
	// trafficAccounts use the contracts by themselves; then come who creates escrows for commands, the account that
	// the relayers act through, and who deploys.
	trafficAccounts = 9
	perBlock        = 6 // actions
	// confirmations are few, so that what happens is seen soon.
	confirmations = 2
	// month is what passes on the chain at once: a refund is possible 30 days after the release time only.
	month      = 31 * 24 * time.Hour
	monthEvery = 12 * time.Second
	// play is how long the story takes at most; a longer demo is calm after it.
	play = time.Minute
	// readyTimeout is how long the relayers may take to start, auditTimeout how long the last messages may take to arrive.
	readyTimeout = 2 * time.Minute
	auditTimeout = time.Minute
)

// ErrDirty means that the audit of events found something, ErrCommands that the audit of commands did.
var (
	ErrDirty    = errors.New("the audit found events missing, duplicated or out of order")
	ErrCommands = errors.New("the audit found commands carried out twice, without an answer, or with one that the chain contradicts")
)

// ErrInterrupted means that ctx ended before the audit: nothing can be said.
var ErrInterrupted = errors.New("interrupted: nothing was audited")

// Run runs the demo until its audit is done. Everything that it started has ended when it returns.
func Run(ctx context.Context, o Options) (err error) {
	s := &scene{o: o, began: time.Now(), scraped: map[*lab.Process]lab.Metrics{}}
	fmt.Fprintf(o.Out, "starting Postgres, a chain (one block a second) and a Pub/Sub server …\n")
	chain, err := testchain.StartSim(testchain.Options{Seed: o.Seed, Accounts: trafficAccounts + 3})
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, chain.Stop()) }()
	s.lab, err = lab.Start(ctx, lab.Options{Bin: o.Bin, Node: chain, Interval: blockTime, Seed: o.Seed,
		Confirmations: confirmations, Postgres: testpg.Options{}})
	if err == nil {
		err = errors.Join(s.run(ctx), s.lab.Close())
	}

	if ctx.Err() != nil && !s.audited {
		err = ErrInterrupted // whatever else was said is a consequence
	}

	switch {
	case err != nil && !errors.Is(err, ErrInterrupted) && len(s.procs) > 0:
		fmt.Fprintf(o.Out, "logs of the relayers: %s\n", s.lab.Dir)
	case s.lab != nil && s.lab.Dir != "":
		err = errors.Join(err, os.RemoveAll(s.lab.Dir))
	}

	return err
}

func (s *scene) run(ctx context.Context) (err error) {
	if s.o.Commands {
		if s.commands, err = openCommands(ctx, s.lab, s.o.Seed); err != nil {
			return err
		}

		defer s.commands.payer.Close()
	}

	for i := range s.o.Instances {
		port, err := testchain.FreePort()
		if err != nil {
			return err
		}

		s.ports = append(s.ports, strconv.Itoa(port))
		if err := s.start(i); err != nil {
			return err
		}
	}

	ready, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for _, p := range s.processes() {
		if err := p.Ready(ready); err != nil {
			return err
		}
	}

	var pages []string
	for _, p := range s.processes() {
		pages = append(pages, p.URL)
	}

	s.say("%d relayers are ready; each has the same page: %s", s.o.Instances, strings.Join(pages, " "))

	sim := s.lab.Chain.(*testchain.Sim)
	traffic, err := testchain.NewTraffic(ctx, testchain.TrafficConfig{
		URL: sim.HTTP(), Deployment: testchain.Deployment{Block: s.lab.Contracts.Block, Factory: s.lab.Contracts.Factory,
			Noise: s.lab.Contracts.Noise},
		Accounts: sim.Accounts()[:trafficAccounts], Seed: s.o.Seed, Open: 200,
	})
	if err != nil {
		return err
	}
	defer traffic.Close()
	// What looks on outlives the traffic: the picture shows the last messages arrive.
	watching, endWatching := context.WithCancel(context.WithoutCancel(ctx))
	defer endWatching()
	var view errgroup.Group
	view.Go(func() error { return s.watch(watching, &s.leading, readLeader, "leads") })
	view.Go(func() error { return s.cover(watching) })
	view.Go(func() error { return s.show(watching) })
	if s.commands != nil {
		view.Go(func() error { return s.watch(watching, &s.owning, readOwner, "acts for the sender") })
	}

	audit, answered, err := s.perform(ctx, sim, traffic)
	counts := s.counters(watching)
	endWatching()
	if err := errors.Join(err, view.Wait()); err != nil {
		return err
	}

	return s.report(audit, answered, counts)
}

// perform runs traffic and faults side by side, then audits. Without commands there is no audit of them.
func (s *scene) perform(ctx context.Context, sim *testchain.Sim, traffic *testchain.Traffic) (*lab.Audit,
	*commandsAudit, error) {
	run, cancel := ctx, context.CancelFunc(func() {})
	if !s.o.Keep {
		run, cancel = context.WithTimeout(ctx, s.o.Duration)
	}

	defer cancel()
	g, run := errgroup.WithContext(run)
	g.Go(func() error { return s.live(run, sim, traffic) })
	g.Go(func() error { return s.faults(run) })
	if s.commands != nil {
		g.Go(func() error { return s.commands.ask(run, s.processes, s.say) })
	}

	if err := g.Wait(); err != nil {
		return nil, nil, err
	}

	switch {
	case s.o.Keep:
		ctx = context.WithoutCancel(ctx) // its end was the end of the traffic; a second signal ends the process
	case ctx.Err() != nil:
		return nil, nil, ctx.Err()
	}

	if s.commands != nil {
		s.say("traffic ends; waiting for the answers to what was asked for")
		if err := s.commands.settle(ctx); err != nil {
			return nil, nil, err
		}
	}

	events, err := s.auditEvents(ctx, sim)
	if err != nil || s.commands == nil {
		return events, nil, err
	}

	answered, err := s.commands.audit(ctx)

	return events, answered, err
}

// auditEvents lets the chain stand still, and compares it with what the subscriber received.
func (s *scene) auditEvents(ctx context.Context, sim *testchain.Sim) (*lab.Audit, error) {
	if s.commands != nil {
		s.say("auditing the chain against what the subscriber and the requester received")
	} else {
		s.say("traffic ends; auditing the chain against what the subscriber received")
	}

	ctx, endAudit := context.WithTimeout(ctx, auditTimeout)
	defer endAudit()
	// Let what was sent be mined, and be deep enough; then the chain stands still.
	sim.SetInterval(0)
	if err := sim.Mine(ctx, 2+confirmations); err != nil {
		return nil, err
	}

	head, err := s.lab.Head(ctx)
	if err != nil {
		return nil, err
	}

	audit, err := s.lab.Audit(ctx, head-confirmations)
	s.audited = err == nil && (ctx.Err() == nil || len(audit.Missing)+len(audit.Unknown) > 0)

	return audit, err
}

// live uses the contracts, and lets a month pass now and then, once at least. Both are done by one
// hand: the chain's time cannot be moved while a transaction waits.
func (s *scene) live(ctx context.Context, sim *testchain.Sim, traffic *testchain.Traffic) error {
	months, next := 0, time.Now().Add(monthEvery)
	err := lab.Every(ctx, blockTime, func() error {
		err := traffic.Step(ctx, perBlock)
		// A deadline is compared with the chain's time: with commands it stays what it is.
		if err == nil && time.Now().After(next) && s.commands == nil {
			next = time.Now().Add(monthEvery)
			if err = s.passMonth(ctx, sim); err == nil {
				months++
			}
		}

		return unlessEnded(ctx, err)
	})

	// A busy machine took too long for its blocks.
	late := months == 0 && s.commands == nil && s.o.Duration > monthEvery
	if err == nil && late && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return s.passMonth(context.WithoutCancel(ctx), sim)
	}

	return err
}

// unlessEnded is err, unless it came because ctx has ended.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}

	return nil
}

func (s *scene) passMonth(ctx context.Context, sim *testchain.Sim) error {
	ctx, cancel := context.WithTimeout(ctx, auditTimeout)
	defer cancel()
	if err := sim.AdvanceTime(ctx, month); err != nil {
		return err
	}

	s.say("a month passes on the chain, so that refunds are possible")

	return nil
}

// faults is the story, in parts of its duration: the leader is killed after a third and comes back
// half-way; who leads after two thirds is stopped gracefully and comes back too. Where there is one
// instance only, nobody leads meanwhile. At the end a reorganisation takes back what was published.
// With commands the one that acts on them is killed together with the leader, while transactions are
// under way.
func (s *scene) faults(ctx context.Context) error {
	d := min(s.o.Duration, play)
	var victims []int
	back := func() error {
		for _, i := range victims {
			s.say("%s is started again", s.process(i).ID)
			if err := s.start(i); err != nil {
				return err
			}
		}

		return nil
	}
	steps := []struct {
		at time.Duration
		do func() error
	}{
		{d / 3, func() error {
			victims = s.kill(ctx)
			return nil
		}},
		{d / 2, back},
		{d * 2 / 3, func() error {
			victims = []int{s.holder(ctx, readLeader)}
			p := s.process(victims[0])
			s.strike(&s.leading, "SIGTERM to the leader, "+p.ID)
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second) // the grace that Cloud Run gives
			defer cancel()
			begun := time.Now()
			if err := p.Stop(stop); err != nil {
				return err
			}

			s.say("%s stopped cleanly in %s", p.ID, time.Since(begun).Round(time.Millisecond))

			return nil
		}},
		{d * 5 / 6, back},
		{d * 11 / 12, func() error { return s.reorganise(ctx) }},
	}
	begun := time.Now()
	for _, step := range steps {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(begun.Add(step.at))):
		}

		if err := step.do(); err != nil {
			return err
		}
	}

	<-ctx.Done()

	return nil
}

// depth of the reorganisation: the newest blocks of those that it takes back were not published yet.
const depth = confirmations + 4

// reorganise takes back blocks whose events were published. With commands the chain stays as it is:
// the account that creates their escrows counts its transactions by itself.
func (s *scene) reorganise(ctx context.Context) error {
	if s.commands != nil {
		return nil
	}

	head, err := s.lab.Head(ctx)
	if err != nil || head < s.lab.Contracts.Block+depth+1 {
		return unlessEnded(ctx, err)
	}

	if err := s.lab.Chain.Reorg(ctx, depth, testchain.Drop); err != nil {
		return unlessEnded(ctx, err)
	}

	s.say("the chain takes back its last %d blocks, of which %d were published: their events are retracted",
		depth, depth-confirmations)

	return nil
}

// kill ends the leader, and the owner of the sender where there is one, and returns who they were.
func (s *scene) kill(ctx context.Context) []int {
	leader := s.holder(ctx, readLeader)
	if s.commands == nil {
		s.strike(&s.leading, "SIGKILL to the leader, "+s.process(leader).ID)
		s.process(leader).Kill()

		return []int{leader}
	}

	under := s.commands.awaitFlight(ctx)
	owner := s.holder(ctx, readOwner)
	s.strike(&s.leading, "SIGKILL to the leader, "+s.process(leader).ID)
	s.process(leader).Kill()
	s.strike(&s.owning, fmt.Sprintf("SIGKILL to the owner of the sender, %s, with %d commands under way",
		s.process(owner).ID, under))
	if owner == leader {
		return []int{leader}
	}

	s.process(owner).Kill()

	return []int{leader, owner}
}
