package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

const (
	// blocksBehind is the lag in blocks, behind the best endpoint, from which an endpoint counts as
	// stuck.
	blocksBehind = 8
	// blocksApart is by how many blocks an endpoint's final block may exceed its head: the head was
	// read some seconds earlier, perhaps from another machine.
	blocksApart = 1000
	// smallRange is the number of blocks per request below which a backfill is slow and expensive.
	smallRange = 500
	// slowEndpoint is the duration of a request from which it is noted: on a fast chain, the time
	// between two blocks.
	slowEndpoint = time.Second
)

// chain does the step of the start, and examines every endpoint.
func (d *doctor) chain(ctx context.Context) {
	d.steps(ctx, "chain")
	list := d.start.Source.Examine(ctx, d.cfg.Factories[0].Address, uint64(max(d.cfg.StartBlock, 0)))
	best := slices.MaxFunc(list, func(a, b chain.Examination) int { return int(int64(a.Head) - int64(b.Head)) })
	usable, announces := 0, false
	for i := range list {
		x := &list[i]
		e := d.part(x.Name)
		served := e.serves(x)
		if served {
			e.endpoint(x, best.Head)
		}

		d.add(e)
		if x.Head > 0 {
			usable++
		}

		announces = announces || served && x.WebSocket && x.Subscribes == nil
	}

	switch usable {
	case 0:
		return
	case 1:
		d.say(note, "endpoints",
			"one endpoint only: name a second one, of another provider, in RPC_URLS, to go on when it fails and to read a second time from somebody else")
	}

	if !announces {
		d.say(note, "endpoints",
			"none announces blocks: with a ws or wss endpoint first in RPC_URLS events arrive sooner, with fewer requests")
	}

	tags := map[string]func(*chain.Examination) *uint64{
		chain.Safe:      func(x *chain.Examination) *uint64 { return x.Safe },
		chain.Finalized: func(x *chain.Examination) *uint64 { return x.Finalized },
	}
	if tag := tags[d.cfg.Finality]; tag != nil && !slices.ContainsFunc(list,
		func(x chain.Examination) bool { return x.Err == nil && tag(&x) != nil }) {
		d.say(wrong, "endpoints", "no endpoint knows the %s block: set FINALITY=%s", d.cfg.Finality, chain.Confirmations)
	}
}

// serves reports whether an endpoint can be used, and if not, the remedy.
func (d *doctor) serves(x *chain.Examination) bool {
	switch {
	case x.Err == nil:
		d.say(fine, "chain", "chain %d", x.ChainID)
		return true
	case x.Head > 0:
		why := ""
		if x.Rate > 0 {
			why = "; " + rateNote(x)
		}

		d.say(unknown, "chain", "chain %d, block %d; there was no time for the rest: name a longer --timeout%s",
			x.ChainID, x.Head, why)
	default:
		d.say(wrong, "chain", "%s%s", d.secrets.Error(x.Err), endpoint.Advice(x.Err))
	}

	return false
}

// rateNote reports the final request rate to an endpoint that limits it. The true limit may be
// higher: after each refusal it is asked less often.
func rateNote(x *chain.Examination) string {
	return fmt.Sprintf("it limits the rate, and was asked for %.1f requests per second in the end", x.Rate)
}

// endpoint judges one working endpoint. best is the newest head of all.
func (d *doctor) endpoint(x *chain.Examination, best uint64) {
	age := time.Since(x.HeadTime).Round(time.Second)
	if x.Head+blocksBehind < best {
		d.say(wrong, "head", "block %d, %d behind the best endpoint", x.Head, best-x.Head)
	} else {
		d.say(fine, "head", "block %d, %s", x.Head, oldOrAhead(age))
	}

	d.tags(x)
	d.logs(x)
	d.speed(x)
}

// oldOrAhead is a block's age in words. Some chains' blocks are ahead of the clock, or the clock is wrong.
func oldOrAhead(age time.Duration) string {
	if age < 0 {
		return fmt.Sprintf("whose time is %s ahead of this machine's clock", -age)
	}

	return fmt.Sprintf("%s old", age)
}

// tags reports the blocks that the endpoint calls safe and final.
func (d *doctor) tags(x *chain.Examination) {
	for _, tag := range []struct {
		name  string
		block *uint64
	}{{chain.Safe, x.Safe}, {chain.Finalized, x.Finalized}} {
		switch {
		case tag.block != nil && *tag.block > x.Head+blocksApart:
			v := note
			if tag.name == d.cfg.Finality {
				v = wrong
			}

			d.say(v, tag.name, "it calls block %d %s, and its head is block %d: use another endpoint", *tag.block, tag.name,
				x.Head)
		case tag.block != nil:
			d.say(fine, tag.name, "block %d, %d below the head", *tag.block, x.Head-min(x.Head, *tag.block))
		case tag.name == d.cfg.Finality:
			d.say(wrong, tag.name, "it does not know the %s block, which FINALITY asks for", tag.name)
		default:
			d.say(note, tag.name, "it does not know the %s block", tag.name)
		}
	}
}

