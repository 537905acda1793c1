// Package bench measures the relayer: real processes against a durable Postgres, a chain and
// Google's Pub/Sub server on this machine. Its figures are those that a user decides by.
package bench

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
)

// Options of a run.
type Options struct {
	Bin    string  // the relayer's binary
	Scale  float64 // factor of all sizes; targets hold for 1
	Runs   int     // per figure whose median is taken
	Trials int     // per kind of failover
	Blocks int     // that Live measures
	Log    io.Writer
}

// scaled is n at the scale, at least one.
func (o *Options) scaled(n int) int { return max(1, int(float64(n)*o.Scale)) }

func (o *Options) say(format string, args ...any) { fmt.Fprintf(o.Log, format+"\n", args...) }

// Figure is one result: a quantile of its samples.
type Figure struct {
	Name, Unit  string
	Q           float64 // 0.5: the median
	Least, Most float64 // targets; zero: there is none
	Needed      int     // samples for a verdict
	Samples     []float64
}

// Value is the quantile by nearest rank; zero of no samples.
func (f *Figure) Value() float64 {
	if len(f.Samples) == 0 {
		return 0
	}

	s := slices.Sorted(slices.Values(f.Samples))

	return s[max(0, int(math.Ceil(f.Q*float64(len(s))))-1)]
}

// Verdict is the target and whether it is met; empty without one, below full scale, and with too few samples.
func (f *Figure) Verdict(scale float64) string {
	target, met := fmt.Sprintf("at least %g", f.Least), f.Value() >= f.Least
	if f.Most > 0 {
		target, met = fmt.Sprintf("at most %g", f.Most), f.Value() <= f.Most
	}

	switch {
	case f.Least+f.Most == 0 || scale < 1 || len(f.Samples) < max(1, f.Needed):
		return ""
	case met:
		return target + ": met"
	}

	return target + ": missed"
}

// Benchmark is what -only names, or those of one kind: what is before the dot.
type Benchmark struct {
	Name string
	Run  func(context.Context, *Options) ([]Figure, error)
}

// All in the order in which they run.
var All = []Benchmark{
	{"backfill", Backfill},
	{"live", Live},
	{"failover", Failover},
	{"commands.intake", intakeFigures},
	{"commands.broadcasts", broadcastFigures},
}

// Names of all benchmarks, separated by commas.
func Names() string {
	var list []string
	for _, b := range All {
		list = append(list, b.Name)
	}

	return strings.Join(list, ", ")
}

// Print writes a table.
func (o *Options) Print(w io.Writer, figures []Figure) {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.AppendHeader(table.Row{"name", "value", "unit", "target", "samples"})
	for _, f := range figures {
		t.AppendRow(table.Row{f.Name, fmt.Sprintf("%.2f", f.Value()), f.Unit, f.Verdict(o.Scale), len(f.Samples)})
	}

	t.Render()
}

// perSecond is a rate.
func perSecond(n int, d time.Duration) float64 { return float64(n) / d.Seconds() }

// milliseconds of durations.
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
