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

// ErrFenced means that the right to publish ended during Run.
var ErrFenced = errors.New("fenced: the right to publish is over")

// Config of a Publisher. DB, Owner, Sender, Topics.Default and Metrics are required.
type Config struct {
	DB          *pgxpool.Pool
	ChainID     int64
	Owner       string // instance id: the rows of its slots are published
	Sender      Sender
	Topics      pubsub.Topics
	BySlot      bool // ordering key: the slot instead of the escrow; larger batches, less isolation
	CloudEvents bool // messages have the attributes of CloudEvents too
	// Hint fires when rows may have come that are not offered. Nil: all are offered.
	Hint <-chan struct{}
	// Valid reports whether the right to publish still holds; called before each request, concurrently. Nil: always.
	Valid func() bool
	// Memory identifies what the database server of this tenure remembers; see Handover.
	Memory string
	// Tracer creates a span per message; the message carries its context in the attributes
	// traceparent and googclient_traceparent. Nil: untraced.
	Tracer   trace.Tracer
	Log      *slog.Logger
	Metrics  *Metrics
	Handover *Handover      // from the previous tenure; nil for the first
	Jitter   func() float64 // from 0 to 1, for the delays of blocked lanes. Nil: random
}

// Handover passes from one tenure to the next what this process knows about the outbox beyond the
// database. One Publisher at a time uses it.
type Handover struct {
	// acknowledged, and not noted because the database was gone: must be skipped
	acked   []outbox.Sent
	entries map[int16][]entry
	unsure  map[int16]int64 // per slot, the seq up to which the outcome of requests is unknown; 0: of the log only
	memory  string          // of the database server that the last Publisher ran on
}

// Known reports whether a Publisher of this process has run on the server with that memory.
// Otherwise it is unknown what an earlier process published: a server after a failover may show
// rows again that were deleted.
func (h *Handover) Known(memory string) bool { return h.memory != "" && h.memory == memory }

// Sender sends messages to Pub/Sub in one request, without retries: the loop retries. An error
// carries a gRPC status (see pubsub.Code): where pubsub.Refused is true of its code, nothing was
// stored; otherwise the messages may be. The call has its own deadline. (Google's Publisher is
// unsuitable: it delays each message to fill batches by key, keeps a goroutine and a queue per key,
// retries out of our sight, and drops a key's queue when it fails.)
type Sender interface {
	Publish(ctx context.Context, topic, key string, messages []pubsub.Message) (ids []string, err error)
}

// limits of a publisher. Tests make them small.
type limits struct {
	windowRows  int           // in memory, or acknowledged and not noted: what a crash can repeat, or one block
	windowBytes int           // of those, about; one page may exceed it
	pageRows    int           // rows read at once
	requests    int           // in flight per topic; Pub/Sub takes some 20 ms, so one key per escrow needs many
	batchRows   int           // messages in a request: the service accepts 1,000
	batchBytes  int           // bytes in a request, about: the service accepts 10 MB, and 1 MB/s under a key
	maxBlocked  int           // blocked lanes of a topic from which its new lanes wait
	firstDelay  time.Duration // of a blocked lane; it doubles
	lastDelay   time.Duration // the longest
	drain       time.Duration // at the end, the wait for acknowledgements
	rereadEvery time.Duration // a periodic reading from the start: the safety net under every hint
}

var defaultLimits = limits{
	windowRows: 16_384, windowBytes: 32 << 20, pageRows: 2_048, requests: 512, batchRows: 1_000,
	batchBytes: 1 << 20, maxBlocked: 2_000,
	firstDelay: 100 * time.Millisecond, lastDelay: 30 * time.Second, drain: drainTimeout, rereadEvery: 30 * time.Second,
}

const (
	// answersPage is how many answers are read at once: each has some kilobytes at most.
	answersPage = 512
	// answersDrain is drainTimeout for answers, after which that of the events begins.
	answersDrain = time.Second
	// drainTimeout bounds the wait for acknowledgements at the end: Cloud Run leaves 10 s after SIGTERM for everything.
	drainTimeout = 4 * time.Second
	// deleteAtEnd bounds the deletions after that wait.
	deleteAtEnd = time.Second
	// moveAfter is after how many failures in a row a key may be given rows, so that it does not hold up the others.
	moveAfter = 3
	// movesAtOnce bounds the events in memory of the keys that one transaction gives rows, but for the last key.
	movesAtOnce = 500
	// noteTimeout bounds a note of what is sent, and a transaction that gives rows.
	noteTimeout = 30 * time.Second
)

// backoff is the delay before the next attempt after so many consecutive failures: it doubles from
// first to last, and jitter, from 0 to 1, subtracts up to half of it.
func backoff(first, last time.Duration, failures int, jitter float64) time.Duration {
	delay := last
	if failures < 16 {
		delay = min(last, first<<failures)
	}

	return time.Duration((0.5 + jitter/2) * float64(delay))
}
