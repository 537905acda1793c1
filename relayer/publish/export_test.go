package publish

import "time"

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
	set(&l.laneRows, o.LaneRows)
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
	WindowRows, PageRows, LaneRows, BatchRows, Requests, MaxBlocked int
	Delay, RereadEvery                                              time.Duration
}

// BeginQuiesce is Quiesce as far as the loop sees it; done fires when the slots are at rest.
func (p *Publisher) BeginQuiesce(slots []int16) (done <-chan map[int16]int64) {
	c := make(chan map[int16]int64, 1)
	p.inbox.order(order{slots: slots, done: c, patience: time.Hour})
	return c
}
