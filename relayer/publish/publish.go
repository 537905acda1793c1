// Package publish moves messages from the outbox to Pub/Sub: each at least once, those of one key in order, and twice only where
// a process dies between Pub/Sub's acknowledgement and the deletion of the row.
//
// One goroutine owns the state and does everything in turn; what waits (acknowledgements, deletions) waits elsewhere and reports to it:
//
//	Offer ──► │            │ ──► Pub/Sub client ──► acknowledged ──► deleter ──► row gone
//	outbox ──►│ the loop   │          └─ failed: the key is blocked, its rows stay in the outbox only,
//	Reload ──►│            │             and are read again when its delay is over
//
// The outbox is authoritative; memory holds a window of it. `last` is the highest seq that was looked at: the rows of this instance's slots are
// written by this instance, one commit after the other, so reading on from there misses none. Whoever writes rows out of turn (a replay, the
// verifier), and every change of ownership, calls Reload: the outbox is read again from the start, past what is under way.
package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

const (
	// windowRows bounds what is in memory and under way: about 30 MB with bodies and the client's own copies.
	windowRows = 10_000
	// pageRows is how many rows are read from the outbox at once.
	pageRows = 2_000
	// rereadEvery is how often the outbox is read from the start although nothing called for it: the safety net under every hint.
	rereadEvery = 30 * time.Second
	// publishTimeout bounds the client's own retries of a request; ours go on for ever.
	publishTimeout = 15 * time.Second
	// drainTimeout bounds the wait for acknowledgements at the end: Cloud Run leaves 10 s after SIGTERM for everything.
	drainTimeout = 4 * time.Second
	// The delay of a key after a failure doubles from the first to the second.
	firstDelay, lastDelay = 200 * time.Millisecond, 30 * time.Second
	// blockedKeys bounds how many keys may have failed before nothing new is sent: then it is not the keys that are at fault.
	blockedKeys = 2_000
)

// Topics names the topics. Other and Retractions may be empty.
type Topics struct {
	Default, Other, Retractions string
}

// Config of a Publisher.
type Config struct {
	DB         *pgxpool.Pool
	ChainID    int64
	Owner      string // instance id: the rows of its slots are published
	Project    string
	Topics     Topics
	OtherNames map[string]bool // events that go to Topics.Other
	BySlot     bool            // ordering key: the slot instead of the escrow; larger batches, less isolation
	Valid      func() bool     // whether the right to publish still holds, asked before each message is handed to the client
	Options    []option.ClientOption
	Log        *slog.Logger
	Metrics    *Metrics
	Carry      *Carry           // nil: nothing is carried over
	Now        func() time.Time // nil: time.Now
}

// Carry takes over from one tenure to the next which rows are acknowledged but could not be deleted, because the database was
// gone: this process knows that they must not be sent again. One Publisher at a time uses it.
type Carry struct {
	seqs []int64
}

// Pending is an outbox row with its event.
type Pending struct {
	Seq   int64
	Slot  int16
	Kind  int16 // message.Kind
	Event contract.Event
}

// ErrNoRight means that the right to publish ended while Run was at it.
var ErrNoRight = errors.New("the right to publish is over")

// Publisher publishes for one tenure. Run runs it, once; the other methods may be called from any goroutine.
type Publisher struct {
	cfg     Config
	offers  chan offer
	reload  chan struct{}
	quiesce chan quiesceRequest

	stats atomic.Pointer[Stats]
}

// Stats is what is under way.
type Stats struct {
	InFlight    int // messages sent and not acknowledged
	BlockedKeys int // ordering keys whose last publish failed
}

