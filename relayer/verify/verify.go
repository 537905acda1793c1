// Package verify reads ranges past finality again, from two endpoints where there are two, and
// reconciles what is true with what is stored. One endpoint is too few: only the instance that owned
// the slot knows from where a range was read the first time.
//
// Where both readings and the database say the same of a block, that counts. Elsewhere the block's
// receipts decide, proved against its hash: exactly which events there are. Until
// they do, verified_block, the completeness watermark of the chain, waits in front of the block. Of a chain
// with receipts that prove nothing, both readings have to say the same. The factory's nonce tells how many
// deployments there are, also where both endpoints have lost their old logs.
//
// What is found missing is stored and published (late, and so out of turn for its escrow) and raises an
// alert. What is stored otherwise than on the chain, or proved absent, is retracted. What is
// stored and merely absent from both readings of a chain without proof raises an alert and is left
// alone, for a person to judge: nodes leave logs out. What a followed contract does and the ABI does not know
// raises one too: a log under one of our topics that does not decode, a contract that a factory creates and no
// event announces. Without a usable second endpoint, what is proved to
// be missing is stored; only the watermark waits. Nothing is changed by what is of another branch than the
// one that is stored: to take that back is the watches' affair. What an escrow emitted before its deployment
// is missing only once its owner has admitted it; what of it is below the watermark then was read once.
// `escrow-relayer audit` compares any range without changing anything.
package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// Source is the chain. ReadOther reads the blocks of a batch a second time, from another endpoint than that of the
// batch (By; nil: from any), and fails while none can be used where several are configured: what only one has said
// stays unverified.
type Source interface {
	View() chain.View
	ReadOther(ctx context.Context, b chain.Batch) iter.Seq2[chain.Batch, error]
	// Prove returns the header of the chain's block at a height, and its logs, proved. chain.ErrUnproved: the
	// chain's blocks cannot be proved.
	Prove(ctx context.Context, n uint64, f *chain.Filter) (chain.Header, []types.Log, error)
	Branch(ctx context.Context, tip chain.Header, numbers ...uint64) ([]chain.Header, error)
	// Nonces returns the nonce of an account at a block, by endpoint: of those that have its state.
	Nonces(ctx context.Context, account common.Address, block uint64) (map[string]uint64, error)
}

// Filters says how logs are asked for: by topics, or of contracts that are named.
type Filters interface {
	// Most is the number of contracts up to which naming them costs less than reading what others emit
	// under the same topics; negative: by topics, however few they are.
	Most() int
	// Learn notes what was read, and how many logs were others'.
	Learn(b *chain.Batch, foreign int)
	// Refused notes why a reading by a filter failed. It reports whether to read again at once, by another.
	Refused(ctx context.Context, f *chain.Filter, err error, log *slog.Logger) bool
}

// Config of a Verifier. All fields are required.
type Config struct {
	Source    Source
	Filters   Filters
	Ledger    *ledger.Ledger
	ABI       *contract.ABI
	Factories *registry.Followed
	Every     time.Duration // pause between two readings; up to tenfold while there are only a few blocks to read
	Log       *slog.Logger
	Metrics   *Metrics
}

// Metrics of the verifier.
type Metrics struct {
	missing, extra prometheus.Counter
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)

	return &Metrics{
		missing: f.NewCounter(prometheus.CounterOpts{Name: "relayer_verifier_missing_total",
			Help: "Events that the first reading missed and the verifier stored."}),
		extra: f.NewCounter(prometheus.CounterOpts{Name: "relayer_verifier_extra_total",
			Help: "Stored events that the chain does not have, or has otherwise."}),
	}
}

// Verifier compares.
type Verifier struct {
	cfg    Config
	waited int                      // looks in a row at which the reading could wait
	counts map[common.Address]Count // by factory
	refute func(ctx context.Context, by *endpoint.Node, said []types.Log, h chain.Header, proved []types.Log)
}

