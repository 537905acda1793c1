// Package demo shows a fleet at work: two chains, a Postgres and a Pub/Sub server of its own, several
// relayer processes that follow both chains, traffic, the loss of a leader, a factory that is added,
// and at the end an audit of each chain against what was published.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// Options of a demo.
type Options struct {
	Bin       string // the relayer's binary
	Instances int
	Duration  time.Duration // of the traffic, which also lasts until the story is told
	Seed      uint64        // decides accounts and traffic
	Keep      bool          // traffic goes on until ctx ends, instead of Duration
	Out       io.Writer
}

const (
	blockTime = time.Second
	// accounts use the contracts, but for the last one, which deploys them.
	accounts = 10
	perBlock = 6 // actions
	// confirmations are few, so that what happens is seen soon.
	confirmations = 2
	// depth of the reorganisation: the newest blocks of those that it takes back were not published yet.
	depth = confirmations + 4
	// month is what passes on the chain at once: a refund is possible 30 days after the release time only.
	month = 31 * 24 * time.Hour
	// play is how long the story takes at most; a longer demo is calm after it.
	play = time.Minute
	// readyTimeout is how long the relayers may take to start, and to read the past of a factory; auditTimeout how
	// long the last messages may take to arrive.
	readyTimeout = 2 * time.Minute
	auditTimeout = time.Minute
)

// ErrDirty means that the audit found something.
var ErrDirty = errors.New("the audit found events missing, unknown or out of order")

// ErrInterrupted means that ctx ended before the audit: nothing can be said.
var ErrInterrupted = errors.New("interrupted: nothing was audited")

// scene is the state of a demo.
type scene struct {
	o       Options
	lab     *lab.Lab // of the first chain; it has what the chains share
	chains  []*chain // that the relayers follow
	began   time.Time
	audited bool // read when everything has ended

	mu    sync.Mutex
	procs []*lab.Process // by partition; the last one started
	ports []string       // by partition: a relayer that starts again is where it was
}

// chain is one that the relayers follow.
type chain struct {
	id      int64
	lab     *lab.Lab
	sim     *testchain.Sim
	traffic *testchain.Traffic
	audit   *lab.Audit // read when everything has ended
}

// Run runs the demo until its audit is done. Everything that it started has ended when it returns.
func Run(ctx context.Context, o Options) (err error) {
	s := &scene{o: o, began: time.Now()}
	fmt.Fprintf(o.Out, "starting Postgres, two chains (one block a second) and a Pub/Sub server …\n")
	s.lab, err = lab.Start(ctx, lab.Options{Bin: o.Bin, Seed: o.Seed, Confirmations: confirmations})
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
	other, err := s.lab.Beside(ctx, testchain.Options{Seed: s.o.Seed, ChainID: first.ChainID().Uint64() + 1})
	if err != nil {
		return err
	}

	for i, l := range []*lab.Lab{s.lab, other} {
		c := &chain{lab: l, sim: l.Chain.(*testchain.Sim), id: l.Chain.ChainID().Int64()}
		s.chains = append(s.chains, c)
		config := testchain.TrafficConfig{URL: c.sim.HTTP(), Deployment: l.Contracts,
			Accounts: c.sim.Accounts()[:accounts-1], Seed: s.o.Seed + uint64(i), Open: 200}
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

	if err := s.startAll(ctx); err != nil {
		return err
	}

	// What looks on outlives the traffic: it sees the last messages arrive.
	watching, endWatching := context.WithCancel(context.WithoutCancel(ctx))
	defer endWatching()
	var view errgroup.Group
	for _, c := range s.chains {
		view.Go(func() error { return s.watch(watching, c) })
	}

	view.Go(func() error { return s.show(watching) })
	err = s.perform(ctx)
	endWatching()
	if err := errors.Join(err, view.Wait()); err != nil {
		return err
	}

	return s.report()
}

// startAll starts the relayers and waits until they are ready.
func (s *scene) startAll(ctx context.Context) error {
	for i := range s.o.Instances {
		port, err := s.lab.Port()
		if err != nil {
			return err
		}

		s.ports, s.procs = append(s.ports, port), append(s.procs, nil)
		if err := s.start(i); err != nil {
			return err
		}
	}

	ready, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	var pages []string
	for _, p := range s.processes() {
		if err := p.Ready(ready); err != nil {
			return err
		}

		pages = append(pages, p.URL)
	}

	s.say("%d relayers are ready; each has the same page: %s", s.o.Instances, strings.Join(pages, " "))
	s.say("they follow the chains %d and %d: on both, the factory is %s", s.chains[0].id, s.chains[1].id,
		s.lab.Contracts.Factory)

	return nil
}

func (s *scene) start(i int) error {
	p, err := s.lab.RunChains(fmt.Sprint("relayer-", i), i, s.o.Instances, map[string]string{"PORT": s.ports[i]},
		s.chains[1].lab)
	if err != nil {
		return err
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.procs[i] = p

	return nil
}

func (s *scene) processes() []*lab.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.procs)
}

func (s *scene) process(i int) *lab.Process { return s.processes()[i] }

