package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/ethclient"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// Verdict of the oracle.
type Verdict struct {
	Plan       Plan
	Audit      *lab.Audit
	Second     *lab.Audit // of the second chain, if there is one
	Retracted  int
	Wrong      []string      // everything that must not be
	Seen       []string      // what else is worth telling
	Recovery   time.Duration // from the end of the faults until the fleet was whole
	Logs       string        // folder
	Duplicates int
	Lost       int              // sessions that instances lost
	States     int              // escrows whose record was compared with what they say themselves
	Goroutines int              // the most that one instance had at rest
	Commands   *CommandsVerdict // nil: there were none
}

// Clean says that nothing is wrong.
func (v *Verdict) Clean() bool { return len(v.Wrong) == 0 }

func (v *Verdict) String() string {
	s := fmt.Sprintf("seed %d: escrows %d, emitted %d, received %d, duplicates %d, retracted %d, records asked of the chain %d, sessions lost %d, goroutines %d, whole after %s",
		v.Plan.Seed, v.Audit.Escrows, v.Audit.Emitted, v.Audit.Received, v.Duplicates, v.Retracted, v.States, v.Lost,
		v.Goroutines, v.Recovery.Round(time.Millisecond))
	if v.Second != nil {
		s += fmt.Sprintf("; second chain: escrows %d, emitted %d, received %d", v.Second.Escrows, v.Second.Emitted,
			v.Second.Received)
	}

	if v.Commands != nil {
		s += "; " + v.Commands.String()
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
	begun := time.Now()
	if err := r.heal(ctx); err != nil {
		return nil, err
	}

	v := &Verdict{Plan: r.plan}
	if r.way != nil {
		if err := r.way.settle(ctx, v); err != nil {
			return nil, err
		}
	}

	if err := r.judgeFirst(ctx, begun, v); err != nil {
		return nil, err
	}

	if r.second != nil {
		if err := r.judgeSecond(ctx, v); err != nil {
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

// judgeFirst compares the first chain with its relayers' messages and tables, and with what consumers
// make of the messages.
func (r *run) judgeFirst(ctx context.Context, begun time.Time, v *Verdict) error {
	last, err := r.lab.Head(ctx)
	if err != nil {
		return err
	}

	omits := r.plan.Has(NodeOmits) || r.plan.lacksRefunds() // the second reading finds what is missing
	verified := int64(0)
	// Enough more blocks that the cursors of all watches pass what a reorganisation has replaced.
	blocks := 2*r.plan.Confirmations + 10
	if omits {
		blocks += 2 * epoch
		verified = int64(last)
	}

	patience := settleTimeout
	if omits {
		patience += suspectTimeout
	}

	settled, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	first := side{r.chain, r.lab.Contracts}
	truth, err := r.compare(settled, first, blocks, verified, v, &v.Audit)
	if err != nil {
		return err
	}

	v.Recovery, v.Lost = time.Since(begun), r.lost()
	v.Duplicates = len(v.Audit.Duplicated)
	if a := v.Audit; !r.plan.Deep() && len(a.Unknown) > 0 {
		v.wrong("published below finality, or invented: %v", a.Unknown)
	}

	return r.consumers(settled, truth, v)
}

// judgeSecond compares the second chain with its relayers' messages and tables.
func (r *run) judgeSecond(ctx context.Context, v *Verdict) error {
	settled, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	if _, err := r.compare(settled, r.second.side, 2*r.plan.Confirmations+10, 0, v, &v.Second); err != nil {
		return err
	}

	if a := v.Second; !a.Exact() || len(a.Duplicated) > 0 && !r.doubtful(v.Lost) {
		v.wrong("second chain: %s", a)
	}

	return nil
}

// compare lets a chain go on by some empty blocks and stand still, waits for its relayers, and
// compares messages and tables with what the chain says.
func (r *run) compare(ctx context.Context, s side, blocks int, verified int64, v *Verdict,
	audit **lab.Audit) (*testchain.Truth, error) {
	if err := s.chain.Mine(ctx, blocks); err != nil {
		return nil, err
	}

	head, err := s.head(ctx)
	if err != nil {
		return nil, err
	}

	target := head - uint64(r.plan.Confirmations)
	truth, err := testchain.ReadTruth(ctx, s.chain.HTTP(), s.contracts.Block, target, s.contracts.Factory,
		s.contracts.Legacy)
	if err != nil {
		return nil, err
	}

	if why := r.settle(ctx, s, int64(target), verified); why != "" {
		v.wrong("chain %d not whole in time: %s", s.id(), why)
	}

	*audit = lab.Compare(truth, r.received(s.id(), lab.Topic), nil)
	for range 50 { // a subscriber hears of a message a moment after its acknowledgement
		if len((*audit).Missing) == 0 || !pause(ctx, 100*time.Millisecond) {
			break
		}

		*audit = lab.Compare(truth, r.received(s.id(), lab.Topic), nil)
	}

	if a := *audit; len(a.Missing) > 0 {
		v.wrong("missing: %v", a.Missing)
	}

	if a := *audit; len(a.Malformed) > 0 {
		v.wrong("malformed: %v", a.Malformed)
	}

	ctx = context.WithoutCancel(ctx)
	if err := r.tables(ctx, s, truth, v); err != nil {
		return nil, err
	}

	return truth, r.states(ctx, s, truth, v)
}

// head is the chain's newest block.
func (s side) head(ctx context.Context) (uint64, error) {
	c, err := ethclient.DialContext(ctx, s.chain.HTTP())
	if err != nil {
		return 0, err
	}
	defer c.Close()

	return c.BlockNumber(ctx)
}

// received are the messages of a chain on a topic, as a subscriber got them; as the server stored
// them when the topic was deleted and created again, since no subscription outlives that.
func (r *run) received(chain int64, topic string) []testpubsub.Message {
	all := r.lab.Received.Messages()
	switch {
	case r.plan.Has(TopicGone):
		all = slices.DeleteFunc(slices.Clone(r.tap.Messages()),
			func(m testpubsub.Message) bool { return m.Topic != testpubsub.TopicName(lab.Project, topic) })
	case topic == lab.Retractions:
		all = r.lab.Retracted.Messages()
	}

	id := strconv.FormatInt(chain, 10)

	return slices.DeleteFunc(slices.Clone(all), func(m testpubsub.Message) bool {
		return m.Attributes[message.AttrChainID] != id || m.Attributes[message.AttrReplay] == "true"
	})
}

// doubtful reports whether a message may have come twice: an instance was killed or cut off after it had
// sent the message and before it had deleted it from the outbox, or had to stop before it learnt that
// the message was stored.
func (r *run) doubtful(lost int) bool {
	return lost > 0 || r.plan.Has(inDoubt...) || r.plan.Has(pubsubOutages...) && r.plan.Has(stops...)
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
		case f.Late.Escrows > 0 && verified >= 0: // under traffic there are always some
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

// consumers checks that a consumer that keeps a set of the two topics, by event_id, ends with exactly
// what the chain has, and that nothing was published or retracted twice without a fault that explains
// it.
func (r *run) consumers(ctx context.Context, truth *testchain.Truth, v *Verdict) error {
	want, err := canonical(truth)
	if err != nil {
		return err
	}

	id := r.chain.ChainID().Int64()
	// What a node has left out is published when the verifier has found it: later than newer events of its escrow.
	order, random := !r.plan.Has(NodeOmits) && !r.plan.lacksRefunds(), rand.New(rand.NewPCG(r.plan.Seed, 0x5e7))
	var events, retractions []delivery
	var wrong []string
	for range 50 { // a subscriber hears of a message a moment after its acknowledgement
		events, retractions = r.decoded(id, lab.Topic), r.decoded(id, lab.Retractions)
		if wrong = consume(events, retractions, want, order, random); len(wrong) == 0 || !pause(ctx, 100*time.Millisecond) {
			break
		}
	}

	v.Wrong = append(v.Wrong, wrong...)

	var stored []delivery
	first, wrong := replaysFollow(r.tap.Messages())
	v.Wrong = append(v.Wrong, wrong...)
	for _, m := range first {
		if t, err := decode(m); err == nil && m.Attributes[message.AttrChainID] == strconv.FormatInt(id, 10) {
			stored = append(stored, t)
		}
	}

	v.Wrong = append(v.Wrong, identities(stored)...)
	r.repetitions(events, retractions, v)

	return nil
}

// decoded are the messages of a chain on a topic. Those that are malformed were counted by the audit.
func (r *run) decoded(chain int64, topic string) (list []delivery) {
	for _, m := range r.received(chain, topic) {
		if t, err := decode(m); err == nil {
			list = append(list, t)
		}
	}

	return list
}

// repetitions checks that each id was published once, and retracted at most once, and only if a
// reorganisation went deeper than the confirmations.
func (r *run) repetitions(events, retractions []delivery, v *Verdict) {
	doubtful := r.doubtful(v.Lost)
	count := func(list []delivery, what string) map[string]int {
		n := map[string]int{}
		for _, t := range list {
			if n[t.id]++; n[t.id] == 2 && !doubtful {
				v.wrong("%s twice, without a fault that explains it: %s, %s", what, t.id, t.content)
			}
		}

		return n
	}
	for _, e := range events {
		if !e.plain && !r.plan.Deep() {
			v.wrong("an event_id that is not {tx_hash}:{log_index}, though no reorganisation went deeper than the confirmations: %s", e.id)
		}
	}

	count(events, "published")
	v.Retracted = len(count(retractions, "retracted"))
	if v.Retracted > 0 && !r.plan.Deep() {
		v.wrong("%d events retracted, though no reorganisation went deeper than the confirmations", v.Retracted)
	}
}