// New checks the configuration and starts nothing.
func New(cfg Config) (*Publisher, error) {
	if cfg.DB == nil || cfg.Owner == "" || cfg.Project == "" || cfg.Topics.Default == "" || cfg.Metrics == nil {
		return nil, errors.New("publish: DB, Owner, Project, the default topic and Metrics are required")
	}
	if cfg.Valid == nil {
		cfg.Valid = func() bool { return true }
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Carry == nil {
		cfg.Carry = &Carry{}
	}
	p := &Publisher{cfg: cfg, offers: make(chan offer, 16), reload: make(chan struct{}, 1), quiesce: make(chan quiesceRequest)}
	p.stats.Store(&Stats{})
	return p, nil
}

// CheckTopics says whether the topics exist and may be published to. PUBSUB_EMULATOR_HOST is honoured as Google's client does.
func CheckTopics(ctx context.Context, project string, t Topics, opts ...option.ClientOption) error {
	client, err := pubsub.NewClient(ctx, project, opts...)
	if err != nil {
		return fmt.Errorf("open the Pub/Sub client for PUBSUB_PROJECT_ID=%s: %w", project, err)
	}
	defer client.Close()
	for _, topic := range []struct{ variable, id string }{{"PUBSUB_TOPIC_ID", t.Default}, {"OTHER_EVENTS_TOPIC_ID", t.Other}, {"RETRACTIONS_TOPIC_ID", t.Retractions}} {
		if topic.id == "" {
			continue
		}
		name := "projects/" + project + "/topics/" + topic.id
		_, err := client.TopicAdminClient.GetTopic(ctx, &pubsubpb.GetTopicRequest{Topic: name})
		switch status.Code(err) {
		case codes.OK:
		case codes.NotFound:
			return fmt.Errorf("%s=%s: %w: %s; create it, or name one that exists", topic.variable, topic.id, ErrNoTopic, name)
		case codes.PermissionDenied:
			// roles/pubsub.publisher does not include pubsub.topics.get: publishing will tell.
		default:
			return fmt.Errorf("look for the topic %s=%s: %w", topic.variable, topic.id, err)
		}
	}
	return nil
}

// ErrNoTopic means that a configured topic does not exist.
var ErrNoTopic = errors.New("no such topic")

// Emulated says whether PUBSUB_EMULATOR_HOST redirects the client.
func Emulated() bool { return os.Getenv("PUBSUB_EMULATOR_HOST") != "" }

// Offer hands over rows that were just committed under an epoch, in seq order, from one goroutine. It never blocks: what does not
// fit is in the outbox.
func (p *Publisher) Offer(epoch int64, rows []Pending) {
	select {
	case p.offers <- offer{epoch, rows}:
	default:
		p.Reload()
	}
}

type offer struct {
	epoch int64
	rows  []Pending
}

// Reload makes the publisher read the outbox from the start.
func (p *Publisher) Reload() {
	select {
	case p.reload <- struct{}{}:
	default:
	}
}

// Stats returns what is under way.
func (p *Publisher) Stats() Stats { return *p.stats.Load() }

type quiesceRequest struct {
	slots []int16
	epoch int64         // of a resumption: offers of earlier epochs may be of slots that are gone
	done  chan struct{} // nil: resume
}

// Quiesce stops publishing for some slots and returns when nothing of them is under way: every message was acknowledged and its
// row deleted, or its publish failed. On an error the slots are published again.
func (p *Publisher) Quiesce(ctx context.Context, slots []int16) error {
	done := make(chan struct{})
	select {
	case p.quiesce <- quiesceRequest{slots: slots, done: done}:
	case <-ctx.Done():
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		p.Resume(slots, 0)
		return fmt.Errorf("wait for the messages of %d slots: %w", len(slots), ctx.Err())
	}
}

// Resume publishes slots again that were quiesced. After they were released, epoch is the new one: what was offered before is left to
// whoever has them now.
func (p *Publisher) Resume(slots []int16, epoch int64) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	select {
	case p.quiesce <- quiesceRequest{slots: slots, epoch: epoch}:
	case <-ctx.Done(): // Run has ended
	}
}

// Run publishes until ctx ends; then it takes nothing more, waits for what is under way, and returns nil. It returns ErrNoRight when
// Config.Valid says no.
func (p *Publisher) Run(ctx context.Context) error {
	client, err := pubsub.NewClient(ctx, p.cfg.Project, p.cfg.Options...)
	if err != nil {
		return fmt.Errorf("open the Pub/Sub client: %w", err)
	}
	l := &loop{
		Publisher: p, topics: map[string]*pubsub.Publisher{}, inFlight: map[int64]*sent{}, byKey: map[string]int{}, acked: map[int64]bool{},
		blocked: map[string]*block{}, quiet: map[int16]bool{}, results: make(chan result, 1024), deleted: make(chan deletion, 1),
		history: map[string]time.Duration{}, toDelete: p.cfg.Carry.seqs,
	}
	for _, seq := range l.toDelete {
		l.acked[seq] = true
	}
	for _, id := range []string{p.cfg.Topics.Default, p.cfg.Topics.Other, p.cfg.Topics.Retractions} {
		if id == "" || l.topics[id] != nil {
			continue
		}
		topic := client.Publisher(id)
		topic.EnableMessageOrdering = true
		// One ordering key a request is the service's rule, so with a key an escrow there is little to wait for; a
		// millisecond lets the messages of one commit travel together.
		topic.PublishSettings.DelayThreshold = time.Millisecond
		topic.PublishSettings.CountThreshold = 1000
		topic.PublishSettings.Timeout = publishTimeout
		topic.PublishSettings.FlowControlSettings.LimitExceededBehavior = pubsub.FlowControlIgnore // ours bounds it
		l.topics[id] = topic
	}
	err = l.run(ctx)
	l.drain(client)
	return err
}

