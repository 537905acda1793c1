// Package bench measures the relayer: real processes against a durable Postgres, a chain and
// Google's Pub/Sub server on this machine.
//
// A figure is the median of its runs. What depends on the machine has its floor measured in the
// same run, and the ratio beside it.
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
	Base   string  // the binary of an earlier round, which Backfill measures beside it; empty: none
	Scale  float64 // factor of all sizes; targets hold for 1
	Runs   int     // per figure whose median is taken
	Trials int     // per kind of failover
	Blocks int     // that Live measures
	Commit string  // what is measured
	Log    io.Writer
}

// scaled is n at the scale, at least one.
func (o *Options) scaled(n int) int { return max(1, int(float64(n)*o.Scale)) }

func (o *Options) say(format string, args ...any) { fmt.Fprintf(o.Log, format+"\n", args...) }

// Figure is one result.
type Figure struct {
	Name   string    `json:"name"`
	Value  float64   `json:"value"`
	Unit   string    `json:"unit"`
	Target float64   `json:"target,omitempty"` // zero: there is none
	Met    *bool     `json:"met,omitempty"`    // nil without a target, and below full scale
	Ratio  float64   `json:"ratio,omitempty"`  // to the floor measured in the same run
	Runs   []float64 `json:"runs"`
	Scale  float64   `json:"scale"`
	Commit string    `json:"commit"`
}

// atLeast is a figure that should be large: the median of its runs.
func (o *Options) atLeast(name, unit string, target float64, runs []float64) Figure {
	return o.figure(name, unit, target, Quantile(runs, 0.5), runs, func(v float64) bool { return v >= target })
}

// unlessFew drops the verdict of a figure that has fewer samples than needed.
func unlessFew(f Figure, samples, needed int) Figure {
	if samples < needed {
		f.Met = nil
	}

	return f
}

// atMost is one that should be small.
func (o *Options) atMost(name, unit string, target, value float64, runs []float64) Figure {
	return o.figure(name, unit, target, value, runs, func(v float64) bool { return v <= target })
}

// once is atMost of what is measured once.
func (o *Options) once(name, unit string, target, value float64) Figure {
	return o.atMost(name, unit, target, value, []float64{value})
}

func (o *Options) figure(name, unit string, target, value float64, runs []float64, met func(float64) bool) Figure {
	f := Figure{Name: name, Value: value, Unit: unit, Target: target, Runs: runs, Scale: o.Scale, Commit: o.Commit}
	if target > 0 && o.Scale >= 1 && len(runs) > 0 {
		m := met(value)
		f.Met = &m
	}

	return f
}

// Quantile of values by nearest rank; zero of none.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}

	s := slices.Sorted(slices.Values(values))

	return s[max(0, int(math.Ceil(q*float64(len(s))))-1)]
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
func Print(w io.Writer, figures []Figure) {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.AppendHeader(table.Row{"name", "value", "unit", "target", "met", "ratio", "runs"})
	for _, f := range figures {
		met, target, ratio := "", "", ""
		if f.Met != nil {
			met = fmt.Sprint(*f.Met)
		}

		if f.Target > 0 {
			target = fmt.Sprintf("%.4g", f.Target)
		}

		if f.Ratio > 0 {
			ratio = fmt.Sprintf("%.2f", f.Ratio)
		}

		t.AppendRow(table.Row{f.Name, fmt.Sprintf("%.*f", decimals(f.Value), f.Value), f.Unit, target, met,
			ratio, len(f.Runs)})
	}

	t.Render()
}

// decimals to print of a value.
func decimals(v float64) int {
	if math.Abs(v) < 10 {
		return 2
	}

	return 1
}

// perSecond is a rate.
func perSecond(n int, d time.Duration) float64 { return float64(n) / d.Seconds() }

// milliseconds of durations.
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