// The second reading waits, for so many looks at most, until there are enough blocks to be worth its requests,
// where finality moves with every block; and while the first reading is as many blocks behind: beside the second one, a
// backfill stores a quarter less.
const enoughBlocks, mostWaits = 32, 10

// New returns a Verifier.
func New(cfg Config) *Verifier {
	return &Verifier{cfg: cfg, counts: map[common.Address]Count{}, refute: chain.Refute}
}

// Counts is what a factory's nonce has said of its deployments. It is for callers of Compare.
func (v *Verifier) Counts(factory common.Address) Count { return cmp.Or(v.counts[factory], NotAsked) }

// Difference is an event on which chain and database differ.
type Difference struct {
	Kind   string         `json:"kind"`
	Chain  contract.Event `json:"chain,omitzero"`   // what the chain has
	Stored contract.Event `json:"stored,omitzero"`  // what the database has
	Why    string         `json:"reason,omitempty"` // of Differing
}

// Kinds of differences.
const (
	Missing = "missing" // in the database
	Extra   = "extra"   // in the database, and in neither reading of a chain that proves nothing
	// the database has another block, or another event in the place. Chain is zero if the place is known to be
	// empty on the chain
	Differing = "differing"
	Pruned    = "pruned" // missing, since RETENTION has removed the escrow's events: no fault
	// a registered escrow or a followed factory has emitted a log under one of its topics that the ABI does not decode
	Undecodable = "undecodable"
	Unannounced = "unannounced" // a factory has created a contract, and the ABI knows no event that announces it
)

// ID of the event; "-" of what is none.
func (d *Difference) ID() string {
	if d.Kind == Unannounced {
		return "-"
	}

	return d.event().ID()
}

func (d *Difference) event() *contract.Event {
	if d.Kind == Extra || d.Kind == Differing {
		return &d.Stored
	}

	return &d.Chain
}

// Run verifies until ctx ends, under the leader's epoch, and returns nil. Its reading can wait:
// what is read for the first time goes before it where an endpoint limits its rate.
func (v *Verifier) Run(ctx context.Context, epoch int64) error {
	ctx = chain.Later(ctx)

	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}

		err := v.once(ctx, epoch)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ledger.ErrMoved):
			// A rollback moves the watermark too; whether the term is over shows in the next turn of the factory watch.
			v.cfg.Log.DebugContext(ctx, "verified block moved", slog.Any("err", err))
		case err != nil:
			v.cfg.Log.WarnContext(ctx, "range not verified, trying again", slog.Any("err", err))
		}

		timer.Reset(v.cfg.Every)
	}
}

func (v *Verifier) once(ctx context.Context, epoch int64) error {
	span, err := v.cfg.Ledger.Verifiable(ctx)
	if err != nil {
		return err
	}

	final := int64(v.cfg.Source.View().Final)
	to := min(span.To, final)
	if to < span.From {
		return nil
	}

	few, behind := to-span.From+1 < enoughBlocks, final-span.To >= enoughBlocks
	if v.waited++; (few || behind) && v.waited < mostWaits {
		return nil
	}

	v.waited = 0

	from := span.From
	for p, err := range v.parts(ctx, from, to) {
		switch {
		case err == nil:
			err = v.settle(ctx, epoch, span, p.last, p.found)
			span.From = p.last + 1
		case p.alone != nil && ctx.Err() == nil:
			err = errors.Join(err, v.supply(ctx, epoch, span, p.alone))
		}

		if err != nil {
			return fmt.Errorf("read blocks %d to %d again: %w", from, to, err)
		}
	}

	return nil
}

