package fleet

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/database"
)

const (
	// readEvery is the pause between two readings, and bounds one: it takes milliseconds, but a broken connection may
	// stay silent for ever. Prometheus scrapes every 15 s or so.
	readEvery = 5 * time.Second
	// readSoon is the pause while somebody looks.
	readSoon = 2 * time.Second
	// countEvery is the pause between two counts of the registry, the one expensive part.
	countEvery = 30 * time.Second
)

// Reading is the fleet as it was read last.
type Reading struct {
	Fleet Fleet
	At    time.Time // when, by this process's clock; zero: never, and Fleet is empty
	Err   error     // of the last attempt, which may be later than At
}

// Reader reads the fleet of a chain for all metrics and screens of an instance. Run reads, in one goroutine, and
// nobody waits for it: behind a database that hangs a screen shows the last reading, and its age. The other methods
// are safe for concurrent use.
type Reader struct {
	db      DB
	chainID int64
	last    atomic.Pointer[Reading]
	looked  chan struct{} // has an element when somebody has looked since the last reading

	counted   Escrows // Run's own
	countedAt time.Time
}

// NewReader starts nothing.
func NewReader(db DB, chainID int64) *Reader {
	r := &Reader{db: db, chainID: chainID, looked: make(chan struct{}, 1)}
	r.last.Store(&Reading{})

	return r
}

// Last returns the last reading.
func (r *Reader) Last() Reading { return *r.last.Load() }

// Look is Last for somebody who looks on: the next reading comes sooner.
func (r *Reader) Look() Reading {
	select {
	case r.looked <- struct{}{}:
	default:
	}

	return r.Last()
}

// Run reads until ctx ends, tells of each reading, and returns nil.
func (r *Reader) Run(ctx context.Context, tell func(Reading)) error {
	for ctx.Err() == nil {
		next := r.Last()
		next.Err = database.Within(ctx, readEvery, func(ctx context.Context) error { return r.read(ctx, &next) })
		if ctx.Err() == nil { // else it was cut short
			r.last.Store(&next)
			tell(next)
		}

		soon, late := time.After(readSoon), time.After(readEvery)
		select {
		case <-soon:
		case <-ctx.Done():
		}

		select {
		case <-r.looked:
		case <-late:
		case <-ctx.Done():
		}
	}

	return nil
}

// read fills in a reading; its Fleet.Escrows may be as old as countEvery.
func (r *Reader) read(ctx context.Context, next *Reading) error {
	began := time.Now()
	var known *Escrows
	if began.Sub(r.countedAt) < countEvery {
		known = &r.counted
	}

	f, err := read(ctx, r.db, r.chainID, known)
	if err != nil {
		return err
	}

	if known == nil {
		r.counted, r.countedAt = f.Escrows, began
	}

	next.Fleet, next.At = f, began

	return nil
}
