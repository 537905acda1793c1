package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/source"
)

const (
	// blocksBehind is by how many blocks an endpoint may be behind the best one before it counts as stuck.
	blocksBehind = 8
	// smallRange is the number of blocks per request below which a backfill is slow and expensive.
	smallRange = 500
	// slowEndpoint is the time of a request from which on it is noted: on a fast chain, that between two
	// blocks.
	slowEndpoint = time.Second
)

// chain examines every endpoint. An error means that none could be.
func (d *doctor) chain(ctx context.Context) error {
	src, err := openSource(d.cfg)
	if err != nil {
		return err
	}

	list := src.Examine(ctx, d.cfg.Factory, uint64(max(d.cfg.StartBlock, 0)))
	best := slices.MaxFunc(list, func(a, b source.Examination) int { return int(int64(a.Head) - int64(b.Head)) })
	usable, smallest := 0, d.cfg.RPCMaxRange
	announces := false
	for i := range list {
		x := &list[i]
		e := d.part(x.Name)
		works := e.judge("chain", fmt.Sprintf("chain %d", x.ChainID), x.Err)
		if works {
			e.endpoint(x, best.Head)
		}

		d.add(e)
		if !works {
			continue
		}

		usable++
		announces = announces || x.WebSocket && x.Subscribes == nil
		if x.RangeLimited && x.Range > 0 {
			smallest = min(smallest, x.Range)
		}
	}

	if usable == 0 {
		d.say(wrong, "endpoints", "no endpoint can be used: correct RPC_URLS")
		return nil
	}

	if smallest < d.cfg.RPCMaxRange {
		d.set("RPC_MAX_RANGE", strconv.FormatUint(smallest, 10),
			"the smallest range that every endpoint answers; it is also found out while running, at the cost of refused requests")
	}

	if usable == 1 {
		d.say(note, "endpoints",
			"one endpoint only: name a second one, of another provider, in RPC_URLS, to go on when it fails and to read a second time from somebody else")
	}

	if !announces {
		d.say(note, "endpoints",
			"none announces blocks: with a ws or wss endpoint first in RPC_URLS events arrive sooner, at half the requests")
	}

	tags := map[string]func(*source.Examination) *uint64{
		source.Safe:      func(x *source.Examination) *uint64 { return x.Safe },
		source.Finalized: func(x *source.Examination) *uint64 { return x.Finalized },
	}
	if tag := tags[d.cfg.Finality]; tag != nil && !slices.ContainsFunc(list,
		func(x source.Examination) bool { return x.Err == nil && tag(&x) != nil }) {
		d.set("FINALITY", source.Confirmations, "no endpoint knows the %s block", d.cfg.Finality)
	}

	return nil
}

// endpoint judges one endpoint that works. best is the newest head of all.
func (d *doctor) endpoint(x *source.Examination, best uint64) {
	age := time.Since(x.HeadTime).Round(time.Second)
	if x.Head+blocksBehind < best {
		d.say(wrong, "head", "block %d, %d behind the best endpoint", x.Head, best-x.Head)
	} else {
		d.say(fine, "head", "block %d, %s old", x.Head, age)
	}

	if x.Code {
		d.say(fine, "factory", "there is a contract at %s", d.cfg.Factory)
	} else {
		d.say(wrong, "factory", "there is no contract at FACTORY_ADDRESS=%s on chain %d", d.cfg.Factory, x.ChainID)
	}

	d.tags(x)
	d.logs(x)
	d.speed(x)
}

// tags says which blocks the endpoint calls safe and final.
func (d *doctor) tags(x *source.Examination) {
	for _, tag := range []struct {
		name  string
		block *uint64
	}{{source.Safe, x.Safe}, {source.Finalized, x.Finalized}} {
		switch {
		case tag.block != nil:
			d.say(fine, tag.name, "block %d, %d below the head", *tag.block, x.Head-min(x.Head, *tag.block))
		case tag.name == d.cfg.Finality:
			d.say(wrong, tag.name, "it does not know the %s block, which FINALITY asks for", tag.name)
		default:
			d.say(note, tag.name, "it does not know the %s block", tag.name)
		}
	}
}

// logs says of how many blocks the endpoint gives logs at once, from which block on, and whether only
// of named contracts.
func (d *doctor) logs(x *source.Examination) {
	switch {
	case x.RangeErr == nil:
		d.say(fine, "range", "logs of %d blocks at once, which is all that was asked for", x.Range)
	case x.Range == 0:
		d.say(wrong, "range", "it gives no logs, not of one block: %s", x.RangeErr)
	case !x.RangeLimited:
		d.say(note, "range", "logs of %d blocks at once; more could not be tested, since it says: %s",
			x.Range, x.RangeErr)
	case x.Range < smallRange:
		d.say(note, "range", "logs of %d blocks at once: a backfill will be slow; to more it says: %s",
			x.Range, x.RangeErr)
	default:
		d.say(fine, "range", "logs of %d blocks at once; to more it says: %s", x.Range, x.RangeErr)
	}

	switch start := max(d.cfg.StartBlock, 0); {
	case x.Head < uint64(start):
		d.say(wrong, "history", "its head %d is below START_BLOCK=%d", x.Head, start)
	case x.OldestErr == nil:
		d.say(fine, "history", "back to START_BLOCK=%d", start)
	default:
		what := "headers"
		if x.OldestLogs {
			what = "logs"
		}

		d.say(wrong, "history",
			"%s go back to block %d only, and START_BLOCK is %d: put an archive node into RPC_URLS; it says: %s",
			what, x.Oldest, start, x.OldestErr)
	}

	if x.Addressed != nil {
		v := fine
		if d.cfg.LogFilter != "addresses" {
			v = wrong
			d.set("LOG_FILTER", "addresses", "%s gives logs of named contracts only", x.Name)
		}

		d.say(v, "filter", "it gives logs of named contracts only: %s", x.Addressed)
	}
}

// speed says how fast the endpoint is, and how it may be asked.
func (d *doctor) speed(x *source.Examination) {
	v := fine
	if x.Latency > slowEndpoint {
		v = note
	}

	d.say(v, "latency", "%s (median)", x.Latency.Round(100*time.Microsecond))
	if x.Batch > 1 {
		d.say(fine, "batch", "it takes %d requests at once", x.Batch)
	} else {
		d.say(note, "batch",
			"it takes no batches: each request is sent alone, which takes longer; the number of requests stays the same")
	}

	if x.Rate > 0 {
		d.say(note, "rate",
			"it limits the rate: about %.1f requests per second went through; that is found out while running too, and RPC_MAX_RPS only sets a bound that is never tried", x.Rate)
	} else {
		d.say(fine, "rate", "no limit was met by the requests of this examination")
	}

	if x.WebSocket {
		if x.Subscribes == nil {
			d.say(fine, "newHeads", "it announces blocks")
		} else {
			d.say(note, "newHeads", "it does not announce blocks, and is polled: %s", x.Subscribes)
		}
	}
}
