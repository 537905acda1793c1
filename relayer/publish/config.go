package publish

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"

	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
)

// ErrFenced means that the right to publish ended while Run was at it.
var ErrFenced = errors.New("fenced: the right to publish is over")

// Config of a Publisher. DB, Owner, Sender, Topics.Default and Metrics are required.
type Config struct {
	DB          *pgxpool.Pool
	ChainID     int64
	Owner       string // instance id: the rows of its slots are published
	Sender      Sender
	Topics      pubsub.Topics
	OtherNames  map[string]bool // events that go to Topics.Other
	BySlot      bool            // ordering key: the slot instead of the escrow; larger batches, less isolation
	CloudEvents bool            // messages have the attributes of CloudEvents too
	// Valid says whether the right to publish still holds; it is asked before each request, concurrently. Nil: for ever.
	Valid func() bool
	// Memory names what the database server of this tenure remembers; see Handover.
	Memory string
	// Tracer makes a span per message, whose context the message carries as the attributes
	// traceparent and googclient_traceparent. Nil: none.
	Tracer   trace.Tracer
	Log      *slog.Logger
	Metrics  *Metrics
	Handover *Handover      // from the tenure before. Nil: there was none
	Jitter   func() float64 // from 0 to 1, for the delays of blocked lanes. Nil: random
}

// Handover takes over from one tenure to the next what this process knows of the outbox and the
// database does not. One Publisher at a time uses it.
type Handover struct {
	acked  []outbox.Sent   // acknowledged, and not deleted because the database was gone: not to be sent again
	unsure map[int16]int64 // of each slot the seq up to which requests ended without an answer
	memory string          // of the database server that the last Publisher ran on
}

// Known says whether a Publisher of this process has run on the server that remembers that. If none has,
// what the instance published in a former life is not known: one that was failed over to may show rows
// again that were deleted.
func (h *Handover) Known(memory string) bool { return h.memory != "" && h.memory == memory }

// Sender hands messages to Pub/Sub, in one request and once: the loop retries. Errors are those of
// package pubsub. The call has a deadline of its own. (Google's Publisher is not used: it delays
// each message to fill batches by key, keeps a goroutine and a queue per key, retries where we
// cannot see it, and drops a key's queue when it fails.)
type Sender interface {
	Publish(ctx context.Context, topic, key string, messages []pubsub.Message) (ids []string, err error)
}

// limits of a publisher. Tests make them small.
type limits struct {
	windowRows  int           // in memory, waiting or under way, or acknowledged and not deleted: what a crash can repeat
	windowBytes int           // of those, about; a page more may come
	laneRows    int           // of one lane in memory; the rest stays in the outbox: one lane must not fill the window
	pageRows    int           // rows read at once
	requests    int           // under way at once on a topic; Pub/Sub takes some 20 ms, so one key per escrow needs many
	batchRows   int           // messages in a request: the service takes 1,000
	batchBytes  int           // bytes in a request, about: the service takes 10 MB, and 1 MB/s under a key
	maxBlocked  int           // lanes of a topic
	firstDelay  time.Duration // of a blocked lane; it doubles
	lastDelay   time.Duration // the longest
	linger      time.Duration // before a deletion that is not full: fewer transactions, a wider crash window
	deleteFull  int           // rows that are worth a deletion at once
	deleteMost  int           // rows of one deletion
	rereadEvery time.Duration // a reading from the start that nothing called for: the safety net under every hint
}

var defaultLimits = limits{
	windowRows: 16_384, windowBytes: 32 << 20, laneRows: 1_000, pageRows: 2_048, requests: 512, batchRows: 1_000,
	batchBytes: 1 << 20, maxBlocked: 2_000,
	firstDelay: 100 * time.Millisecond, lastDelay: 30 * time.Second, linger: 5 * time.Millisecond, deleteFull: 1_000,
	deleteMost: 4_096, rereadEvery: 30 * time.Second,
}

const (
	// drainTimeout bounds the wait for acknowledgements at the end: Cloud Run leaves 10 s after SIGTERM for everything.
	drainTimeout = 4 * time.Second
	// deleteAtEnd bounds the deletions after that wait.
	deleteAtEnd = time.Second
)

// backoff is the delay before the next attempt after so many failures in a row: it doubles from
// first to last, and jitter, from 0 to 1, takes off up to half of it.
func backoff(first, last time.Duration, failures int, jitter float64) time.Duration {
	delay := last
	if failures < 16 {
		delay = min(last, first<<failures)
	}

	return time.Duration((0.5 + jitter/2) * float64(delay))
}
