package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// showEvery is the pause between two lines of a chain.
const showEvery = 5 * time.Second

// lookTimeout bounds a look: the machine may be busy, and the demo is to end soon after it was told to.
const lookTimeout = 3 * time.Second

// look is what is seen of a chain.
type look struct {
	fleet               fleet.Fleet
	head                int64
	factories, received int
}

// say prints what happens, and when.
func (s *scene) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock() // what is printed is in the order of time
	fmt.Fprintf(s.o.Out, "%6.1fs  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// show prints a line per chain now and then.
func (s *scene) show(ctx context.Context) error {
	return lab.Every(ctx, showEvery, func() error {
		for _, c := range s.chains {
			if l, err := c.look(ctx); err == nil { // else the database has too much to do, and the next look is soon
				s.say("%s", l)
			}
		}

		return nil
	})
}

// watch says who leads a chain.
func (s *scene) watch(ctx context.Context, c *chain) error {
	last := int64(-1)

	return lab.Every(ctx, 10*time.Millisecond, func() error {
		id, epoch, err := c.leader(ctx)
		if err == nil && epoch != last && last >= 0 {
			s.say("%s leads chain %d (epoch %d)", id, c.id, epoch)
		}

		if err == nil { // else the next look is soon
			last = epoch
		}

		return nil
	})
}

// leader is the instance that led last; empty: nobody did.
func (c *chain) leader(ctx context.Context) (id string, epoch int64, err error) {
	err = c.lab.DB.QueryRow(ctx, `select epoch, coalesce(instance_id, '') from leadership where chain_id = $1`,
		c.id).Scan(&epoch, &id)

	return id, epoch, err
}

func (c *chain) look(ctx context.Context) (l *look, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
	defer cancel()
	l = &look{received: c.lab.Received.Len()}
	if l.fleet, err = fleet.Read(ctx, c.lab.DB, c.id); err != nil {
		return nil, err
	}

	factories, err := registry.Factories(ctx, c.lab.DB, c.id)
	if err != nil {
		return nil, err
	}

	head, err := c.lab.Head(ctx)
	l.factories, l.head = len(factories), int64(head)

	return l, err
}

func (l *look) String() string {
	f, leader, behind := &l.fleet, "none", int64(0)
	if f.Leader.Held {
		leader = f.Leader.Instance
	}

	if lowest := f.Chain.LowestCursor; lowest > 0 {
		behind = max(0, l.head-confirmations+1-lowest)
	}

	return fmt.Sprintf("chain %d  relayers alive %d, leader %-10s slots served %d of %d, adopted %d  block %d, behind by %d  "+
		"factories %d  escrows %d  messages published %d, waiting %d", f.ChainID, f.Live(), leader, f.Slots.Served,
		f.Slots.Total, f.Slots.Adopted, l.head, behind, l.factories, f.Escrows.Registered(), l.received,
		f.Outbox.Messages)
}
