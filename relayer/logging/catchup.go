package logging

import (
	"context"
	"log/slog"
	"math"
	"time"
)

// farBehind is the lag, in processable blocks, above which an instance is catching up: more
// blocks than any chain makes between two samples.
const farBehind = 500

// progress is the state of an instance's catch-up.
type progress struct {
	Done, Left      int64   // blocks
	Percent         float64 // of the blocks between the beginning and the target
	BlocksPerSecond float64 // since the beginning
	EventsPerSecond float64 // since the beginning
	TimeLeft        time.Duration
	Over            bool // it has caught up
}

// CatchUp follows an instance from when it is far behind, at a first start or after an outage,
// until it has caught up. One goroutine uses it; its fields change together. The zero value is
// idle.
type CatchUp struct {
	began        time.Time // zero: the instance keeps up
	from         int64     // cursor at the beginning
	eventsBefore int64     // stored by this process before the beginning
}

// sample takes the next block to process, the newest that may be processed, and the number of
// events that this process has stored. ok is false without a catch-up to report.
func (c *CatchUp) sample(now time.Time, cursor, target, events int64) (p progress, ok bool) {
	left := max(0, target-cursor+1)
	if c.began.IsZero() {
		if cursor > 0 && left > farBehind {
			*c = CatchUp{began: now, from: cursor, eventsBefore: events}
		}

		return progress{}, false
	}

	done := max(0, cursor-c.from)
	seconds := now.Sub(c.began).Seconds()
	p = progress{Done: done, Left: left, Percent: 100}
	if done+left > 0 {
		p.Percent = math.Floor(1000*float64(done)/float64(done+left)) / 10
	}

	if seconds > 0 {
		p.BlocksPerSecond = float64(done) / seconds
		p.EventsPerSecond = float64(events-c.eventsBefore) / seconds
	}

	if p.BlocksPerSecond > 0 {
		p.TimeLeft = time.Duration(float64(left) / p.BlocksPerSecond * float64(time.Second)).Round(time.Second)
	}

	if p.Over = left < farBehind; p.Over {
		*c = CatchUp{}
	}

	return p, true
}

// Report takes a sample, and logs the progress of a catch-up.
func (c *CatchUp) Report(ctx context.Context, log *slog.Logger, cursor, target, events int64) {
	p, ok := c.sample(time.Now(), cursor, target, events)
	if !ok {
		return
	}

	rates := slog.Group("per_second", slog.Float64("blocks", math.Round(p.BlocksPerSecond)),
		slog.Float64("events", math.Round(p.EventsPerSecond)))
	if p.Over {
		log.InfoContext(ctx, "caught up", slog.Int64("blocks", p.Done), slog.Int64("left", p.Left), rates)
		return
	}

	left := "unknown"
	if p.TimeLeft > 0 {
		left = p.TimeLeft.String()
	}

	log.InfoContext(ctx, "catching up", slog.Int64("blocks", p.Done), slog.Int64("left", p.Left),
		slog.Float64("percent", p.Percent), rates, slog.String("time_left", left))
}
