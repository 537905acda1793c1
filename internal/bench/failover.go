package bench

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
)

// ways in which an instance goes away, with the longest time in ms for which nobody may own what it
// owned: the factory, slots, a sender.
var ways = []struct {
	name   string
	signal syscall.Signal
	target float64
}{{"kill", syscall.SIGKILL, 2000}, {"stop", syscall.SIGTERM, 300}, {"freeze", syscall.SIGSTOP, 20_000}}

// adoption is ADOPT_AFTER of the fleet in which slots are adopted. The figures do not include it.
const adoption = 200 * time.Millisecond

// Failover is the time for which nobody may commit after an instance was killed, stopped or frozen.
// Each trial hits the leader and measures two times: for the factory, from the signal to the next
// leader's epoch; for the slots, from the signal to the moment at which the other instance owns all
// of them. The fleet is an instance and its standby, which change roles with every trial. Then the
// same with two partitions, where the other instance adopts the slots after ADOPT_AFTER, which is
// subtracted.
func Failover(ctx context.Context, o *Options) (figures []Figure, err error) {
	l, err := lab.Start(ctx, lab.Options{Bin: o.Bin, Interval: time.Second})
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, l.Close()) }()
	standby, err := newPair(ctx, l, 1, "5s")
	if err != nil {
		return nil, err
	}

	for _, way := range ways {
		leader, slots, err := standby.trials(ctx, o, way.name, way.signal)
		if err != nil {
			return nil, fmt.Errorf("failover by %s: %w", way.name, err)
		}

		figures = append(figures, o.gaps("failover.leader."+way.name, way.target, leader)...)
		figures = append(figures, o.gaps("failover.slots."+way.name, way.target, slots)...)
	}

	if err := standby.end(ctx); err != nil {
		return nil, err
	}

	adopters, err := newPair(ctx, l, 2, adoption.String())
	if err != nil {
		return nil, err
	}

	for _, way := range ways {
		_, slots, err := adopters.trials(ctx, o, way.name, way.signal)
		if err != nil {
			return nil, fmt.Errorf("adoption after %s: %w", way.name, err)
		}

		for i := range slots {
			slots[i] -= milliseconds(adoption)
		}

		figures = append(figures, o.gaps("failover.adopted."+way.name, way.target, slots)...)
	}

	return figures, adopters.end(ctx)
}

// gaps are the figures of trials: for how long, in ms, nobody owned something.
func (o *Options) gaps(name string, target float64, ms []float64) []Figure {
	return []Figure{
		o.atMost(name+".p50", "ms", 0, Quantile(ms, 0.5), ms),
		unlessFew(o.atMost(name+".p99", "ms", target, Quantile(ms, 0.99), ms), len(ms), 50),
		o.atMost(name+".max", "ms", 0, Quantile(ms, 1), ms),
	}
}

// pair is a fleet of two.
type pair struct {
	lab        *lab.Lab
	partitions int // 1: one instance is the other's standby; 2: each has its own partition
	adoptAfter string
	fleet      map[string]*lab.Process
}

func newPair(ctx context.Context, l *lab.Lab, partitions int, adoptAfter string) (*pair, error) {
	p := &pair{lab: l, partitions: partitions, adoptAfter: adoptAfter, fleet: map[string]*lab.Process{}}
	for number := range 2 {
		if err := p.join(ctx, number); err != nil {
			return nil, err
		}
	}

	return p, nil
}

func (p *pair) id(number int) string { return fmt.Sprintf("%d-of-%d", number, p.partitions) }

func (p *pair) join(ctx context.Context, number int) error {
	r, err := p.lab.RunReady(ctx, p.id(number), number%p.partitions, p.partitions,
		map[string]string{"ADOPT_AFTER": p.adoptAfter, "LOG_LEVEL": "warn"})
	if err != nil {
		return err
	}

	p.fleet[r.ID] = r

	return nil
}

func (p *pair) end(ctx context.Context) error {
	var errs []error
	for _, r := range p.fleet {
		errs = append(errs, r.Stop(ctx))
	}

	return errors.Join(errs...)
}

// held says who holds what at one moment.
type held struct {
	leader    string
	term      int64
	owners    map[string]int // number of slots by instance, dead or alive
	instances int            // that hold their locks
}

const whoHolds = `
	select coalesce(l.instance_id, ''), l.epoch,
	       (select coalesce(json_object_agg(owner, n), '{}') from (select owner, count(*) n from slot_ownership
		where owner is not null group by owner) s),
	       (select count(*) from relayer_instances i where exists (
	          select from held_locks() k where k.key = i.lock_key))
	from leadership l`

func (p *pair) held(ctx context.Context) (h held) {
	if p.lab.DB.QueryRow(ctx, whoHolds).Scan(&h.leader, &h.term, &h.owners, &h.instances) != nil {
		return held{}
	}

	return h
}

// trials makes o.Trials trials. Each hits the instance that leads at that moment.
func (p *pair) trials(ctx context.Context, o *Options, name string, signal syscall.Signal) (leader,
	slots []float64, err error) {
	for i := range o.Trials {
		a, b, err := p.trial(ctx, signal)
		if err != nil {
			return nil, nil, fmt.Errorf("trial %d: %w", i+1, err)
		}

		leader, slots = append(leader, milliseconds(a)), append(slots, milliseconds(b))
	}

	o.say("failover: %s, %d partitions: leader p50 %.0f ms, slots p50 %.0f ms", name, p.partitions, Quantile(leader, 0.5),
		Quantile(slots, 0.5))

	return leader, slots, nil
}

// trial sends the signal to the leader, measures, and brings the instance back.
func (p *pair) trial(ctx context.Context, signal syscall.Signal) (leader, slots time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var before held
	settled := func() bool { // both alive, all slots owned: by the leader, or half by each
		before = p.held(ctx)
		return p.fleet[before.leader] != nil && before.instances == 2 && len(before.owners) == p.partitions &&
			before.owners[before.leader] == 2520/p.partitions
	}
	if err := poll(ctx, 5*time.Millisecond, "the fleet to settle", settled); err != nil {
		return 0, 0, fmt.Errorf("%w; it is %+v", err, p.held(ctx))
	}

	victim := p.fleet[before.leader]
	start := time.Now()
	victim.Signal(signal)
	err = poll(ctx, 2*time.Millisecond, "another leader and owner", func() bool {
		h := p.held(ctx)
		if leader == 0 && h.term > before.term && h.leader != "" && h.leader != victim.ID {
			leader = time.Since(start)
		}

		if slots == 0 && len(h.owners) == 1 && h.owners[victim.ID] == 0 && h.instances > 0 {
			for _, n := range h.owners {
				if n == 2520 {
					slots = time.Since(start)
				}
			}
		}

		return leader > 0 && slots > 0
	})
	if err != nil {
		return 0, 0, fmt.Errorf("%w; it is %+v", err, p.held(ctx))
	}

	return leader, slots, revive(ctx, victim, signal, func(number int) error { return p.join(ctx, number) })
}

// revive brings an instance back: the same process if it was only frozen, else a new one with its number,
// with which its ID begins.
func revive(ctx context.Context, victim *lab.Process, signal syscall.Signal, join func(number int) error) error {
	if signal == syscall.SIGSTOP {
		victim.Signal(syscall.SIGCONT)
		return nil
	}

	if _, err := victim.Wait(ctx); err != nil {
		return err
	}

	return join(int(victim.ID[0] - '0'))
}
