package publish

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// shared is what a Publisher and its loop have in common. Only inbox and shown change.
type shared struct {
	cfg    Config
	limits limits
	store  store
	log    sentLog // nil: answers have no log
	inbox  inbox
	shown  shown
}

// store is a table of messages of package outbox: an *outbox.Box or an *outbox.Answers.
type store interface {
	LaneOf(p *outbox.Pending) outbox.Lane
	Key(lane outbox.Lane) string
	Page(ctx context.Context, r outbox.Right, mine []int16, last int64, limit int,
		without []outbox.Lane) ([]outbox.Found, int64,
		error)
	Delete(ctx context.Context, rows []outbox.Sent, limit time.Duration) error
	Doubt(ctx context.Context, slots []int16) error
}

// sentLog is the log of events, and how far it is sent: an *outbox.Box.
type sentLog interface {
	Sent(ctx context.Context, r outbox.Right) (map[int16]contract.Place, error)
	Log(ctx context.Context, r outbox.Right, sent map[int16]contract.Place, from int64, limit int) (outbox.Page, error)
	Settle(ctx context.Context, r outbox.Right, sent map[int16]contract.Place) ([]int16, error)
	SetApart(ctx context.Context, events []outbox.Mark) error
	Move(ctx context.Context, r outbox.Right, of []outbox.Lane, behind []contract.Place) error
}

// inbox queues what others want of the loop. wake has capacity one: several entries are one hint.
type inbox struct {
	wake  chan struct{}
	ended chan struct{} // closed when Run has ended

	mu sync.Mutex // guards content
	content
}

// content is what was queued since the loop last took it. Once full, offers and rows stay
// unchanged.
type content struct {
	offers []outbox.Commit
	rows   int  // in offers
	full   bool // an offer exceeded the capacity; it and later ones were dropped
	orders []order
}

// order tells the loop what to do with slots.
type order struct {
	what  command
	slots []int16

	done     chan []int16  // of quiesce: gets, when the slots are at rest, those with messages whose outcome is unknown
	patience time.Duration // the longest wait for requests in flight
	giveUp   time.Time     // when that ends; set by the loop, zero: it has ended
	right    outbox.Right  // of reload, and the epoch of resume
}

// command is an order without its slots.
type command int8

const (
	quiesce command = iota // stop sending
	resume
	reload // read from the start: the slots, and the right to them, are those now held
)

func (b *inbox) order(o order) {
	b.mu.Lock()
	b.orders = append(b.orders, o)
	b.mu.Unlock()
	b.ring()
}

func (b *inbox) ring() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take empties the inbox and returns its content.
func (b *inbox) take() content {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.content
	b.content = content{}

	return was
}

// Stats is what is in flight.
type Stats struct {
	InFlight    int // messages sent and unacknowledged
	Undeleted   int // acknowledged messages whose rows wait for deletion
	BlockedKeys int // ordering keys whose last publish failed
}

// shown is the state that the loop publishes. Any goroutine may read it.
type shown struct {
	inFlight  atomic.Int64 // as of Stats
	undeleted atomic.Int64
	blocked   atomic.Int64
	settled   atomic.Bool // see Settled
}