func (p *Publisher) key(r *Pending) string {
	if p.cfg.BySlot {
		return strconv.FormatInt(p.cfg.ChainID, 10) + ":" + strconv.Itoa(int(r.Slot))
	}
	return strconv.FormatInt(p.cfg.ChainID, 10) + ":" + lowerHex(r.Event.Escrow)
}

func (p *Publisher) topic(r *Pending) string {
	switch {
	case message.Kind(r.Kind) == message.Retraction:
		return p.cfg.Topics.Retractions
	case p.cfg.OtherNames[r.Event.Name]:
		return p.cfg.Topics.Other
	}
	return p.cfg.Topics.Default
}

// sent is a message under way.
type sent struct {
	row   Pending
	key   string
	start time.Time
}

type result struct {
	seq int64
	err error
}

// block is a key whose last publish failed. Its rows from first on are in the outbox only.
type block struct {
	first int64
	until time.Time
	delay time.Duration
}

// loop is the state of Run.
type loop struct {
	*Publisher
	topics    map[string]*pubsub.Publisher
	waiting   sync.WaitGroup // goroutines that wait for a result
	results   chan result
	deleted   chan deletion
	inFlight  map[int64]*sent
	byKey     map[string]int // messages under way by key
	acked     map[int64]bool // acknowledged, row not yet deleted
	toDelete  []int64        // acknowledged, deletion not yet asked for
	deleting  bool
	blocked   map[string]*block
	history   map[string]time.Duration // delay of keys that are tried again
	quiet     map[int16]bool
	quiescing []quiesceRequest
	epoch     int64
	last      int64
	caughtUp  bool
	unblocked time.Time // when keys were last let go
	lastCode  codes.Code
}

func (l *loop) run(ctx context.Context) error {
	reread := time.NewTicker(rereadEvery)
	defer reread.Stop()
	wake := time.NewTimer(time.Hour)
	defer wake.Stop()
	failures := 0
	for {
		next := time.Hour
		if !l.caughtUp && l.room() {
			more, err := l.read(ctx)
			switch {
			case errors.Is(err, ErrNoRight):
				return err
			case ctx.Err() != nil:
				return nil
			case err != nil:
				failures++
				next = min(lastDelay, firstDelay<<min(failures, 6))
				l.cfg.Log.WarnContext(ctx, "outbox not read, trying again", slog.Any("err", err))
			default:
				failures = 0
				if more {
					next = 0
				}
			}
		}
		l.delete(ctx)
		next = min(next, l.unblock())
		l.report()
		wake.Reset(next)
		select {
		case <-ctx.Done():
			return nil
		case o := <-l.offers:
			if err := l.take(o); err != nil {
				return err
			}
		case <-l.reload:
			l.rewind()
		case <-reread.C:
			l.rewind()
		case <-wake.C:
		case r := <-l.results:
			l.settle(ctx, r)
			for n := len(l.results); n > 0; n-- {
				l.settle(ctx, <-l.results)
			}
		case d := <-l.deleted:
			l.forget(ctx, d)
		case q := <-l.quiesce:
			l.still(q)
		}
	}
}

// room says whether more may be sent now.
func (l *loop) room() bool { return len(l.inFlight) < windowRows && len(l.blocked) < blockedKeys }

// rewind makes the outbox be read from the start; what is under way is passed over.
func (l *loop) rewind() { l.last, l.caughtUp = 0, false }

// take publishes rows that were just committed, unless older ones have to be read first: then they are read with those.
func (l *loop) take(o offer) error {
	if !l.caughtUp || o.epoch < l.epoch {
		return nil
	}
	for i := range o.rows {
		r := &o.rows[i]
		if r.Seq <= l.last {
			continue
		}
		if !l.room() {
			l.caughtUp = false
			return nil
		}
		if err := l.send(r); err != nil {
			return err
		}
		l.last = r.Seq
	}
	return nil
}

