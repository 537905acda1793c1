package fleet

import (
	"context"
	"sync"
	"time"
)

// Reader reads a fleet again and again. It counts the registry, the one expensive part, at most
// every CountEvery. It is safe for concurrent use.
type Reader struct {
	DB         DB
	ChainID    int64
	CountEvery time.Duration // 0 means 30 s

	mu      sync.Mutex
	counts  *Escrows
	counted time.Time
}

// Read returns the fleet as it is now; Fleet.Escrows may be as old as CountEvery.
func (r *Reader) Read(ctx context.Context) (Fleet, error) {
	every := r.CountEvery
	if every == 0 {
		every = 30 * time.Second
	}

	r.mu.Lock()
	counts := r.counts
	if time.Since(r.counted) >= every {
		counts = nil
	}

	r.mu.Unlock()
	f, err := read(ctx, r.DB, r.ChainID, counts)
	if err == nil && counts == nil {
		r.mu.Lock()
		r.counts, r.counted = &f.Escrows, time.Now()
		r.mu.Unlock()
	}

	return f, err
}
