package endpoint

import "time"

// pace is how many requests per second a node lets through: any number until the first refusal. What a
// refusal says is worked out from what was answered since the one before, and for how long nothing was.
//
// tokens may be negative: a batch larger than the bucket goes when the bucket is full, and the debt is
// waited for. Held: the allowance's mu.
type pace struct {
	most   float64 // configured, requests per second; 0: none
	rate   float64 // requests per second; 0: no limit is known
	tokens float64
	filled time.Time // when tokens was last brought up to date

	aim      float64       // what a refusal showed to be let through; 0: none did
	holds    time.Duration // how long after a refusal more than that is not tried
	lowered  time.Time     // when a refusal was last taken in
	passed   float64       // requests answered since, of those asked since
	busy     float64       // seconds that they take at the rates that were kept to
	stopped  time.Duration // for how long none was before
	short    bool          // somebody waited for tokens since rate was last raised
	since    time.Time     // start of the window that counts
	counted  float64       // requests answered in it
	previous float64       // and in the one before, per second
}

const (
	// window over which answered requests are counted, and after which the rate is raised.
	window = 2 * time.Second
	// After a refusal the rate is what was let through. More is tried after firstHold, then after twice as
	// long each time: so much more with each window.
	growth                 = 0.1
	firstHold, longestHold = 10 * time.Second, 10 * time.Minute
	// Fewer requests than fewPassed tell little: by them the rate is lowered at most to such a share of it,
	// less if it was a guess.
	fewPassed, leastOfGuess, leastOfKnown = 10, 0.25, 0.7
	// A rate beyond which a limit that was met once is forgotten, and the least to which it is
	// lowered, requests per second.
	unlimited, slowest = 1000, 0.2
	// A first refusal at a slower pace than slowPace, in requests per second, is hardly for the pace.
	slowPace = 8
)

func newPace(most float64, now time.Time) pace {
	p := pace{most: most, rate: most, since: now, filled: now, holds: firstHold}
	p.tokens = p.burst()
	return p
}

// burst is how many requests may go at once: a second's.
func (p *pace) burst() float64 { return max(p.rate, 1) }

// take takes the tokens for n requests, or says how long until it is worth trying again.
func (p *pace) take(n float64, now time.Time) time.Duration {
	if p.rate == 0 || n == 0 {
		return 0
	}

	p.tokens = min(p.tokens+p.rate*now.Sub(p.filled).Seconds(), p.burst())
	p.filled = now
	if need := min(n, p.burst()); p.tokens+1e-9 < need {
		p.short = true
		return max(time.Duration((need-p.tokens)/p.rate*float64(time.Second)), time.Millisecond)
	}

	p.tokens -= n

	return 0
}

// answered counts requests that were answered, and raises the rate when there was no refusal for a while.
func (p *pace) answered(n float64, asked, now time.Time) {
	if p.rate > 0 && !asked.Before(p.lowered) {
		if p.passed == 0 && !p.lowered.IsZero() {
			p.stopped = now.Sub(p.lowered)
		}

		p.passed += n
		p.busy += n / p.rate
	}

	p.counted += n
	if elapsed := now.Sub(p.since); elapsed >= window {
		p.previous = p.counted / elapsed.Seconds()
		p.since, p.counted = now, 0
		p.grow(now)
	}
}

func (p *pace) grow(now time.Time) {
	calm := now.Sub(p.lowered)
	if p.rate == 0 || p.rate == p.most || !p.short || calm < window {
		return
	}

	p.short = false
	if p.aim == 0 || calm >= p.holds {
		p.rate += p.rate * growth
	}

	if p.rate > 2*p.aim {
		p.aim, p.holds = 0, max(p.holds/2, firstHold)
	}

	if p.most > 0 {
		p.rate = min(p.rate, p.most)
	} else if p.rate > unlimited {
		p.rate = 0
	}
}

// refused notes a refusal, and that nothing is sent for a pause.
func (p *pace) refused(now time.Time, pause time.Duration) {
	p.tokens, p.filled = 0, now.Add(pause)
	switch {
	case p.rate == 0:
		p.rate = max(p.counted/window.Seconds(), p.previous, slowPace)
	case p.passed == 0:
		return // nothing is let through: that says nothing of the rate
	default:
		before := p.rate
		p.learn()
		p.rate = max(p.rate, min(before, slowest))
	}

	if p.most > 0 {
		p.rate = min(p.rate, p.most)
	}

	p.lowered, p.passed, p.busy, p.stopped = now, 0, 0, 0
}

// learn works out what is let through: what was answered, in the time in which nothing was, and that which
// so many requests take at the rates that were kept to. The rest of the time there was nothing to ask. Where
// more was tried at last, that is hardly more than before: by the last rate alone it would be too much.
func (p *pace) learn() {
	least := p.rate * leastOfGuess
	if p.aim > 0 {
		least = p.rate * leastOfKnown
	}

	if p.aim > 0 && p.rate > p.aim { // more was tried
		p.holds = min(2*p.holds, longestHold)
	}

	p.aim = p.passed / (p.stopped.Seconds() + p.busy)
	if p.passed < fewPassed {
		p.aim = max(p.aim, least)
	}

	p.rate = p.aim
}
