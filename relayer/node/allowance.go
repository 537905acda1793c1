package node

import (
	"context"
	"sync"
	"time"
)

// allowance is what a node lets through, as far as it is known: requests per second. Everything
// that asks the node obeys it together. What is read at once goes before what can wait (Later),
// which has its turn after patience all the same.
//
// rate is learnt: unlimited until the first refusal, then what was answered lately, less after each
// further refusal and slowly more while there is none. tokens may be negative: a batch larger than
// the bucket goes when the bucket is full, and the debt is waited for.
type allowance struct {
	now  func() time.Time
	most float64 // configured, requests per second; 0: none

	mu       sync.Mutex
	rate     float64 // requests per second; 0: no limit is known
	tokens   float64
	filled   time.Time // when tokens was last brought up to date
	lowered  time.Time // when rate last went down
	urgent   int       // urgent askers that wait
	since    time.Time // start of the window that counts
	counted  float64   // requests answered in it
	previous float64   // and in the one before, per second
	passed   bool      // a request was answered since the last refusal
}

const (
	// patience is how long what can wait waits behind what is urgent.
	patience = 5 * time.Second
	// window over which answered requests are counted.
	window = 2 * time.Second
	// After a refusal the rate is so much of what it was; while there is none it grows by a share or a step per second.
	slower, growth, step = 0.7, 0.03, 0.08
	// A rate beyond which a limit that was met once is forgotten, and the least to which it is
	// lowered, requests per second.
	unlimited, slowest = 1000, 0.2
	// A first refusal at a slower pace than this, in requests per second, is hardly for the pace.
	slowPace = 8
)

func newAllowance(most float64, now func() time.Time) *allowance {
	a := &allowance{now: now, most: most, rate: most, since: now(), filled: now()}
	a.tokens = a.burst()
	return a
}

// burst is how many requests may go at once: a second's.
func (a *allowance) burst() float64 { return max(a.rate, 1) }

type laterKey struct{}

// Later marks what is asked under a context as work that can wait: polling, and reading a second time.
func Later(ctx context.Context) context.Context { return context.WithValue(ctx, laterKey{}, true) }

// take waits until n requests may be sent.
func (a *allowance) take(ctx context.Context, n int) error {
	later := ctx.Value(laterKey{}) != nil
	began := a.now()
	a.mu.Lock()
	if !later {
		a.urgent++
		defer func() { a.mu.Lock(); a.urgent--; a.mu.Unlock() }()
	}

	for {
		wait := a.tryTake(float64(n), later && a.now().Sub(began) < patience)
		a.mu.Unlock()
		if wait == 0 {
			return ctx.Err()
		}

		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}

		a.mu.Lock()
	}
}

// tryTake takes the tokens for n requests, or says how long until it is worth trying again. Held: mu.
func (a *allowance) tryTake(n float64, yielding bool) time.Duration {
	if a.rate == 0 {
		return 0
	}

	now := a.now()
	a.tokens = min(a.tokens+a.rate*now.Sub(a.filled).Seconds(), a.burst())
	a.filled = now
	need := min(n, a.burst())
	if yielding && a.urgent > 0 {
		return max(time.Duration(need/a.rate*float64(time.Second)), time.Millisecond)
	}

	if a.tokens+1e-9 < need {
		return max(time.Duration((need-a.tokens)/a.rate*float64(time.Second)), time.Millisecond)
	}

	a.tokens -= n

	return 0
}

// answered counts requests that were answered.
func (a *allowance) answered(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	if elapsed := now.Sub(a.since); elapsed >= window {
		a.previous = a.counted / elapsed.Seconds()
		a.since, a.counted = now, 0
		a.grow(elapsed)
	}

	a.counted += float64(n)
	a.passed = a.passed || n > 0
}

// grow raises the rate after a time without a refusal. Held: mu.
func (a *allowance) grow(elapsed time.Duration) {
	if a.rate == 0 || a.rate == a.most || a.now().Sub(a.lowered) < elapsed {
		return
	}

	a.rate += max(a.rate*growth, step) * min(elapsed.Seconds(), 10)
	if a.most > 0 {
		a.rate = min(a.rate, a.most)
	} else if a.rate > unlimited {
		a.rate = 0
	}
}

// refused takes in a refusal for the rate, of requests that were sent at asked: several that were
// in flight together are one.
func (a *allowance) refused(asked time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if asked.Before(a.lowered) {
		return
	}

	now := a.now()
	if a.rate > 0 && !a.passed { // nothing is let through: that says nothing of the rate
		a.tokens, a.filled, a.lowered = -a.burst(), now, now
		return
	}

	a.passed = false
	seen := max(a.counted/max(now.Sub(a.since).Seconds(), 1), a.previous)
	rate := max(seen, slowPace)
	if a.rate > 0 {
		rate = min(a.rate, max(seen, a.rate*slower)) * slower
	}

	a.rate, a.tokens, a.filled, a.lowered = max(rate, slowest), 0, now, now
	if a.most > 0 {
		a.rate = min(a.rate, a.most)
	}
}

// learnt is the rate that was found out, requests per second; 0: none.
func (a *allowance) learnt() float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.rate == a.most {
		return 0
	}

	return a.rate
}
