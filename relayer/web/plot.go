package web

import (
	"fmt"
	"strings"
	"time"
)

// A plot is drawn in a box of plotWidth by plotHeight and stretched to its place. It shows historySpan in plotBuckets columns.
const (
	plotWidth, plotHeight = 240.0, 48.0
	plotBuckets           = 180 // 20 s each
)

// plot is a small picture of the last hour.
type plot struct {
	Label  string // what it shows, for those who do not see it
	Lines  []line
	Hi, Lo string // of the vertical axis
}

// line is one quantity.
type line struct {
	Class string
	Path  string // of an SVG path
	Area  string // the same, closed at the bottom; empty for heights
}

// series picks a quantity of a sample; ok is false where it is unknown.
type series func(sample) (v float64, ok bool)

// draw plots series on one scale from lo to hi.
func draw(samples []sample, now time.Time, lo, hi float64, area bool, class string, pick series) line {
	if hi <= lo {
		hi = lo + 1
	}
	var path, fill strings.Builder
	last, from := -2, 0.0 // the last column drawn, and where the current stretch began
	end := func() {
		if area && last >= 0 {
			fmt.Fprintf(&fill, "V%g H%g Z", plotHeight, from)
		}
	}
	for column, v := range buckets(samples, now, pick) {
		if v == nil {
			continue
		}
		x := float64(column) * plotWidth / (plotBuckets - 1)
		y := plotHeight - 1 - (*v-lo)/(hi-lo)*(plotHeight-2) // one unit is left for the width of the line
		op := 'L'
		// A sampler that was late leaves a column out; more than that is a gap.
		if column > last+2 {
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

// buckets takes the highest value of each column, so that a short peak is not lost.
func buckets(samples []sample, now time.Time, pick series) [plotBuckets]*float64 {
	var out [plotBuckets]*float64
	start := now.Add(-historySpan)
	for _, s := range samples {
		v, ok := pick(s)
		column := int(s.at.Sub(start) * (plotBuckets - 1) / historySpan)
		if !ok || column < 0 || column >= plotBuckets {
			continue
		}
		if out[column] == nil || *out[column] < v {
			out[column] = &v
		}
	}
	return out
}

// limits is the range of some series over all samples; ok is false when nothing is known.
func limits(samples []sample, picks ...series) (lo, hi float64, ok bool) {
	for _, s := range samples {
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

// heights plots head, target and what was processed.
func heights(samples []sample, now time.Time) plot {
	lo, hi, ok := limits(samples, headOf, targetOf, processedOf)
	if !ok {
		return plot{Label: "Heights over the last hour: nothing known yet"}
	}
	return plot{
		Label: fmt.Sprintf("Heights over the last hour, from block %s to %s", count(int64(lo)), count(int64(hi))),
		Lines: []line{
			draw(samples, now, lo, hi, false, "head", headOf),
			draw(samples, now, lo, hi, false, "target", targetOf),
			draw(samples, now, lo, hi, false, "processed", processedOf),
		},
		Hi: count(int64(hi)), Lo: count(int64(lo)),
	}
}

// amount plots one quantity from zero.
func amount(samples []sample, now time.Time, what string, format func(float64) string, pick series) plot {
	_, hi, ok := limits(samples, pick)
	if !ok {
		return plot{Label: what + " over the last hour: nothing known yet"}
	}
	p := plot{
		Label: fmt.Sprintf("%s over the last hour, at most %s", what, format(hi)),
		Lines: []line{draw(samples, now, 0, hi, true, "amount", pick)},
		Lo:    "0",
	}
	if hi > 0 {
		p.Hi = format(hi)
	}
	return p
}
