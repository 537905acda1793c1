package publish

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// shared is what a Publisher and its loop have in common. Only inbox and shown change.
type shared struct {
	cfg    Config
	limits limits
	box    outbox.Box
	store  store // the box, unless a test has something else
	inbox  inbox
	shown  shown
}

// store is the outbox as package outbox has it.
type store interface {
	Page(ctx context.Context, mine []int16, last int64, limit int, without []outbox.Lane) ([]outbox.Found, error)
	Lanes(ctx context.Context, mine []int16, wants []outbox.Want) ([][]outbox.Found, error)
	Delete(ctx context.Context, rows []outbox.Sent, limit time.Duration) error
	Doubt(ctx context.Context, seqs map[int16]int64) error
}

// inbox is what others want of the loop. wake has one place: however much has come in, it is one hint.
type inbox struct {
	wake  chan struct{}
	ended chan struct{} // closed when Run has ended

	mu sync.Mutex // guards content
	content
}

// content is what has come in since the loop last took it. Once full, offers and rows stay as they are.
type content struct {
	offers []offer
	rows   int  // in offers
	full   bool // an offer was too much; it and those after it are not in offers
	orders []order
}

type offer struct {
	epoch int64
	rows  []outbox.Pending
}

// order is what the loop is told to do with slots.
type order struct {
	what  command
	slots []int16

	// of quiesce: gets of each slot the seq up to which nobody knows what was sent, when they are at rest
	done     chan map[int16]int64
	patience time.Duration // with requests that are under way
	giveUp   time.Time     // when it is over; set by the loop, zero: it has been
	epoch    int64         // of resume
}

// command is an order without its slots.
type command int8

const (
	quiesce command = iota // send nothing more
	resume
	reload // read the outbox from the start: these are the slots that are held
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

// take empties the inbox and returns what was in it.
func (b *inbox) take() content {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.content
	b.content = content{}

	return was
}

// Stats is what is under way.
type Stats struct {
	InFlight    int // messages sent and not acknowledged
	Undeleted   int // messages acknowledged whose rows are not deleted yet
	BlockedKeys int // ordering keys whose last publish failed
}

// shown is what the loop shows of itself. Any goroutine may read it.
type shown struct {
	inFlight  atomic.Int64 // as of Stats
	undeleted atomic.Int64
	blocked   atomic.Int64
	settled   atomic.Bool // see Settled
}