// supply stores what a batch of one endpoint has and the database lacks, where it is proved. What is
// before the batch is verified, and no more.
func (v *Verifier) supply(ctx context.Context, epoch int64, span ledger.Verifiable, batch *chain.Batch) error {
	c := &claims{v: v, filter: batch.Filter, factories: v.factories(), proved: map[uint64]chain.Header{}}
	defer c.blame(ctx)
	found, err := c.compare(ctx, batch)
	if err != nil {
		return err
	}

	found = slices.DeleteFunc(found, func(d Difference) bool {
		return d.Kind != Missing || !c.proved[d.Chain.BlockNumber].Proved
	})
	if len(found) == 0 {
		return nil
	}

	return v.settle(ctx, epoch, span, span.From-1, found)
}

// settle makes the database what the chain is by the differences, and notes that everything
// up to last is verified.
func (v *Verifier) settle(ctx context.Context, epoch int64, span ledger.Verifiable, last int64,
	found []Difference) error {
	if err := v.onBranch(ctx, span.Newest, found); err != nil {
		return err
	}

	var missing, wrong []contract.Event
	var odd []ledger.Finding
	extra, missed := 0, 0
	for _, d := range found {
		log := []any{slog.String("event", d.ID()), slog.String("kind", d.Kind), slog.String("reason", d.Why)}
		switch d.Kind {
		case Missing:
			missing = append(missing, d.Chain)
			if int64(d.Chain.BlockNumber) <= span.Again {
				v.cfg.Log.InfoContext(ctx, "an event that the ABI lacked is stored and published now", log[:2]...)
				continue
			}

			missed++
			v.cfg.Log.ErrorContext(ctx, "the first reading missed an event: it is stored and published now", log[:2]...)
		case Differing:
			wrong = append(wrong, d.Stored)
			if d.Chain.Name != "" {
				missing, missed = append(missing, d.Chain), missed+1
			}

			extra++
			v.cfg.Metrics.extra.Inc()
			v.cfg.Log.ErrorContext(ctx,
				"the database has an event that the chain has otherwise: it is retracted, and the chain's is published", log...)
		case Extra:
			extra++
			v.cfg.Metrics.extra.Inc()
			v.cfg.Log.ErrorContext(ctx, "the database has an event that the chain does not have", log...)
		case Undecodable, Unannounced:
			odd = note(odd, &d)
			v.cfg.Log.ErrorContext(ctx, "a followed contract does what the ABI does not know",
				append(log, slog.String("contract", d.Chain.Emitter.Hex()))...)
		}
	}

	if extra > 0 {
		odd = append(odd, ledger.Finding{Kind: ledger.ExtraEvent, Block: last, Events: extra})
	}

	if _, err := v.cfg.Ledger.Repair(ctx, epoch, span, last, missing, wrong, odd...); err != nil {
		return err
	}

	v.cfg.Metrics.missing.Add(float64(missed))

	return nil
}

// note adds a difference to the findings, of which there is one of each kind.
func note(list []ledger.Finding, d *Difference) []ledger.Finding {
	kind := ledger.UndecodableEvent
	if d.Kind == Unannounced {
		kind = ledger.UnannouncedContract
	}

	i := slices.IndexFunc(list, func(f ledger.Finding) bool { return f.Kind == kind })
	if i < 0 {
		i, list = len(list), append(list, ledger.Finding{Kind: kind})
	}

	list[i].Events++
	list[i].Block = int64(d.Chain.BlockNumber)
	list[i].Detail = fmt.Sprintf("contract %s in block %d: %s", d.Chain.Emitter, d.Chain.BlockNumber, d.Why)

	return list
}