// perform runs traffic and the story side by side, then audits.
func (s *scene) perform(ctx context.Context) error {
	whole := ctx
	if s.o.Keep {
		whole = context.WithoutCancel(ctx) // its end is the end of the traffic; a second signal ends the process
	}

	run, end := context.WithCancel(ctx)
	defer end()
	g, run := errgroup.WithContext(run)
	g.Go(func() error {
		return lab.Every(run, blockTime, func() error {
			first, second := s.chains[0].traffic, s.chains[1].traffic
			return unlessEnded(run, errors.Join(first.Step(run, perBlock), second.Step(run, perBlock)))
		})
	})
	g.Go(func() error {
		over := time.Now().Add(s.o.Duration)
		err := s.story(run, func(by string) { g.Go(func() error { return s.readPast(whole, by) }) })
		if err != nil || s.o.Keep {
			return err
		}

		select {
		case <-run.Done():
		case <-time.After(time.Until(over)):
			end()
		}

		return nil
	})
	if err := errors.Join(g.Wait(), whole.Err()); err != nil {
		return err
	}

	s.say("traffic ends; auditing both chains against what was published")
	for _, c := range s.chains {
		if err := c.auditEvents(whole); err != nil {
			return err
		}
	}

	s.audited = true

	return nil
}

// auditEvents lets the chain stand still, and compares it with what was published.
func (c *chain) auditEvents(ctx context.Context) (err error) {
	ctx, end := context.WithTimeout(ctx, auditTimeout)
	defer end()
	// Let what was sent be mined, and be deep enough; then the chain stands still.
	c.sim.SetInterval(0)
	if err = c.sim.Mine(ctx, 2+confirmations); err != nil {
		return err
	}

	c.audit, err = c.lab.Audit(ctx)
	return err
}

// unlessEnded is err, unless it came because ctx has ended.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}

	return nil
}

// story is told in parts of its duration: a month passes; the leader of the first chain is killed after a third, and
// comes back half-way with one factory more of that chain in its configuration, whose past is read; who leads the
// second chain after two thirds is stopped gracefully and comes back too. Where there is one instance only, nobody
// leads meanwhile. At the end a reorganisation of the first chain takes back what was published.
func (s *scene) story(ctx context.Context, readPast func(by string)) error {
	d := min(s.o.Duration, play)
	first, second := s.chains[0], s.chains[1]
	victim := 0
	back := func(with string) error {
		s.say("%s is started again%s", s.process(victim).ID, with)
		return s.start(victim)
	}
	begun := time.Now()
	for _, step := range []struct {
		at time.Duration
		do func() error
	}{
		{d / 4, func() error { return unlessEnded(ctx, s.passMonth(ctx)) }},
		{d / 3, func() error {
			victim = s.strike(ctx, "SIGKILL", first)
			s.process(victim).Kill()
			s.say("nobody stands by: the others wait for ADOPT_AFTER (5 s) until they serve its slots")

			return nil
		}},
		{d / 2, func() error {
			added := first.lab.Contracts.Legacy
			first.lab.Factories = append(first.lab.Factories, added)
			defer readPast(s.process(victim).ID)

			return back(fmt.Sprintf(", and adds a second factory to chain %d: %s", first.id, added))
		}},
		{d * 2 / 3, func() error {
			victim = s.strike(ctx, "SIGTERM", second)
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second) // the grace that Cloud Run gives
			defer cancel()
			begun := time.Now()
			if err := s.process(victim).Stop(stop); err != nil {
				return err
			}

			s.say("%s stopped cleanly in %s", s.process(victim).ID, time.Since(begun).Round(time.Millisecond))

			return nil
		}},
		{d * 5 / 6, func() error { return back("") }},
		{d * 11 / 12, func() error { return unlessEnded(ctx, s.reorganise(ctx, first)) }},
	} {
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

// strike says which signal the leader of a chain gets, and returns who that is.
func (s *scene) strike(ctx context.Context, signal string, c *chain) int {
	id, _, _ := c.leader(ctx) // where nobody is known, it hits the first
	i := max(0, slices.IndexFunc(s.processes(), func(p *lab.Process) bool { return p.ID == id }))
	s.say("%s to %s, the leader of chain %d", signal, s.process(i).ID, c.id)

	return i
}

func (s *scene) passMonth(ctx context.Context) error {
	for _, c := range s.chains {
		if err := c.sim.AdvanceTime(ctx, month); err != nil {
			return err
		}
	}

	s.say("a month passes on both chains, so that refunds are possible")

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

	s.say("%s added %s to chain %d: its past, from block %d on, was read within %s", by, address, c.id, start,
		time.Since(begun).Round(time.Millisecond))

	return nil
}

// reorganise takes back blocks whose events were published. The chain stands still until they are, however far the
// relayers are behind.
func (s *scene) reorganise(ctx context.Context, c *chain) error {
	ctx, end := context.WithTimeout(ctx, readyTimeout)
	defer end()
	c.sim.SetInterval(0)
	defer c.sim.SetInterval(blockTime)
	for published := false; !published; {
		if err := c.sim.Mine(ctx, 1); err != nil {
			return err
		}

		head, err := c.lab.Head(ctx)
		if err != nil {
			return err
		}

		if _, err := c.lab.Audit(ctx); err != nil {
			return err
		}

		if ctx.Err() != nil {
			return fmt.Errorf("the events of chain %d up to block %d are not published within %s", c.id, head-confirmations,
				readyTimeout)
		}

		published = slices.ContainsFunc(c.lab.Received.Messages(), func(m testpubsub.Message) bool {
			number, _ := strconv.ParseUint(m.Attributes[message.AttrBlockNumber], 10, 64)
			return number > head-depth
		})
	}

	if err := c.sim.Reorg(ctx, depth, testchain.Drop); err != nil {
		return err
	}

	s.say("chain %d takes back its last %d blocks, of which %d were published: their events are retracted",
		c.id, depth, depth-confirmations)

	return nil
}
