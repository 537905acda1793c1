package reply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
)

// Sender stores messages under an ordering key, all or none: a *pubsub.Client.
type Sender interface {
	Publish(ctx context.Context, topic, key string, messages []pubsub.Message) ([]string, error)
}

// Config of a Publisher. DB, ChainID, Topic, Sender and Metrics are required.
type Config struct {
	DB      *pgxpool.Pool
	ChainID int64
	Topic   string
	Sender  Sender
	Metrics *Metrics
	Log     *slog.Logger
}

// Metrics of the answers on their way.
type Metrics struct {
	published prometheus.Counter
	failures  prometheus.Counter
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)

	return &Metrics{
		published: f.NewCounter(prometheus.CounterOpts{Name: "relayer_replies_published_total",
			Help: "Answers that Pub/Sub has acknowledged."}),
		failures: f.NewCounter(prometheus.CounterOpts{Name: "relayer_reply_failures_total",
			Help: "Requests to publish answers that failed and were tried again."}),
	}
}

// Publisher publishes what is in the table, the answers of one command in their order. One at a
// time works for a chain: the holder of the lock election.Replies.
type Publisher struct {
	cfg Config
}

// NewPublisher checks the configuration and starts nothing.
func NewPublisher(cfg Config) (*Publisher, error) {
	if cfg.DB == nil || cfg.ChainID <= 0 || cfg.Topic == "" || cfg.Sender == nil || cfg.Metrics == nil {
		return nil, errors.New("reply: DB, ChainID, Topic, Sender and Metrics are required")
	}

	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))

	return &Publisher{cfg: cfg}, nil
}

// Bounds of a request: the service takes 1,000 messages and 10 MB. An answer has at most some kilobytes; one
// that is longer than pageBytes is a page alone.
const (
	pageSize   = 500
	pageBytes  = 1 << 20
	atOnce     = 32 // requests: each carries one key
	pollEvery  = 2 * time.Second
	firstPause = 200 * time.Millisecond
	maxPause   = 15 * time.Second
	dbTimeout  = 15 * time.Second
)

type row struct {
	Seq       int64
	CommandID string
	State     string
	Code      string
	ReplyTo   string
	Body      []byte
}

// Run publishes until ctx ends. hint fires when answers may have come. It never gives up: what
// fails is tried again, with growing pauses.
func (p *Publisher) Run(ctx context.Context, hint <-chan struct{}) {
	pause := time.Duration(0)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-hint:
			if pause > 0 {
				continue // after a failure only the time counts
			}
		case <-timer.C:
		}

		err := p.pass(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			p.cfg.Metrics.failures.Inc()
			pause = min(max(2*pause, firstPause), maxPause)
			p.cfg.Log.WarnContext(ctx, "answers not published, retrying", slog.Any("err", err), slog.Duration("in", pause))
			timer.Reset(pause)
		default:
			pause = 0
			timer.Reset(pollEvery)
		}
	}
}

// selectReplies reads the oldest answers after one, as many as fit a page; one at least.
const selectReplies = `
	select seq, command_id, state, code, reply_to, body
	  from (select *, sum(octet_length(body::text)) over (order by seq) - octet_length(body::text) as before
	          from (select seq, command_id, state, code, reply_to, body
	                  from replies
	                 where chain_id = @chain and seq > @after
	                 order by seq
	                 limit @rows) oldest) page
	 where before < @bytes
	 order by seq`

// pass publishes every answer once, page by page. Answers to a command of which one failed in this pass
// are left for the next: those of all others overtake them.
func (p *Publisher) pass(ctx context.Context) error {
	failed := map[string]error{} // by command
	for after := int64(0); ; {
		rows, err := p.read(ctx, after)
		if err != nil {
			return err
		}

		if len(rows) == 0 {
			break
		}

		after = rows[len(rows)-1].Seq
		if err := p.page(ctx, rows, failed); err != nil {
			return err
		}
	}

	for key, err := range failed {
		return fmt.Errorf("publish the answers to %d commands, one of them %q: %w", len(failed), key, err)
	}

	return nil
}

// page publishes answers, those of each command in order, and deletes what was acknowledged. It adds to
// failed the commands of which a request failed.
func (p *Publisher) page(ctx context.Context, rows []row, failed map[string]error) error {
	var order []string
	byKey := map[string][]row{}
	for _, r := range rows {
		if failed[r.CommandID] != nil {
			continue
		}

		if byKey[r.CommandID] == nil {
			order = append(order, r.CommandID)
		}

		byKey[r.CommandID] = append(byKey[r.CommandID], r)
	}

	errs := make([]error, len(order))
	var g errgroup.Group
	g.SetLimit(atOnce)
	for i, key := range order {
		g.Go(func() error {
			errs[i] = p.publish(ctx, key, byKey[key])
			return nil
		})
	}

	_ = g.Wait() // each command's error is in errs
	var acked []int64
	for i, key := range order {
		if errs[i] != nil {
			failed[key] = errs[i]
			continue
		}

		for _, r := range byKey[key] {
			acked = append(acked, r.Seq)
		}
	}

	return p.delete(ctx, acked)
}

func (p *Publisher) read(ctx context.Context, after int64) ([]row, error) {
	ctx, cancel := context.WithTimeout(ctx, dbTimeout)
	defer cancel()
	rows, _ := p.cfg.DB.Query(ctx, selectReplies, pgx.StrictNamedArgs{"chain": p.cfg.ChainID, "after": after,
		"rows": pageSize, "bytes": pageBytes})
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		return nil, fmt.Errorf("read the answers to publish: %w", err)
	}

	return all, nil
}

// publish sends the answers to one command under its id as ordering key. Refusals of what names no command
// have no order, and no key.
func (p *Publisher) publish(ctx context.Context, key string, rows []row) error {
	messages := make([]pubsub.Message, len(rows))
	for i, r := range rows {
		messages[i] = pubsub.Message{Data: r.Body, Attributes: map[string]string{
			"command_id": r.CommandID, "reply_to": r.ReplyTo, "state": r.State, "code": r.Code,
			"chain_id": fmt.Sprint(p.cfg.ChainID),
		}}
	}

	_, err := p.cfg.Sender.Publish(ctx, p.cfg.Topic, key, messages)

	return err
}

// delete also runs when ctx has ended: what Pub/Sub has acknowledged should not be published again.
func (p *Publisher) delete(ctx context.Context, seqs []int64) error {
	if len(seqs) == 0 {
		return nil
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if _, err := p.cfg.DB.Exec(ctx, `delete from replies where chain_id = $1 and seq = any($2)`, p.cfg.ChainID,
		seqs); err != nil {
		return fmt.Errorf("delete %d published answers: %w", len(seqs), err)
	}

	p.cfg.Metrics.published.Add(float64(len(seqs)))

	return nil
}
