package source

import (
	"context"
	"sync"
)

// pipeline does jobs with so many in flight and yields their results in order, up to the first
// error. It says whether the reader wants more, and leaves no goroutine behind.
func pipeline(ctx context.Context, width int, next func() (func(context.Context) (Batch, error), bool),
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
		for len(flight) < width {
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
