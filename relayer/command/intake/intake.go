// Package intake takes commands in: from a Pub/Sub subscription and over HTTP. It verifies each,
// and stores it together with its claim on the escrow in one transaction, before anybody is told
// that it was taken.
//
//	bytes ─► Split ─► Parse ─► chain, sender ─► signature ─► policy ─► factory ─► T0: claim, row ─► answer
//
// The signature is the authority, whatever the transport. A command with a
// signer that the policy knows is stored whatever comes of it, so that it gets the same answer however
// often it is sent. What others send is answered and leaves no trace.
package intake

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

// Config of an Intake. DB, ChainID, Factories and Policy are required.
type Config struct {
	DB        *pgxpool.Pool
	ChainID   int64
	Factories *registry.Followed // those of the chain; the intake refreshes it
	Policy    *Policy
	Log       *slog.Logger
	Metrics   *Metrics // nil: nobody reads them
}

// Metrics of what comes in.
type Metrics struct {
	taken *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{taken: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "relayer_commands_taken_total", Help: "Commands that came in, by what became of them at once.",
	}, []string{"outcome"})}
	for _, o := range []string{"accepted", "known", command.CodeMalformed, command.CodeTooLarge, command.CodeForeign,
		command.CodeSignature, command.CodeNotAllowed, command.CodeTooMany, command.CodeExpired,
		command.CodeConflict} {
		m.taken.WithLabelValues(o)
	}

	return m
}

// Intake takes commands. Take may be called concurrently; Run must run meanwhile.
type Intake struct {
	cfg   Config
	store *store
	queue chan *batch
}

// New starts nothing.
func New(cfg Config) *Intake {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	return &Intake{cfg: cfg, store: &store{db: cfg.DB, chainID: cfg.ChainID, policy: cfg.Policy,
		room: map[common.Address]room{}}, queue: make(chan *batch)}
}

// candidate is a command on its way into the database.
type candidate struct {
	signed    *command.Signed
	id        string
	requester common.Address
	refusal   string // of the policy; empty: allowed
	raw       json.RawMessage
	topic     bool // its answers, also of what was known, go to the topic of replies

	verdict *Verdict // set by the store
}

// Verdict is what became of one command at once.
type Verdict struct {
	Answer command.Answer
	Known  bool // it was stored before this time
	Whole  bool // it is about the message, which could not be taken apart into commands
}

// Take verifies and stores the commands of one message, each on its own, and returns a verdict for
// each. It returns when all are committed; an error means that it is unknown what is stored, and
// that the message should be taken again. topic: every answer, also to what is refused or known,
// goes to the topic of replies, since the message came from one.
func (i *Intake) Take(ctx context.Context, body []byte, topic bool) ([]Verdict, error) {
	raws, err := command.Split(body)
	if err != nil {
		a := command.Answer{State: command.Refused, Code: command.CodeMalformed, Detail: err.Error()}
		if a.Problems, _ = errors.AsType[command.Problems](err); a.Problems == nil {
			a.Code = command.CodeTooLarge
		}

		i.count(Verdict{Answer: a})

		return []Verdict{{Answer: a, Whole: true}}, i.refuse(ctx, topic, a)
	}

	verdicts := make([]Verdict, len(raws))
	var candidates []*candidate
	var refused []command.Answer
	for n, raw := range raws {
		c, a, err := i.verify(ctx, raw)
		if err != nil {
			return nil, err
		}

		if c == nil {
			verdicts[n] = Verdict{Answer: a}
			refused = append(refused, a)
			i.count(verdicts[n])

			continue
		}

		c.topic, c.verdict = topic, &verdicts[n]
		candidates = append(candidates, c)
	}

	if len(candidates) > 0 {
		if err := i.commit(ctx, candidates); err != nil {
			return nil, err
		}

		for _, c := range candidates {
			i.count(*c.verdict)
		}
	}

	if err := i.refuse(ctx, topic, refused...); err != nil {
		return nil, err
	}

	return verdicts, nil
}

func (i *Intake) count(v Verdict) {
	outcome := "accepted"
	switch {
	case v.Known:
		outcome = "known"
	case v.Answer.State == command.Refused || v.Answer.State == command.Expired:
		outcome = v.Answer.Code
	}

	i.cfg.Metrics.taken.WithLabelValues(outcome).Inc()
}

// refuse answers on the topic, if the message came from one, what is otherwise left out.
func (i *Intake) refuse(ctx context.Context, topic bool, answers ...command.Answer) error {
	if !topic || len(answers) == 0 {
		return nil
	}

	return i.store.refuse(ctx, answers)
}

