package endpoint

import (
	"cmp"
	"time"
)

// pace is how many requests per second a node lets through: any number until the first refusal.
//
// tokens may be negative: a batch larger than the bucket goes when the bucket is full, and the debt is
// waited for. Held: the allowance's mu.
type pace struct {
	rate   *limit  // requests per second; of size 0: none is known
	most   float64 // configured, requests per second; 0: none
	tokens float64
	filled time.Time // when tokens was last brought up to date

	lowered  time.Time // when a refusal was last taken in
	resumed  time.Time // when the pause after it was over
	passed   float64   // requests answered since, of those asked since
	short    bool      // somebody waited for tokens in this window
	since    time.Time // start of the window that counts
	counted  float64   // requests answered in it
	previous float64   // and in the one before, per second
}

const (
	// window over which answered requests are counted, and after which the rate is raised.
	window = 2 * time.Second
	// A rate beyond which a limit that was met once is forgotten, in requests per second.
	unlimited = 1000
	// A first refusal at a slower pace than slowPace, in requests per second, is hardly for the pace.
	slowPace = 8
)

func newPace(most float64, now func() time.Time) pace {
	p := pace{most: most, rate: newLimit(callsPerSecond, most, cmp.Or(most, unlimited), now), since: now(), filled: now()}
	p.rate.least = min(p.rate.least, p.rate.most)
	p.tokens = p.burst()

	return p
}

// burst is how many requests may go at once: a second's.
func (p *pace) burst() float64 { return max(p.rate.allowed(), 1) }

// take takes the tokens for n requests, or says how long until it is worth trying again.
func (p *pace) take(n float64, now time.Time) time.Duration {
	if p.rate.size == 0 || n == 0 {
		return 0
	}

	rate, burst := p.rate.allowed(), p.burst()
	p.tokens = min(p.tokens+rate*now.Sub(p.filled).Seconds(), burst)
	p.filled = now
	if need := min(n, burst); p.tokens+1e-9 < need {
		p.short = true
		return max(time.Duration((need-p.tokens)/rate*float64(time.Second)), time.Millisecond)
	}

	p.tokens -= n

	return 0
}

// answered counts requests that were answered, and raises the rate when there was no refusal for a window, and
// somebody waited. What is let through is hardly more than what was, so what was refused is tried again as a whole.
func (p *pace) answered(n float64, asked, now time.Time) {
	if p.rate.size > 0 && !asked.Before(p.lowered) {
		p.passed += n
	}

	p.counted += n
	elapsed := now.Sub(p.since)
	if elapsed < window {
		return
	}

	p.previous = p.counted / elapsed.Seconds()
	p.since, p.counted = now, 0
	if !p.short || now.Sub(p.lowered) < window {
		return
	}

	p.short = false
	if p.rate.answered(p.rate.allowed(), 0); p.most == 0 && p.rate.size >= unlimited {
		p.rate.size = 0
	}
}

// refused notes a refusal, and that nothing is sent for a pause. While nothing is let through that says nothing of the
// rate.
func (p *pace) refused(now time.Time, pause time.Duration) {
	p.tokens, p.filled = 0, now.Add(pause)
	n := p.rate.allowed()
	switch {
	case n == 0:
		p.rate.size = min(max(p.counted/window.Seconds(), p.previous, slowPace), p.rate.most)
	case p.passed > 0: // so much was answered in all that time, of which some may have been idle
		least := n / 2
		if p.passed < fewPassed { // that tells little
			least = n * 2 / 3
		}

		p.rate.refused(n, max(p.passed/now.Sub(p.resumed).Seconds(), least))
	}

	p.rate.until = p.filled.Add(p.rate.holds)
	if n == 0 || p.passed > 0 {
		p.lowered, p.resumed, p.passed = now, p.filled, 0
	}
}