// send hands a row to the client. Rows of blocked keys and of slots that are being yielded stay in the outbox.
func (l *loop) send(r *Pending) error {
	if l.inFlight[r.Seq] != nil || l.acked[r.Seq] || l.quiet[r.Slot] {
		return nil
	}
	key := l.key(r)
	if l.blocked[key] != nil {
		return nil
	}
	if !l.cfg.Valid() {
		return ErrNoRight
	}
	topic := l.topics[l.topic(r)]
	if topic == nil {
		// The configuration does not name a topic for it any more: nobody asked for it, so it leaves the outbox as if sent.
		l.acked[r.Seq] = true
		l.toDelete = append(l.toDelete, r.Seq)
		return nil
	}
	kind := message.Kind(r.Kind)
	body, attributes, err := message.Encode(kind, event(&r.Event), l.cfg.ChainID, l.cfg.Now())
	if err != nil {
		return err // what is stored is not what was decoded: a bug, not a matter of retrying
	}
	s := &sent{row: *r, key: key, start: time.Now()}
	l.inFlight[r.Seq] = s
	l.byKey[key]++
	res := topic.Publish(context.Background(), &pubsub.Message{Data: body, Attributes: attributes, OrderingKey: key})
	seq := r.Seq
	l.waiting.Go(func() {
		_, err := res.Get(context.Background()) // ends by publishTimeout, or with the client
		l.results <- result{seq, err}
	})
	return nil
}

// event is an event as package message takes it.
func event(e *contract.Event) *message.Event {
	return &message.Event{
		Name: e.Name, ContractAddress: string(contract.AppendChecksum(make([]byte, 0, 42), e.Emitter)), Escrow: e.Escrow, BlockNumber: e.BlockNumber,
		BlockHash: e.BlockHash, BlockTime: e.BlockTime, TransactionHash: e.TxHash, LogIndex: e.LogIndex, Args: e.Args,
	}
}

// settle takes the outcome of one message.
func (l *loop) settle(ctx context.Context, r result) {
	s := l.inFlight[r.seq]
	delete(l.inFlight, r.seq)
	if l.byKey[s.key]--; l.byKey[s.key] == 0 {
		delete(l.byKey, s.key)
	}
	m := l.cfg.Metrics
	if r.err == nil {
		l.acked[r.seq] = true
		l.toDelete = append(l.toDelete, r.seq)
		delete(l.history, s.key)
		m.published.Inc()
		m.duration.Observe(time.Since(s.start).Seconds())
		if message.Kind(s.row.Kind) == message.Original && s.row.Event.BlockTime > 0 {
			m.latency.Observe(max(0, l.cfg.Now().Sub(time.Unix(int64(s.row.Event.BlockTime), 0)).Seconds()))
		}
		l.stilled()
		return
	}
	m.failed(r.err)
	b := l.blocked[s.key]
	if b == nil {
		delay := min(max(firstDelay, 2*l.history[s.key]), lastDelay)
		b = &block{first: r.seq, delay: delay, until: time.Now().Add(delay/2 + rand.N(delay/2+1))}
		l.blocked[s.key] = b
		l.complain(ctx, s, r.err)
	}
	b.first = min(b.first, r.seq)
	l.stilled()
}

// complain logs a failure when it is of another kind than the last.
func (l *loop) complain(ctx context.Context, s *sent, err error) {
	code := status.Code(err)
	level := slog.LevelDebug
	if code != l.lastCode {
		level = slog.LevelWarn
		if code == codes.PermissionDenied || code == codes.NotFound || code == codes.InvalidArgument || code == codes.Unauthenticated {
			level = slog.LevelError
		}
	}
	l.lastCode = code
	l.cfg.Log.Log(ctx, level, "message not published, trying again", slog.String("escrow", lowerHex(s.row.Event.Escrow)), slog.String("code", code.String()), slog.Any("err", err))
}

// unblock lets keys be tried again whose delay is over and of which nothing is under way any more, and returns when to look again. It waits
// for a reading of the outbox that is under way, and a second between two turns where many keys fail: each turn reads again.
func (l *loop) unblock() time.Duration {
	if len(l.blocked) == 0 || !l.caughtUp && l.room() {
		return time.Hour
	}
	now := time.Now()
	if wait := time.Second - now.Sub(l.unblocked); len(l.blocked) > 100 && wait > 0 {
		return wait
	}
	next := time.Hour
	for key, b := range l.blocked {
		if l.byKey[key] > 0 {
			continue // its result wakes the loop
		}
		if wait := b.until.Sub(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		for _, t := range l.topics {
			t.ResumePublish(key)
		}
		delete(l.blocked, key)
		l.history[key] = b.delay
		l.last = min(l.last, b.first-1)
		l.caughtUp = false
		l.unblocked = now
		next = 0
	}
	return next
}

// deletion is the outcome of deleting rows.
type deletion struct {
	seqs []int64
	err  error
}

// delete removes the rows of acknowledged messages, one batch at a time, without holding up the loop.
func (l *loop) delete(ctx context.Context) {
	if l.deleting || len(l.toDelete) == 0 {
		return
	}
	seqs := l.toDelete
	l.toDelete, l.deleting = nil, true
	go func() { // one at a time; drain waits for it
		err := l.remove(context.WithoutCancel(ctx), seqs)
		l.deleted <- deletion{seqs, err}
	}()
}

func (l *loop) remove(ctx context.Context, seqs []int64) error {
	if len(seqs) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, deleteTimeout)
	defer cancel()
	_, err := l.cfg.DB.Exec(ctx, `delete from outbox where chain_id = $1 and seq = any($2)`, l.cfg.ChainID, seqs)
	return err
}

