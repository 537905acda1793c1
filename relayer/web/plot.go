package web

import (
	"fmt"
	"strings"
	"time"
)

// A plot is drawn in a box of plotWidth by plotHeight and stretched to its place, in plotBuckets columns.
const (
	plotWidth, plotHeight = 240.0, 48.0
	plotBuckets           = 180
	// plotGap is the time without a sample that interrupts the line: a sampler waits for the
	// database at times.
	plotGap = 10 * time.Second
)

// past is the plots' data: the samples of a window that ends now.
type past struct {
	samples []sample
	now     time.Time
	window  time.Duration
	name    string // of the window
}

// newPast covers an hour, or the age of a younger process: an hour with a minute of data would look
// empty.
func newPast(samples []sample, now time.Time) past {
	p := past{samples, now, historySpan, "last hour"}
	if len(samples) == 0 {
		return p
	}

	known := now.Sub(samples[0].at)
	switch {
	case known <= 5*time.Minute:
		p.window, p.name = 5*time.Minute, "last 5 min"
	case known <= 20*time.Minute:
		p.window, p.name = 20*time.Minute, "last 20 min"
	}

	return p
}

// plot is a small picture of the past.
type plot struct {
	Label  string // its content, for screen readers
	Lines  []line
	Hi, Lo string // of the vertical axis
}

// line is one quantity.
type line struct {
	Class string
	Path  string // of an SVG path
	Area  string // the same, closed at the bottom; empty for heights
}

// series selects a quantity of a sample; ok is false if it is unknown.
type series func(sample) (v float64, ok bool)

// draw plots series on one scale from lo to hi.
func (p past) draw(lo, hi float64, area bool, class string, pick series) line {
	if hi <= lo {
		hi = lo + 1
	}

	var path, fill strings.Builder
	last, from := -1, 0.0 // the last column drawn, and where the current stretch began
	gap := int(plotGap*(plotBuckets-1)/p.window) + 2
	end := func() {
		if area && last >= 0 {
			fmt.Fprintf(&fill, "V%g H%g Z", plotHeight, from)
		}
	}
	for column, v := range p.buckets(pick) {
		if v == nil {
			continue
		}

		x := float64(column) * plotWidth / (plotBuckets - 1)
		y := plotHeight - 1 - (*v-lo)/(hi-lo)*(plotHeight-2) // one unit is left for the width of the line
		op := 'L'
		if last < 0 || column > last+gap {
			end()
			op, from = 'M', x
			if area {
				fmt.Fprintf(&fill, "M%.1f %g", x, plotHeight)
			}
		}

		fmt.Fprintf(&path, "%c%.1f %.1f", op, x, y)
		if area {
			fmt.Fprintf(&fill, "L%.1f %.1f", x, y)
		}

		last = column
	}

	end()

	return line{Class: class, Path: path.String(), Area: fill.String()}
}

// buckets takes the highest value of each column, so that short peaks stay visible.
func (p past) buckets(pick series) [plotBuckets]*float64 {
	var out [plotBuckets]*float64
	start := p.now.Add(-p.window)
	for _, s := range p.samples {
		v, ok := pick(s)
		column := int(s.at.Sub(start) * (plotBuckets - 1) / p.window)
		if !ok || column < 0 || column >= plotBuckets {
			continue
		}

		if out[column] == nil || *out[column] < v {
			out[column] = &v
		}
	}

	return out
}

// limits is the range of some series over all samples; ok is false without a known value.
func (p past) limits(picks ...series) (lo, hi float64, ok bool) {
	for _, s := range p.samples {
		for _, pick := range picks {
			v, known := pick(s)
			switch {
			case !known:
			case !ok:
				lo, hi, ok = v, v, true
			default:
				lo, hi = min(lo, v), max(hi, v)
			}
		}
	}

	return lo, hi, ok
}

func headOf(s sample) (float64, bool)      { return float64(s.head), s.head > 0 }
func targetOf(s sample) (float64, bool)    { return float64(s.target), s.target > 0 }
func processedOf(s sample) (float64, bool) { return float64(s.cursor - 1), s.cursor > 0 }
func lagOf(s sample) (float64, bool)       { return float64(s.lag), s.cursor > 0 && s.target > 0 }
func outboxOf(s sample) (float64, bool)    { return float64(s.outbox), true }
func oldestOf(s sample) (float64, bool)    { return s.oldest.Seconds(), true }

// heights plots head, target and processed block.
func (p past) heights() plot {
	lo, hi, ok := p.limits(headOf, targetOf, processedOf)
	if !ok {
		return plot{Label: "Heights: nothing known yet"}
	}

	return plot{
		Label: fmt.Sprintf("Heights, %s, from block %s to %s", p.name, count(int64(lo)), count(int64(hi))),
		Lines: []line{
			p.draw(lo, hi, false, "head", headOf),
			p.draw(lo, hi, false, "target", targetOf),
			p.draw(lo, hi, false, "processed", processedOf),
		},
		Hi: count(int64(hi)), Lo: count(int64(lo)),
	}
}

// amount plots one quantity from zero.
func (p past) amount(what string, format func(float64) string, pick series) plot {
	_, hi, ok := p.limits(pick)
	if !ok {
		return plot{Label: what + ": nothing known yet"}
	}

	out := plot{
		Label: fmt.Sprintf("%s, %s, at most %s", what, p.name, format(hi)),
		Lines: []line{p.draw(0, hi, true, "amount", pick)},
		Lo:    "0",
	}
	if top := format(hi); top != format(0) { // else it is drawn below a nought
		out.Hi = top
	}

	return out
}