// verify does what comes before a command is stored. Without a candidate the message is refused with an
// answer of revision 0: without a signature that the policy knows it says nothing of the command.
// The database is asked for known requesters alone.
func (i *Intake) verify(ctx context.Context, raw json.RawMessage) (*candidate, command.Answer, error) {
	refused := command.Answer{State: command.Refused}
	refuse := func(code, detail string) (*candidate, command.Answer, error) {
		refused.Code, refused.Detail = code, detail
		return nil, refused, nil
	}
	signed, err := command.Parse(raw)
	if err != nil {
		refused.Problems, _ = errors.AsType[command.Problems](err)
		return refuse(command.CodeMalformed, "malformed command")
	}

	id := signed.ID().Hex()
	refused.CommandID, refused.Kind, refused.Reference, refused.ReplyTo = id, signed.Kind, signed.Reference, signed.ReplyTo

	switch {
	case signed.ChainID != uint64(i.cfg.ChainID):
		return refuse(command.CodeForeign, fmt.Sprintf("this relayer serves chain %d", i.cfg.ChainID))
	case !i.cfg.Policy.senders[signed.Sender]:
		return refuse(command.CodeForeign, fmt.Sprintf("this relayer does not act for %s", signed.Sender))
	}

	requester, err := signed.Requester()
	if err != nil {
		return refuse(command.CodeSignature, err.Error())
	}

	refusal := i.cfg.Policy.Refuses(requester, &signed.Command)
	if !i.cfg.Policy.knows(requester) {
		return refuse(command.CodeNotAllowed, refusal)
	}

	follows, err := i.follows(ctx, signed.Factory)
	if err == nil && !follows {
		return refuse(command.CodeForeign, fmt.Sprintf("this relayer follows no factory %s on chain %d", signed.Factory,
			i.cfg.ChainID))
	}

	var message bytes.Buffer // without its blanks, of which a message may have 256 KiB
	_ = json.Compact(&message, raw)

	return &candidate{signed: signed, id: id, requester: requester, refusal: refusal, raw: message.Bytes()},
		command.Answer{}, err
}

// follows reports whether the chain's fleet follows a factory. One that was added since the list was read is found
// by reading it again.
func (i *Intake) follows(ctx context.Context, factory common.Address) (bool, error) {
	if slices.Contains(i.cfg.Factories.Addresses(), factory) {
		return true, nil
	}

	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	err := i.cfg.Factories.Refresh(ctx, i.cfg.DB, i.cfg.ChainID)

	return slices.Contains(i.cfg.Factories.Addresses(), factory), err
}

// batch is the commands of one message on their way to Run.
type batch struct {
	candidates []*candidate
	done       chan error // capacity 1
}

// A request takes takeTimeout at most, but in tests. Storing a batch takes storeTimeout at most, and finishWithin
// at most once Run is to end.
var takeTimeout, storeTimeout = 20 * time.Second, 15 * time.Second

const finishWithin = 2 * time.Second

// maxBatch is how many commands one transaction stores at most.
const maxBatch = 500

// commit hands candidates to Run and waits.
func (i *Intake) commit(ctx context.Context, candidates []*candidate) error {
	b := &batch{candidates: candidates, done: make(chan error, 1)}
	select {
	case i.queue <- b:
	case <-ctx.Done():
		return ctx.Err()
	}

	select {
	case err := <-b.done:
		return err
	case <-ctx.Done(): // it may be stored all the same: taken again, it is known
		return ctx.Err()
	}
}

// Run stores what Take hands over, as much as there is in one transaction, until ctx ends.
func (i *Intake) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case first := <-i.queue:
			i.storeBatch(ctx, first)
		}
	}
}

func (i *Intake) storeBatch(ctx context.Context, first *batch) {
	batches, n := []*batch{first}, len(first.candidates)
	for n < maxBatch {
		select {
		case b := <-i.queue:
			batches, n = append(batches, b), n+len(b.candidates)
			continue
		default:
		}

		break
	}

	all := make([]*candidate, 0, n)
	for _, b := range batches {
		all = append(all, b.candidates...)
	}

	// What was begun is finished: a caller that waits has another ctx. A silent database must
	// not hold up a stop: what it lacks comes again.
	storing, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(finishWithin, cancel) })()
	err := i.store.accept(storing, all)
	for _, b := range batches {
		b.done <- err
	}
}
