// Package demo shows a fleet at work: two chains, a Postgres and a Pub/Sub server of its own, several
// relayer processes that follow both chains, traffic, the loss of a leader, a factory that is added,
// and at the end an audit of each chain against what a subscriber received.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/registry"
)

// Options of a demo.
type Options struct {
	Bin       string // the relayer's binary
	Instances int
	Duration  time.Duration // of the traffic, which also lasts until the story is told
	Seed      uint64        // decides accounts and traffic
	Keep      bool          // traffic goes on until ctx ends, instead of Duration
	Commands  bool          // a service asks the relayers to approve and release escrows, too
	Out       io.Writer
}

const (
	blockTime = time.Second
	// trafficAccounts use the contracts by themselves; then come who creates escrows for commands, the account that
	// the relayers act through, and who deploys.
	trafficAccounts = 9
	accounts        = trafficAccounts + 3
	perBlock        = 6 // actions
	// confirmations are few, so that what happens is seen soon.
	confirmations = 2
	// month is what passes on the chain at once: a refund is possible 30 days after the release time only.
	month      = 31 * 24 * time.Hour
	monthEvery = 12 * time.Second
	// play is how long the story takes at most; a longer demo is calm after it.
	play = time.Minute
	// readyTimeout is how long the relayers may take to start, and to read the past of a factory; auditTimeout how
	// long the last messages may take to arrive.
	readyTimeout = 2 * time.Minute
	auditTimeout = time.Minute
)

// ErrDirty means that the audit of events found something, ErrCommands that the audit of commands did.
var (
	ErrDirty    = errors.New("the audit found events missing, out of order, or twice without a crash")
	ErrCommands = errors.New("the audit found commands carried out twice, without an answer, or with one that " +
		"the chain contradicts")
)

// ErrInterrupted means that ctx ended before the audit: nothing can be said.
var ErrInterrupted = errors.New("interrupted: nothing was audited")

