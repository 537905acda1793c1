package fleet

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Reader reads a fleet repeatedly. It counts the registry, the one expensive part, at most every
// CountEvery, and once for all concurrent callers. It is safe for concurrent use.
type Reader struct {
	DB         DB
	ChainID    int64
	CountEvery time.Duration // 0 means 30 s

	start sync.Once
	turn  chan struct{} // holds an element while a caller counts
	last  atomic.Pointer[count]
}

// count is the number of escrows at one moment.
type count struct {
	escrows Escrows
	at      time.Time
}

// Read returns the fleet as it is now; Fleet.Escrows may be as old as CountEvery.
func (r *Reader) Read(ctx context.Context) (Fleet, error) {
	r.start.Do(func() { r.turn = make(chan struct{}, 1) })
	known := r.known()
	if known == nil {
		select {
		case r.turn <- struct{}{}:
			defer func() { <-r.turn }()
		case <-ctx.Done():
			return Fleet{}, fmt.Errorf("wait until the escrows of chain %d are counted: %w", r.ChainID, context.Cause(ctx))
		}

		known = r.known() // another caller may have counted meanwhile
	}

	f, err := read(ctx, r.DB, r.ChainID, known)
	if known == nil && err == nil {
		r.last.Store(&count{f.Escrows, time.Now()})
	}

	return f, err
}

// known returns the last count, unless it is too old.
func (r *Reader) known() *Escrows {
	last := r.last.Load()
	if last == nil || time.Since(last.at) >= cmp.Or(r.CountEvery, 30*time.Second) {
		return nil
	}

	return &last.escrows
}
