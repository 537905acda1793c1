package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// Verdict of the oracle.
type Verdict struct {
	Plan             Plan
	Events, Messages int            // what the chains have, and what was published
	Transactions     int            // of senders
	Commands         map[string]int // by state
	Wrong            []string       // everything that must not be
	Seen             []string       // what else is worth telling
	Logs             string         // folder
}

// Clean says that nothing is wrong.
func (v *Verdict) Clean() bool { return len(v.Wrong) == 0 }

func (v *Verdict) String() string {
	s := fmt.Sprintf("seed %d: events %d, messages %d", v.Plan.Seed, v.Events, v.Messages)
	if v.Plan.Commands != nil {
		s += fmt.Sprintf(", transactions %d, commands %v", v.Transactions, v.Commands)
	}

	if len(v.Seen) > 0 {
		s += "\n  " + strings.Join(v.Seen, "\n  ")
	}

	if v.Clean() {
		return "ok    " + s
	}

	return "WRONG " + s + "\n  " + strings.Join(v.Wrong, "\n  ") + "\n  logs: " + v.Logs + "\n" + v.Plan.String()
}

// differ holds what a table says against what it has to equal, by a rule.
func (v *Verdict) differ(rule, table string, got map[string]string, source string, want map[string]string) {
	for _, d := range lab.Differences(table, got, source, want) {
		v.wrong("%s%s", rule, d)
	}
}

func (v *Verdict) wrong(format string, args ...any) {
	v.Wrong = append(v.Wrong, fmt.Sprintf(format, args...))
}

// judge starts what is not running, lets the chains stand still, and compares.
func (r *run) judge(ctx context.Context) (*Verdict, error) {
	if err := r.heal(ctx); err != nil {
		return nil, err
	}

	v := &Verdict{Plan: r.plan, Commands: map[string]int{}}
	if r.way != nil {
		if err := r.way.settle(ctx, v); err != nil {
			return nil, err
		}
	}

	omits := r.plan.Has(NodeOmits) || r.plan.lacksRefunds() // the second reading finds what is missing
	if err := r.judgeChain(ctx, r.lab, omits, v); err != nil {
		return nil, err
	}

	if r.second != nil {
		if err := r.judgeChain(ctx, r.second.lab, false, v); err != nil {
			return nil, err
		}
	}

	if r.way != nil {
		if err := r.way.check(ctx, v); err != nil {
			return nil, err
		}
	}

	for _, n := range r.network {
		n.database.Forget()
	}

	if err := r.quiet(ctx, v); err != nil {
		return nil, err
	}

	r.endings(ctx, v)

	return v, nil
}

// judgeChain lets a chain go on by some empty blocks and stand still, waits for its relayers, and compares what they
// have published and stored with what the chain says.
func (r *run) judgeChain(ctx context.Context, l *lab.Lab, omits bool, v *Verdict) error {
	// Enough more blocks that the cursors of all watches pass what a reorganisation has replaced.
	blocks, patience, verified := 2*r.plan.Confirmations+10, settleTimeout, int64(0)
	head, err := l.Chain.Client().BlockNumber(ctx)
	if omits {
		blocks, patience, verified = blocks+2*epoch, patience+suspectTimeout, int64(head)
	}

	if err = errors.Join(err, l.Chain.Mine(ctx, blocks)); err != nil {
		return err
	}

	if head, err = l.Chain.Client().BlockNumber(ctx); err != nil {
		return err
	}

	target := head - uint64(r.plan.Confirmations)
	truth, err := testchain.ReadTruth(ctx, l.Chain.Client(), l.Contracts.Block, target, l.Contracts.Factory,
		l.Contracts.Legacy)
	if err != nil {
		return err
	}

	settled, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if why := r.settle(settled, l, int64(target), verified); why != "" {
		v.wrong("chain %d not whole in time: %s", l.Chain.ChainID().Int64(), why)
	}

	// What a node has left out is published when the verifier has found it: later than newer events of its escrow.
	r.messages(l.Chain.ChainID().Int64(), truth, !omits, v)

	return r.tables(ctx, l, truth, v)
}

// doubtful reports whether a message may have come twice: an instance was killed or cut off after it had
// sent the message and before it had noted that, or had to stop before it learnt that
// the message was stored.
func (r *run) doubtful() bool {
	outage := func(k kind) bool { return k.outage }
	stops := func(k kind) bool { return k.stops }
	doubt := func(k kind) bool { return k.doubt }

	return r.lost() > 0 || r.plan.some(doubt) || r.plan.some(outage) && r.plan.some(stops)
}

// epoch is after how many blocks the simulated chain finalises, as Ethereum does.
const epoch = 32

// settle waits until every slot is served, every cursor has passed the target, everything up to a
// block has been verified, and nothing waits to be published. When ctx ends first, it says what is
// missing. The chain goes on slowly: nodes without a new block for minutes would count as dead.
func (r *run) settle(ctx context.Context, l *lab.Lab, target, verified int64) string {
	chain := l.Chain.ChainID().Int64()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	block := time.NewTicker(20 * time.Second)
	defer block.Stop()
	why := ""
	for {
		f, err := fleet.Read(ctx, r.lab.DB, chain)
		var orphans, pasts int
		if err == nil {
			err = r.lab.DB.QueryRow(ctx, `select (select count(*) from processed_events where chain_id = $1 and state = 'orphaned'),
				(select count(*) from factories where chain_id = $1 and past_block is not null)`, chain).Scan(&orphans, &pasts)
		}

		switch {
		case err != nil:
			if ctx.Err() == nil || why == "" {
				why = err.Error()
			}
		case f.Slots.Unserved > 0:
			why = fmt.Sprintf("%d slots unserved", f.Slots.Unserved)
		case f.Slots.Adopted > 0:
			why = fmt.Sprintf("%d slots adopted", f.Slots.Adopted)
		case !f.Leader.Valid:
			why = "no leader"
		case f.Chain.LowestCursor <= target || f.Chain.FactoryCursor <= target:
			why = fmt.Sprintf("cursors %d and %d, target %d", f.Chain.LowestCursor, f.Chain.FactoryCursor, target)
		case f.Chain.Verified < verified:
			why = fmt.Sprintf("verified %d of %d", f.Chain.Verified, verified)
		case f.Outbox.Messages > 0:
			why = fmt.Sprintf("%d messages in the outbox", f.Outbox.Messages)
		case f.Late.Escrows > 0:
			why = fmt.Sprintf("%d late escrows", f.Late.Escrows)
		case pasts > 0:
			why = "the past of a factory is not read"
		case orphans > 0:
			why = fmt.Sprintf("%d orphans", orphans)
		default:
			return ""
		}

		select {
		case <-ctx.Done():
			return why
		case <-block.C:
			if err := l.Chain.Mine(ctx, 1); err != nil && ctx.Err() == nil {
				return err.Error()
			}
		case <-ticker.C:
		}
	}
}
