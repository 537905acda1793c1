package publish

import (
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// Tune makes a publisher impatient, and its limits small where they are given.
func (p *Publisher) Tune(o Tuning) {
	l := &p.limits
	set := func(limit *int, value int) {
		if value > 0 {
			*limit = value
		}
	}
	set(&l.windowRows, o.WindowRows)
	set(&l.pageRows, o.PageRows)
	set(&l.batchRows, o.BatchRows)
	set(&l.requests, o.Requests)
	set(&l.maxBlocked, o.MaxBlocked)
	if o.Delay > 0 {
		l.firstDelay, l.lastDelay = o.Delay, 4*o.Delay
	}

	if o.RereadEvery > 0 {
		l.rereadEvery = o.RereadEvery
	}
}

// Tuning overrides limits; zero leaves them.
type Tuning struct {
	WindowRows, PageRows, BatchRows, Requests, MaxBlocked int
	Delay, RereadEvery                                    time.Duration
}

// BeginQuiesce is Quiesce as far as the loop sees it; done fires when the slots are at rest.
func (p *Publisher) BeginQuiesce(slots []int16) (done <-chan []int16) {
	c := make(chan []int16, 1)
	p.inbox.order(order{slots: slots, done: c, patience: time.Hour})
	return c
}

// OfferRows offers rows of the outbox alone, of events with a block each.
func (p *Publisher) OfferRows(epoch int64, rows []outbox.Pending) {
	c := outbox.Commit{Right: outbox.Right{Epoch: epoch}, Rows: rows}
	if n := len(rows); n > 0 {
		c.From, c.Next = int64(rows[0].Event.BlockNumber), int64(rows[n-1].Event.BlockNumber)+1
	}

	p.Offer(c)
}

// ReloadSlots is Reload under the first epoch.
func (p *Publisher) ReloadSlots(slots []int16) { p.Reload(outbox.Right{Epoch: 1}, slots) }