// onBranch makes sure that differences are of the branch that is stored, up to its newest block: one answer
// of an endpoint has that block and theirs. Behind one URL may be machines on two branches, and what
// another branch has otherwise is neither missing nor wrong: if the chain has left the stored one, the
// watches find out and roll it back as a whole. An event in a block outside the chain is Differing.
func (v *Verifier) onBranch(ctx context.Context, newest ledger.Block, found []Difference) error {
	hashes := map[uint64]common.Hash{}
	for i := range found {
		hashes[found[i].event().BlockNumber] = common.Hash{}
	}

	numbers := slices.Sorted(maps.Keys(hashes))
	tip := chain.Header{Number: uint64(newest.Number), Hash: newest.Hash}
	headers, err := v.cfg.Source.Branch(ctx, tip, numbers...)
	if err != nil {
		return fmt.Errorf("is what differs of the branch that is stored: %w", err)
	}

	for i, n := range numbers {
		hashes[n] = headers[i].Hash
	}

	for i := range found {
		d, hash := &found[i], hashes[found[i].event().BlockNumber]
		switch {
		case d.Chain.Name != "" && d.Chain.BlockHash != hash:
			return fmt.Errorf("%w: event %s is in block %s, now block %s is there", chain.ErrDisagree, d.Chain.ID(),
				d.Chain.BlockHash, hash)
		case d.Kind == Extra && d.Stored.BlockHash != hash:
			d.Kind, d.Why = Differing, otherBlock(hash, d.Stored.BlockHash)
		}
	}

	return nil
}

// Compare reads blocks from..to from two endpoints and calls each with the differences of every
// part of the range, in order. What the second one does not give it is asked for until that is for good.
func (v *Verifier) Compare(ctx context.Context, from, to int64,
	each func(first, last int64, found []Difference) error) error {
	ctx = chain.Later(ctx)
	for from <= to {
		for p, err := range v.parts(ctx, from, to) {
			switch {
			case err == nil:
				from, err = p.last+1, each(p.first, p.last, p.found)
			case p.alone != nil && (errors.Is(err, chain.ErrNoHistory) || errors.Is(err, chain.ErrAddressRequired)):
				v.cfg.Log.WarnContext(ctx, "range not compared, trying again", slog.Any("err", err))
				err = endpoint.Wait(ctx, min(v.cfg.Every, 5*time.Second))
			}

			if err != nil {
				return fmt.Errorf("read blocks %d to %d again: %w", from, to, err)
			}
		}
	}

	return nil
}

// part is blocks that were read a second time, and what differs in them.
type part struct {
	first, last int64
	found       []Difference
	alone       *chain.Batch // with an error: one endpoint has given it, and no second one could be asked
}

// parts reads blocks from..to from two endpoints, part by part in their order, and ends with the
// first error.
func (v *Verifier) parts(ctx context.Context, from, to int64) iter.Seq2[part, error] {
	return func(yield func(part, error) bool) {
		var deployed []common.Address // found in what was read, and missing in the database
		for from <= to {
			factories := v.factories()
			filter, last, err := v.filter(ctx, from, to, append(factories.Addresses(), deployed...))
			if err != nil {
				yield(part{}, err)
				return
			}

			again := chain.Batch{From: uint64(from), To: uint64(last), Filter: filter}
			for batch, err := range v.cfg.Source.ReadOther(ctx, again) {
				var p part
				var unnamed []common.Address
				if err == nil {
					p, unnamed, err = v.part(ctx, &batch, filter, factories)
				}

				if len(unnamed) > 0 { // the rest is read again, with them
					deployed = append(deployed, unnamed...)
					break
				}

				if err != nil && p.alone == nil && v.cfg.Filters.Refused(ctx, filter, err, v.cfg.Log) {
					break
				}

				if !yield(p, err) || err != nil {
					return
				}

				from = p.last + 1
			}
		}
	}
}

// part reads a batch from a second endpoint and compares what is true of both with the database, unless
// there are deployments of contracts outside the filter: then it returns those.
func (v *Verifier) part(ctx context.Context, batch *chain.Batch, filter *chain.Filter,
	factories *registry.Followed) (p part, unnamed []common.Address, err error) {
	c := &claims{v: v, filter: filter, factories: factories, proved: map[uint64]chain.Header{}}
	defer c.blame(ctx)
	if err := c.second(ctx, batch); err != nil {
		return part{alone: batch}, nil, err
	}

	if unnamed, err = c.settle(ctx, batch); err != nil || len(unnamed) > 0 {
		return p, unnamed, err
	}

	found, err := c.compare(ctx, batch)

	return part{first: int64(batch.From), last: int64(batch.To), found: found}, nil, err
}