// Run runs the demo until its audit is done. Everything that it started has ended when it returns.
func Run(ctx context.Context, o Options) (err error) {
	s := &scene{o: o, began: time.Now(), scraped: map[*lab.Process]lab.Metrics{}}
	fmt.Fprintf(o.Out, "starting Postgres, two chains (one block a second) and a Pub/Sub server …\n")
	sim, err := testchain.StartSim(testchain.Options{Seed: o.Seed, Accounts: accounts})
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, sim.Stop()) }()
	s.lab, err = lab.Start(ctx, lab.Options{Bin: o.Bin, Node: sim, Seed: o.Seed,
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

// openChains makes the second chain, on which the accounts, and so the factory, have the same addresses, and
// the traffic on both.
func (s *scene) openChains(ctx context.Context) error {
	first := s.lab.Chain.(*testchain.Sim)
	other, err := s.lab.Beside(ctx, testchain.Options{Seed: s.o.Seed, Accounts: accounts,
		ChainID: first.ChainID().Uint64() + 1})
	if err != nil {
		return err
	}

	for i, l := range []*lab.Lab{s.lab, other} {
		c := &chain{lab: l, sim: l.Chain.(*testchain.Sim), id: l.Chain.ChainID().Int64()}
		s.chains = append(s.chains, c)
		config := testchain.TrafficConfig{URL: c.sim.HTTP(), Deployment: l.Contracts,
			Accounts: c.sim.Accounts()[:trafficAccounts], Seed: s.o.Seed + uint64(i), Open: 200}
		if i == 0 {
			err = c.createPast(ctx, config)
		} else {
			config.Deployment.Legacy = common.Address{}
		}

		if err != nil {
			return err
		}

		c.sim.SetInterval(blockTime)
		if c.traffic, err = testchain.NewTraffic(ctx, config); err != nil {
			return err
		}
	}

	return nil
}

// createPast creates escrows by the factory that is added later.
func (c *chain) createPast(ctx context.Context, config testchain.TrafficConfig) error {
	config.Mix = map[testchain.Action]int{testchain.CreateLegacy: 1}
	past, err := testchain.NewTraffic(ctx, config)
	if err != nil {
		return err
	}
	defer past.Close()

	return errors.Join(past.Step(ctx, perBlock), c.sim.Mine(ctx, 1))
}

func (s *scene) run(ctx context.Context) (err error) {
	defer func() {
		for _, c := range s.chains {
			if c.traffic != nil {
				c.traffic.Close()
			}
		}
	}()
	if err := s.openChains(ctx); err != nil {
		return err
	}

	if s.o.Commands {
		if s.commands, err = openCommands(ctx, s.lab, s.o.Seed); err != nil {
			return err
		}

		defer s.commands.payer.Close()
	}

	if err := s.startAll(ctx); err != nil {
		return err
	}

	// What looks on outlives the traffic: it sees the last messages arrive.
	watching, endWatching := context.WithCancel(context.WithoutCancel(ctx))
	defer endWatching()
	var view errgroup.Group
	for _, c := range s.chains {
		view.Go(func() error {
			return s.watch(watching, c, &c.leading, readLeader, fmt.Sprintf("leads chain %d", c.id))
		})
		view.Go(func() error { return s.cover(watching, c) })
	}

	view.Go(func() error { return s.show(watching) })
	if s.commands != nil {
		view.Go(func() error { return s.watch(watching, s.chains[0], &s.owning, readOwner, "acts for the sender") })
	}

	answered, err := s.perform(ctx)
	counts := s.counters(watching)
	endWatching()
	if err := errors.Join(err, view.Wait()); err != nil {
		return err
	}

	return s.report(answered, counts)
}

// startAll starts the relayers and waits until they are ready.
func (s *scene) startAll(ctx context.Context) error {
	for i := range s.o.Instances {
		port, err := s.lab.Port()
		if err != nil {
			return err
		}

		s.ports = append(s.ports, port)
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
	s.say("they follow the chains %d and %d: on both, the factory is %s", s.chains[0].id, s.chains[1].id,
		s.lab.Contracts.Factory)

	return nil
}

// errOver means that the traffic has lasted for Duration, and that everything of the story has happened.
var errOver = errors.New("the traffic is over")

// perform runs traffic and faults side by side, then audits. Without commands there is no audit of them.
func (s *scene) perform(ctx context.Context) (*commandsAudit, error) {
	whole := ctx
	if s.o.Keep {
		whole = context.WithoutCancel(ctx) // its end is the end of the traffic; a second signal ends the process
	}

	run, end := context.WithCancelCause(ctx)
	defer end(nil)
	g, run := errgroup.WithContext(run)
	g.Go(func() error { return s.live(run) })
	g.Go(func() error {
		over := time.Now().Add(s.o.Duration)
		err := s.faults(run, func(by string) { g.Go(func() error { return s.readPast(whole, by) }) })
		if err != nil || s.o.Keep {
			return err
		}

		select {
		case <-run.Done():
		case <-time.After(time.Until(over)):
			end(errOver)
		}

		return nil
	})
	if s.commands != nil {
		g.Go(func() error { return s.commands.ask(run, s.processes, s.say) })
	}

	if err := errors.Join(g.Wait(), whole.Err()); err != nil {
		return nil, err
	}

	if s.commands != nil {
		s.say("traffic ends; waiting for the answers to what was asked for")
		if err := s.commands.settle(whole); err != nil {
			return nil, err
		}
	}

	if err := s.auditEvents(whole); err != nil || s.commands == nil {
		return nil, err
	}

	return s.commands.audit(whole)
}

// auditEvents lets the chains stand still, and compares each with what the subscriber received.
func (s *scene) auditEvents(ctx context.Context) error {
	if s.commands != nil {
		s.say("auditing both chains against what the subscriber and the requester received")
	} else {
		s.say("traffic ends; auditing both chains against what the subscriber received")
	}

	for _, c := range s.chains {
		if err := c.auditEvents(ctx); err != nil {
			return err
		}
	}

	s.audited = true

	return nil
}

func (c *chain) auditEvents(ctx context.Context) error {
	ctx, end := context.WithTimeout(ctx, auditTimeout)
	defer end()
	// Let what was sent be mined, and be deep enough; then the chain stands still.
	c.sim.SetInterval(0)
	if err := c.sim.Mine(ctx, 2+confirmations); err != nil {
		return err
	}

	head, err := c.lab.Head(ctx)
	if err != nil {
		return err
	}

	c.audit, err = c.lab.Audit(ctx, head-confirmations)

	return err
}

// live uses the contracts, and lets a month pass now and then, once at least. All are done by one
// hand: a chain's time cannot be moved while a transaction waits.
func (s *scene) live(ctx context.Context) error {
	months, next := 0, time.Now().Add(monthEvery)
	err := lab.Every(ctx, blockTime, func() error {
		var err error
		for _, c := range s.chains {
			err = errors.Join(err, c.traffic.Step(ctx, perBlock))
		}

		// A deadline is compared with the chain's time: with commands it stays what it is.
		if err == nil && time.Now().After(next) && s.commands == nil {
			next = time.Now().Add(monthEvery)
			if err = s.passMonth(ctx); err == nil {
				months++
			}
		}

		return unlessEnded(ctx, err)
	})

	// A busy machine took too long for its blocks.
	late := months == 0 && s.commands == nil && s.o.Duration > monthEvery
	if err == nil && late && errors.Is(context.Cause(ctx), errOver) {
		return s.passMonth(context.WithoutCancel(ctx))
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

func (s *scene) passMonth(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, auditTimeout)
	defer cancel()
	for _, c := range s.chains {
		if err := c.sim.AdvanceTime(ctx, month); err != nil {
			return err
		}
	}

	s.say("a month passes on both chains, so that refunds are possible")

	return nil
}

// faults is the story, in parts of its duration: the leader of the first chain is killed after a third, and
// comes back half-way with one factory more of that chain in its configuration, whose past is read; who leads the
// second chain after two thirds is stopped gracefully and comes back too. Where there is one instance only, nobody
// leads meanwhile. At the end a reorganisation of the first chain takes back what was published. With commands the
// one that acts on them is killed together with the leader, while transactions are under way.
func (s *scene) faults(ctx context.Context, readPast func(by string)) error {
	d := min(s.o.Duration, play)
	first, second := s.chains[0], s.chains[1]
	var victims []int
	back := func(with string) error {
		for _, i := range victims {
			s.say("%s is started again%s", s.process(i).ID, with)
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
		{d / 2, func() error {
			added := first.lab.Contracts.Legacy
			first.lab.Factories = append(first.lab.Factories, added)
			defer readPast(s.process(victims[0]).ID)
			return back(fmt.Sprintf(", and adds a second factory to chain %d: %s", first.id, added))
		}},
		{d * 2 / 3, func() error {
			victims = []int{s.holder(ctx, second, readLeader)}
			p := s.process(victims[0])
			s.counters(ctx) // while it can tell what it sent again
			s.strike(ctx, "SIGTERM", victims[0])
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second) // the grace that Cloud Run gives
			defer cancel()
			begun := time.Now()
			if err := p.Stop(stop); err != nil {
				return err
			}

			s.say("%s stopped cleanly in %s", p.ID, time.Since(begun).Round(time.Millisecond))

			return nil
		}},
		{d * 5 / 6, func() error { return back("") }},
		{d * 11 / 12, func() error { return s.reorganise(ctx, first) }},
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

	return nil
}

// readPast waits until the past of the factory that a relayer has added is read.
func (s *scene) readPast(ctx context.Context, by string) error {
	ctx, done := context.WithTimeout(ctx, readyTimeout)
	defer done()
	c, begun := s.chains[0], time.Now()
	address, start := c.lab.Contracts.Legacy, c.lab.Contracts.Block
	what := fmt.Sprintf("the past of factory %s, which %s has added", address, by)
	if err := lab.Until(ctx, 50*time.Millisecond, what, func() bool {
		all, err := registry.Factories(ctx, c.lab.DB, c.id)
		return err == nil && slices.ContainsFunc(all, func(f registry.Factory) bool {
			return f.Address == address && f.Until == 0
		})
	}); err != nil {
		return err
	}

	s.added = fmt.Sprintf("%s added %s to chain %d: its past, from block %d on, was read within %s", by, address, c.id,
		start, time.Since(begun).Round(time.Millisecond))
	s.say("%s", s.added)

	return nil
}

// depth of the reorganisation: the newest blocks of those that it takes back were not published yet.
const depth = confirmations + 4

// reorganise takes back blocks whose events were published. With commands the chain stays as it is:
// the account that creates their escrows counts its transactions by itself.
func (s *scene) reorganise(ctx context.Context, c *chain) error {
	if s.commands != nil {
		return nil
	}

	head, err := c.lab.Head(ctx)
	if err != nil || head < c.lab.Contracts.Block+depth+1 {
		return unlessEnded(ctx, err)
	}

	if err := c.sim.Reorg(ctx, depth, testchain.Drop); err != nil {
		return unlessEnded(ctx, err)
	}

	s.say("chain %d takes back its last %d blocks, of which %d were published: their events are retracted",
		c.id, depth, depth-confirmations)

	return nil
}

// kill ends the leader of the first chain, and the owner of the sender where there is one, and returns who they were.
func (s *scene) kill(ctx context.Context) []int {
	if s.commands != nil {
		s.say("%d commands are under way", s.commands.awaitFlight(ctx))
	}

	victims := []int{s.holder(ctx, s.chains[0], readLeader)}
	if owner := s.holder(ctx, s.chains[0], readOwner); s.commands != nil && owner != victims[0] {
		victims = append(victims, owner)
	}

	for _, i := range victims {
		s.strike(ctx, "SIGKILL", i)
		s.process(i).Kill()
	}

	return victims
}