// limited reports whether an endpoint refuses large ranges, whatever its words: it answered for
// fewer blocks, and did not report missing history.
func limited(x *chain.Examination) bool {
	return x.Range > 0 && x.RangeErr != nil && rpc.Shrinks(rpc.Classify(x.RangeErr))
}

// logs reports the range of blocks for which it returns logs at once, the first such block, and of
// which contracts.
func (d *doctor) logs(x *chain.Examination) {
	switch {
	case x.RangeErr == nil:
		d.say(fine, "range", "logs of %d blocks at once, which is all that was asked for", x.Range)
	case x.Range == 0:
		d.say(wrong, "range", "it gives no logs, not of one block: use another endpoint; it says: %s", x.RangeErr)
	case !limited(x):
		d.say(note, "range", "logs of %d blocks at once; more could not be tested, since it says: %s",
			x.Range, x.RangeErr)
	case x.Range < smallRange:
		d.say(note, "range", "logs of %d blocks at once: a backfill will be slow; to more it says: %s",
			x.Range, x.RangeErr)
	default:
		d.say(fine, "range", "logs of %d blocks at once; to more it says: %s", x.Range, x.RangeErr)
	}

	d.history(x)
	d.proofs(x)
	if x.Addressed != nil {
		v, remedy := fine, ""
		if d.cfg.LogFilter != "addresses" {
			v, remedy = wrong, "set LOG_FILTER=addresses: "
		}

		d.say(v, "filter", "%sit gives logs of named contracts only: %s", remedy, x.Addressed)
	}
}

// history reports the first block with headers and logs.
func (d *doctor) history(x *chain.Examination) {
	says := "nothing of it"
	if x.OldestErr != nil && (!errors.Is(x.OldestErr, rpc.ErrBehind) || x.OldestLogs) {
		says = x.OldestErr.Error()
	}

	switch start := max(d.cfg.StartBlock, 0); {
	case x.Head < uint64(start):
		d.say(wrong, "history", "its head %d is below START_BLOCK=%d", x.Head, start)
	case x.OldestErr == nil && x.Logged > 0:
		d.say(fine, "history", "back to START_BLOCK=%d: it has the logs that block %d has by its bloom filter", start,
			x.Logged)
	case x.OldestErr == nil:
		d.say(fine, "history", "headers back to START_BLOCK=%d; none of the blocks after it has logs by which to test those",
			start)
	case x.OldestLogs && x.Range == 0:
		d.say(unknown, "history", "it gives no logs of any block")
	default:
		of := "headers"
		if x.OldestLogs {
			of = "logs"
		}

		d.say(wrong, "history",
			"%s go back to block %d only, and START_BLOCK is %d: put an archive node into RPC_URLS; of older ones it says %s",
			of, x.Oldest, start, says)
	}
}

// proofs reports what its answers prove: what cannot be proved takes two endpoints that say the same.
func (d *doctor) proofs(x *chain.Examination) {
	const two = "two endpoints have to say the same of a block"
	if x.Hashes {
		d.say(fine, "headers", "they hash as Ethereum's do")
	} else {
		d.say(note, "headers", "they do not hash as Ethereum's do, so receipts prove nothing, and %s", two)
	}

	switch {
	case !x.Hashes:
	case x.Receipts == 0 && x.Unproved != nil:
		d.say(unknown, "receipts", "%s", x.Unproved)
	case x.Receipts == 0:
		d.say(unknown, "receipts", "none of the newest blocks has logs by which to test whether they prove them")
	case x.Unproved != nil:
		d.say(note, "receipts", "they do not prove the logs of block %d, so %s: %s", x.Receipts, two, x.Unproved)
	default:
		d.say(fine, "receipts", "they prove the logs of block %d", x.Receipts)
	}

	if x.StateErr != nil {
		d.say(note, "state", "it does not have that of START_BLOCK, so a factory's nonce is not compared with the "+
			"deployments; it says: %s", x.StateErr)
		return
	}

	d.say(fine, "state", "back to START_BLOCK")
}

// speed reports its latency, and its request limits.
func (d *doctor) speed(x *chain.Examination) {
	v := fine
	if x.Latency > slowEndpoint {
		v = note
	}

	d.say(v, "latency", "%s (median)", x.Latency.Round(100*time.Microsecond))
	if x.Rate > 0 {
		d.say(note, "rate", "%s; what it allows is found out while running too: RPC_MAX_RPS only sets a bound",
			rateNote(x))
	}

	if x.WebSocket && x.Subscribes != nil {
		d.say(note, "newHeads", "it does not announce blocks, and is polled: %s", x.Subscribes)
	}
}
