package fleet

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Reader reads a fleet again and again. It counts the registry, the one expensive part, at most
// every CountEvery, and once for all who ask meanwhile. It is safe for concurrent use.
type Reader struct {
	DB         DB
	ChainID    int64
	CountEvery time.Duration // 0 means 30 s

	mu       sync.Mutex
	counts   *Escrows
	counted  time.Time
	counting chan struct{} // closed when the reading that counts ends; nil: none does
}

// Read returns the fleet as it is now; Fleet.Escrows may be as old as CountEvery.
func (r *Reader) Read(ctx context.Context) (Fleet, error) {
	counts, done, err := r.known(ctx)
	if err != nil {
		return Fleet{}, fmt.Errorf("wait until the escrows of chain %d are counted: %w", r.ChainID, err)
	}

	f, err := read(ctx, r.DB, r.ChainID, counts)
	if done != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if err == nil {
			r.counts, r.counted = &f.Escrows, time.Now()
		}

		r.counting = nil
		close(done)
	}

	return f, err
}

// known returns counts that are new enough. While somebody else counts it waits; where nobody does,
// the caller counts, and says so by done.
func (r *Reader) known(ctx context.Context) (counts *Escrows, done chan struct{}, err error) {
	every := r.CountEvery
	if every == 0 {
		every = 30 * time.Second
	}

	for {
		r.mu.Lock()
		if r.counts != nil && time.Since(r.counted) < every {
			defer r.mu.Unlock()
			return r.counts, nil, nil
		}

		under := r.counting
		if under == nil {
			defer r.mu.Unlock()
			r.counting = make(chan struct{})
			return nil, r.counting, nil
		}

		r.mu.Unlock()
		select {
		case <-under:
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
}
