package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
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
	if err := r.judgeChain(ctx, side{r.chain, r.lab.Contracts}, omits, v); err != nil {
		return nil, err
	}

	if r.second != nil {
		if err := r.judgeChain(ctx, r.second.side, false, v); err != nil {
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
func (r *run) judgeChain(ctx context.Context, s side, omits bool, v *Verdict) error {
	// Enough more blocks that the cursors of all watches pass what a reorganisation has replaced.
	blocks, patience, verified := 2*r.plan.Confirmations+10, settleTimeout, int64(0)
	head, err := lab.Head(ctx, s.chain)
	if omits {
		blocks, patience, verified = blocks+2*epoch, patience+suspectTimeout, int64(head)
	}

	if err = errors.Join(err, s.chain.Mine(ctx, blocks)); err != nil {
		return err
	}

	if head, err = lab.Head(ctx, s.chain); err != nil {
		return err
	}

	target := head - uint64(r.plan.Confirmations)
	truth, err := testchain.ReadTruth(ctx, s.chain.HTTP(), s.contracts.Block, target, s.contracts.Factory,
		s.contracts.Legacy)
	if err != nil {
		return err
	}

	settled, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if why := r.settle(settled, s, int64(target), verified); why != "" {
		v.wrong("chain %d not whole in time: %s", s.id(), why)
	}

	// What a node has left out is published when the verifier has found it: later than newer events of its escrow.
	if err := r.messages(s.id(), truth, !omits, v); err != nil {
		return err
	}

	if err := r.tables(ctx, s, truth, v); err != nil {
		return err
	}

	return r.states(ctx, s, truth, v)
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
func (r *run) settle(ctx context.Context, s side, target, verified int64) string {
	chain := s.id()
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
			if err := s.chain.Mine(ctx, 1); err != nil && ctx.Err() == nil {
				return err.Error()
			}
		case <-ticker.C:
		}
	}
}

// messages checks that a consumer that keeps a set of the two topics, by event_id, ends with exactly
// what the chain has, and that nothing was published or retracted twice without a fault that explains
// it.
func (r *run) messages(chain int64, truth *testchain.Truth, order bool, v *Verdict) error {
	received, retracted := r.published(chain, lab.Topic), r.published(chain, lab.Retractions)
	audit := lab.Compare(truth, received, retracted)
	first, wrong := replaysFollow(r.tap.Messages())
	v.Wrong = append(v.Wrong, wrong...)
	stored, err := deliveries(ofChain(chain, first))
	if err != nil {
		return err
	}

	events, err := deliveries(received)
	if err != nil {
		return err
	}

	retractions, err := deliveries(retracted)
	if err != nil {
		return err
	}

	v.Events, v.Messages = v.Events+audit.Emitted, v.Messages+len(events)
	v.Wrong = append(v.Wrong, lacks(audit, order)...)
	v.Wrong = append(v.Wrong, identities(stored)...)
	r.repetitions(events, retractions, v)

	return nil
}

// ofChain are the messages about events of a chain: what answers commands has no event_id.
func ofChain(chain int64, messages []testpubsub.Message) []testpubsub.Message {
	return slices.DeleteFunc(slices.Clone(messages), func(m testpubsub.Message) bool {
		return m.Attributes[message.AttrChainID] != strconv.FormatInt(chain, 10) || m.Attributes[message.AttrEventID] == ""
	})
}

// published are a chain's messages of a topic, without replays.
func (r *run) published(chain int64, topic string) []testpubsub.Message {
	return slices.DeleteFunc(ofChain(chain, r.tap.Messages()), func(m testpubsub.Message) bool {
		return m.Topic != testpubsub.TopicName(lab.Project, topic) || m.Attributes[message.AttrReplay] == "true"
	})
}

// repetitions checks that each id was published once, and retracted at most once, and only if a
// reorganisation went deeper than the confirmations. Such a one may repeat what it removes (G2 of relayer/README.md).
func (r *run) repetitions(events, retractions []delivery, v *Verdict) {
	doubtful := r.doubtful()
	for what, list := range map[string][]delivery{"published": events, "retracted": retractions} {
		n := map[string]int{}
		for _, t := range list {
			if n[t.id]++; n[t.id] == 2 && !doubtful && (what != "published" || !r.plan.Deep()) {
				v.wrong("%s twice, without a fault that explains it: %s, %s", what, t.id, t.content)
			}
		}
	}

	for _, e := range slices.Concat(events, retractions) {
		if e.id != e.at && !r.plan.Deep() {
			v.wrong("an event_id that is not {tx_hash}:{log_index}, though no reorganisation went deeper than the confirmations: %s", e.id)
		}
	}

	for topic, list := range map[string][]delivery{lab.Topic: events, lab.Retractions: retractions} {
		for _, d := range list {
			if d.retracted != (topic == lab.Retractions) {
				v.wrong("on the topic %s: %+v", topic, d)
			}
		}
	}

	if len(retractions) > 0 && !r.plan.Deep() {
		v.wrong("%d retractions, though no reorganisation went deeper than the confirmations", len(retractions))
	}
}