// atOnce is for how many blocks contracts are named at once: with more blocks, more of them have
// ended before most of the range.
const atOnce = 10_000

// factories are those of this moment. What is read with them is also judged by them.
func (v *Verifier) factories() *registry.Followed {
	return registry.NewFollowed(v.cfg.Factories.List()...)
}

// filter is how the logs of blocks from..last are asked for: of some contracts and the escrows that may
// have emitted something, where there are so few of them that naming them costs less than topics.
func (v *Verifier) filter(ctx context.Context, from, to int64, others []common.Address) (f *chain.Filter,
	last int64, err error) {
	f = &chain.Filter{Topics: v.cfg.ABI.Topics()}
	most := v.cfg.Filters.Most()
	if most < 0 {
		return f, to, nil
	}

	last = min(to, from+atOnce-1)
	list, err := v.cfg.Ledger.Emitters(ctx, from, last, most+1)
	if err == nil && len(list) <= most {
		f.Addresses = append(list, others...)
	}

	return f, last, err
}

// differences returns how the events of a batch differ from what is stored.
func (c *claims) differences(ctx context.Context, batch *chain.Batch, events []contract.Event,
	odd []*types.Log) ([]Difference, error) {
	v := c.v
	// The deployments of this very batch may be missing too: their escrows count as known.
	known := map[common.Address]bool{}
	var unknown []common.Address
	for i := range events {
		if e := &events[i]; e.Name == contract.Deployed {
			known[e.Escrow] = true
		} else if !known[e.Emitter] {
			unknown = append(unknown, e.Emitter)
		}
	}

	for _, l := range odd {
		unknown = append(unknown, l.Address)
	}

	registered, err := v.cfg.Ledger.Registered(ctx, int64(batch.To), unknown)
	if err != nil {
		return nil, err
	}

	stored, err := v.cfg.Ledger.Stored(ctx, int64(batch.From), int64(batch.To))
	if err != nil {
		return nil, err
	}

	ours := func(e *contract.Event) bool { return known[e.Escrow] || registered[e.Escrow] }
	foreign := 0
	for i := range events {
		if !ours(&events[i]) {
			foreign++
		} else if err := events[i].Complete(); err != nil {
			return nil, err
		}
	}

	v.cfg.Filters.Learn(batch, foreign)
	hashes := blockHashes(batch.Logs)
	for n, h := range c.proved {
		hashes[n] = h.Hash
	}

	found := slices.DeleteFunc(differences(events, c.asked(stored), ours, hashes), c.unknowable)
	for i := range found {
		if d := &found[i]; d.Kind == Extra && c.proved[d.Stored.BlockNumber].Proved {
			d.Kind, d.Why = Differing, fmt.Sprintf("the receipts of block %s prove that it is not there", d.Stored.BlockHash)
		}
	}

	for _, l := range odd {
		if known[l.Address] || registered[l.Address] || c.factories.Has(l.Address, l.BlockNumber) &&
			slices.Contains(v.cfg.ABI.FactoryTopics(), l.Topics[0]) {
			found = append(found, undecodable(l))
		}
	}

	return found, v.prune(ctx, found)
}

// unknowable reports whether nothing tells that a difference is one: an event of a layout that the ABI lacks is in no
// reading, and the time of a block that cannot be proved is one node's word.
func (c *claims) unknowable(d Difference) bool {
	h, tried := c.proved[d.event().BlockNumber]
	timed := d.Stored
	timed.BlockTime = d.Chain.BlockTime

	return d.Chain.Name == "" && !c.v.cfg.ABI.Knows(&d.Stored) || tried && !h.Proved && differ(&d.Chain, &timed) == ""
}

