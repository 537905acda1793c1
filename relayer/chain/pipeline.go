package chain

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
)

// large is from how many bytes of logs on a reading of a block or a range is, and calmReadings how many
// others have to come before several are asked for at once again.
const large, calmReadings = 2 << 20, 32

// flight says how many blocks or ranges may be asked for at once: what is in flight is held in memory,
// a block can be made so that it has 20 MB of logs, and such blocks come together. It begins with one.
type flight struct{ calm atomic.Int32 }

// landed notes how many bytes of logs came of a reading, and whether there was an error.
func (f *flight) landed(bytes int, err error) {
	switch calm := f.calm.Load(); {
	case bytes > large:
		f.calm.Store(-calmReadings)
	case err == nil && calm < endpoint.RangesInFlight:
		f.calm.Add(1)
	}
}

func (f *flight) width() int { return min(max(int(f.calm.Load()), 1), endpoint.RangesInFlight) }

// pipeline does jobs with as many in flight as width says then, and yields their results in order, up
// to the first error. It reports whether the reader wants more, and leaves no goroutine behind.
func pipeline(ctx context.Context, width func() int, next func() (func(context.Context) (Batch, error), bool),
	yield func(Batch, error) bool) bool {
	type result struct {
		b   Batch
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var flight []chan result
	for {
		for len(flight) < width() {
			job, ok := next()
			if !ok {
				break
			}

			done := make(chan result, 1)
			wg.Go(func() {
				b, err := job(ctx)
				done <- result{b, err}
			})
			flight = append(flight, done)
		}

		if len(flight) == 0 {
			return true
		}

		r := <-flight[0]
		flight = flight[1:]
		if r.err != nil {
			yield(Batch{}, r.err)
			return false
		}

		if !yield(r.b, nil) {
			return false
		}
	}
}
