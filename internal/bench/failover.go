package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"time"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
)

// ways in which an instance goes away, with the longest time in ms for which nobody may own what it
// owned: the factory, slots, a sender.
var ways = []struct {
	name   string
	signal syscall.Signal
	target float64
}{{"kill", syscall.SIGKILL, 2000}, {"stop", syscall.SIGTERM, 300}, {"freeze", syscall.SIGSTOP, 20_000}}

// Failover is the time for which nobody may commit after an instance was killed, stopped or frozen.
// Each trial hits the leader and measures two times: for the factory, from the signal to the next
// leader's epoch; for the slots, from the signal to the moment at which the other instance owns all
// of them. The fleet is an instance and its standby, which change roles with every trial: where nobody
// stands by, slots wait for ADOPT_AFTER besides.
func Failover(ctx context.Context, o *Options) (figures []Figure, err error) {
	l, err := lab.Start(ctx, lab.Options{Bin: o.Bin})
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, l.Close()) }()
	l.Chain.(*testchain.Sim).SetInterval(time.Second)
	standby, err := newPair(ctx, l)
	if err != nil {
		return nil, err
	}

	for _, way := range ways {
		leader, slots, err := standby.trials(ctx, o, way.name, way.signal)
		if err != nil {
			return nil, fmt.Errorf("failover by %s: %w", way.name, err)
		}

		figures = append(figures, gaps("failover.leader."+way.name, way.target, leader)...)
		figures = append(figures, gaps("failover.slots."+way.name, way.target, slots)...)
	}

	return figures, nil
}

// gaps are the figures of trials: for how long, in ms, nobody owned something.
func gaps(name string, target float64, ms []float64) []Figure {
	return []Figure{
		{Name: name + ".p50", Unit: "ms", Q: 0.5, Samples: ms},
		{Name: name + ".p99", Unit: "ms", Q: 0.99, Most: target, Needed: 50, Samples: ms},
	}
}

// pair is a fleet of one partition: one instance is the other's standby.
type pair struct {
	lab   *lab.Lab
	fleet map[string]*lab.Process
}

func newPair(ctx context.Context, l *lab.Lab) (*pair, error) {
	p := &pair{lab: l, fleet: map[string]*lab.Process{}}
	for number := range 2 {
		if err := p.join(ctx, number); err != nil {
			return nil, err
		}
	}

	return p, nil
}

func (p *pair) join(ctx context.Context, number int) error {
	r, err := p.lab.RunReady(ctx, fmt.Sprint(number), 0, 1, map[string]string{"LOG_LEVEL": "warn"})
	if err != nil {
		return err
	}

	p.fleet[r.ID] = r

	return nil
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

	o.say("failover: %s: leader %.0f ms, slots %.0f ms", name, leader, slots)

	return leader, slots, nil
}

// trial sends the signal to the leader, measures, and brings the instance back.
func (p *pair) trial(ctx context.Context, signal syscall.Signal) (leader, slots time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var before held
	settled := func() bool { // both alive, all slots owned by the leader
		before = p.held(ctx)
		return p.fleet[before.leader] != nil && before.instances == 2 && before.owners[before.leader] == 2520
	}
	if err := lab.Until(ctx, 5*time.Millisecond, "the fleet to settle", settled); err != nil {
		return 0, 0, fmt.Errorf("%w; it is %+v", err, p.held(ctx))
	}

	victim := p.fleet[before.leader]
	start := time.Now()
	victim.Signal(signal)
	err = lab.Until(ctx, 2*time.Millisecond, "another leader and owner", func() bool {
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

	if signal == syscall.SIGSTOP { // it was only frozen
		victim.Signal(syscall.SIGCONT)
		return leader, slots, nil
	}

	number, err := strconv.Atoi(victim.ID)
	if err == nil {
		_, err = victim.Wait(ctx)
	}

	return leader, slots, errors.Join(err, p.join(ctx, number))
}