// undecodable is the difference that a log makes which the ABI does not decode.
func undecodable(l *types.Log) Difference {
	return Difference{Kind: Undecodable,
		Chain: contract.Event{Escrow: l.Address, Emitter: l.Address, BlockNumber: l.BlockNumber, BlockHash: l.BlockHash,
			TxHash: l.TxHash, LogIndex: l.Index},
		Why: fmt.Sprintf("log %d of transaction %s under topic %s, with %d indexed arguments and %d bytes of data, is not as "+
			"in the ABI", l.Index, l.TxHash, l.Topics[0], len(l.Topics)-1, len(l.Data))}
}

// differences compares events, place by place.
func differences(there, stored []contract.Event, ours func(*contract.Event) bool,
	hashes map[uint64]common.Hash) (found []Difference) {
	at := make(map[contract.Place]*contract.Event, len(stored))
	for i := range stored {
		at[stored[i].Place()] = &stored[i]
	}

	for i := range there {
		e := &there[i]
		have, ok := at[e.Place()]
		if !ok {
			if ours(e) { // else a contract of somebody else with the same event
				found = append(found, Difference{Kind: Missing, Chain: *e})
			}

			continue
		}

		delete(at, e.Place())
		if why := differ(e, have); why != "" {
			found = append(found, Difference{Kind: Differing, Chain: *e, Stored: *have, Why: why})
		}
	}

	for i := range stored {
		e := &stored[i]
		if _, left := at[e.Place()]; !left {
			continue
		}

		if hash, ok := hashes[e.BlockNumber]; ok && hash != e.BlockHash {
			found = append(found, Difference{Kind: Differing, Stored: *e, Why: otherBlock(hash, e.BlockHash)})
		} else {
			found = append(found, Difference{Kind: Extra, Stored: *e})
		}
	}

	return found
}

// blockHashes are the hashes of the blocks that logs are in.
func blockHashes(logs []types.Log) map[uint64]common.Hash {
	hashes := make(map[uint64]common.Hash, len(logs))
	for i := range logs {
		hashes[logs[i].BlockNumber] = logs[i].BlockHash
	}

	return hashes
}

// prune finds out which missing events are so because RETENTION has removed them.
func (v *Verifier) prune(ctx context.Context, found []Difference) error {
	var escrows []common.Address
	for i := range found {
		if found[i].Kind == Missing {
			escrows = append(escrows, found[i].Chain.Escrow)
		}
	}

	pruned, err := v.cfg.Ledger.Pruned(ctx, escrows)
	for i := range found {
		if d := &found[i]; d.Kind == Missing && pruned[d.Chain.Escrow] {
			d.Kind = Pruned
		}
	}

	return err
}

func differ(there, stored *contract.Event) string {
	switch {
	case there.BlockHash != stored.BlockHash:
		return otherBlock(there.BlockHash, stored.BlockHash)
	case there.BlockNumber != stored.BlockNumber:
		return fmt.Sprintf("block %d, stored %d", there.BlockNumber, stored.BlockNumber)
	case there.TxHash != stored.TxHash:
		return fmt.Sprintf("transaction %s, stored %s", there.TxHash, stored.TxHash)
	case there.Name != stored.Name:
		return fmt.Sprintf("event %s, stored %s", there.Name, stored.Name)
	case there.Emitter != stored.Emitter:
		return fmt.Sprintf("emitter %s, stored %s", there.Emitter, stored.Emitter)
	case string(there.Args) != string(stored.Args):
		return fmt.Sprintf("arguments %s, stored %s", there.Args, stored.Args)
	case there.BlockTime != stored.BlockTime:
		return fmt.Sprintf("block time %d, stored %d", there.BlockTime, stored.BlockTime)
	}

	return ""
}

// otherBlock is the reason where the block is another one.
func otherBlock(there, stored common.Hash) string {
	return fmt.Sprintf("block hash %s, stored %s", there, stored)
}