// deleteTimeout bounds one attempt to delete acknowledged rows.
const deleteTimeout = 2 * time.Second

// forget takes the outcome of a deletion. Rows that could not be deleted stay known as acknowledged, and are deleted with the next ones.
func (l *loop) forget(ctx context.Context, d deletion) {
	l.deleting = false
	if d.err != nil {
		l.toDelete = append(l.toDelete, d.seqs...)
		l.cfg.Log.WarnContext(ctx, "acknowledged messages not deleted from the outbox, trying again", slog.Int("messages", len(d.seqs)), slog.Any("err", d.err))
		return
	}
	for _, s := range d.seqs {
		delete(l.acked, s)
	}
	l.stilled()
}

// still takes a request to quiesce or resume slots.
func (l *loop) still(q quiesceRequest) {
	for _, s := range q.slots {
		if q.done != nil {
			l.quiet[s] = true
		} else {
			delete(l.quiet, s)
		}
	}
	if q.done == nil {
		l.epoch = max(l.epoch, q.epoch)
		l.rewind()
		return
	}
	l.quiescing = append(l.quiescing, q)
	l.stilled()
}

// stilled answers those who wait for slots of which nothing is under way any more.
func (l *loop) stilled() {
	if len(l.quiescing) == 0 || len(l.acked) > 0 {
		return
	}
	busy := map[int16]bool{}
	for _, s := range l.inFlight {
		busy[s.row.Slot] = true
	}
	rest := l.quiescing[:0]
	for _, q := range l.quiescing {
		wait := false
		for _, s := range q.slots {
			wait = wait || busy[s]
		}
		if wait {
			rest = append(rest, q)
		} else {
			close(q.done)
		}
	}
	l.quiescing = rest
}

func (l *loop) report() {
	l.stats.Store(&Stats{InFlight: len(l.inFlight), BlockedKeys: len(l.blocked)})
	l.cfg.Metrics.inFlight.Set(float64(len(l.inFlight)))
	l.cfg.Metrics.blocked.Set(float64(len(l.blocked)))
}

// drain waits for what is under way, up to drainTimeout, deletes what was acknowledged, and ends every goroutine.
func (l *loop) drain(client *pubsub.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	stopped := make(chan struct{})
	go func() { // ends with the flush, at the latest when the client is closed
		defer close(stopped)
		for _, t := range l.topics {
			t.Stop()
		}
		l.waiting.Wait()
	}()
	timeout, end, abandoned := ctx.Done(), (<-chan struct{})(stopped), 0
	for end != nil || len(l.results) > 0 {
		select {
		case r := <-l.results:
			if timeout == nil && r.err != nil {
				abandoned++
			}
			l.settle(ctx, r)
		case <-timeout:
			timeout = nil
			_ = client.Close() // fails what is under way
		case <-end:
			end = nil
		}
	}
	if l.deleting {
		l.forget(ctx, <-l.deleted)
	}
	l.cfg.Carry.seqs = nil
	if err := l.remove(context.Background(), l.toDelete); err != nil {
		l.cfg.Carry.seqs = l.toDelete
		l.cfg.Metrics.republished.Add(float64(len(l.toDelete)))
		l.cfg.Log.WarnContext(ctx, "stopped with acknowledged messages in the outbox: another process may publish them again", slog.Int("messages", len(l.toDelete)), slog.Any("err", err))
	}
	if abandoned > 0 {
		l.cfg.Metrics.republished.Add(float64(abandoned))
		l.cfg.Log.WarnContext(ctx, "stopped with messages under way: they may be published again", slog.Int("messages", abandoned))
	}
	_ = client.Close() // a second time is harmless
	l.blocked = nil
	l.report()
}
