package watch

import (
	"context"

	"github.com/fusion-prime/escrow-relayer/relayer/chain"
)

// stage processes the batches of one reading. Its methods are called from one goroutine.
type stage interface {
	// gather prepares a batch and appends it to the gathered ones. False: the reading must restart
	// after the gathered batches. A batch with an error is left out.
	gather(ctx context.Context, batch *chain.Batch) (bool, error)
	// gathered reports whether there are batches to commit, and whether they are enough for one
	// commit.
	gathered() (some, enough bool)
	// waits reports whether the gathered batches should wait for the next ones. Those that still
	// wait when the reading has ended are dropped: the next reading returns them again.
	waits(ended bool) bool
	// take turns the gathered batches into a commit. commit runs in another goroutine; ended is
	// called with its error, from the goroutine of the watch, and returns the effective error.
	take(ctx context.Context) (commit func() error, ended func(error) error)
}

// overlap reads, prepares and commits at the same time: while one commit runs, the next batches are
// read, matched, decoded and gathered for the following one. So one transaction stores all that
// waits, however many blocks it has, and a commit begins as soon as the previous one has ended.
//
// Batches gathered behind a failed commit are dropped with it: they were prepared on the assumption
// that it succeeds.
type overlap struct {
	stage   stage
	running chan error        // of the running commit; nil: none
	ended   func(error) error // of the same commit
	failed  error             // of a commit: batches prepared behind it are void
	left    bool              // the reading ended with waiting batches
}

// run commits a reading until it ends, until stop is closed, or until gather requests a restart.
// The batches gathered so far are committed, unless ctx is over. Every commit has ended when run
// returns.
func (o *overlap) run(ctx context.Context, r *reader, stop <-chan struct{}) error {
	for {
		some, enough := o.stage.gathered()
		if some && o.running == nil && !o.stage.waits(false) {
			o.start(ctx)
			continue
		}

		batches := r.batches
		if enough {
			batches = nil
		}

		select {
		case batch, ok := <-batches:
			if !ok {
				if o.left = some && r.err == nil && o.stage.waits(true); o.left {
					return o.wait()
				}

				return o.end(ctx, r.err)
			}

			if more, err := o.stage.gather(ctx, &batch); err != nil || !more {
				return o.end(ctx, err)
			}
		case err := <-o.running:
			if err := o.finish(err); err != nil {
				return err
			}
		case <-stop:
			return o.end(ctx, nil)
		}
	}
}

// start begins the commit of what was gathered.
func (o *overlap) start(ctx context.Context) {
	commit, ended := o.stage.take(ctx)
	running := make(chan error, 1)
	o.running, o.ended = running, ended
	go func() { running <- commit() }() // run returns only after it has received the error
}

// finish handles the end of the running commit.
func (o *overlap) finish(err error) error {
	ended := o.ended
	o.running, o.ended = nil, nil
	o.failed = ended(err)

	return o.failed
}

// wait waits for the running commit, and returns its error.
func (o *overlap) wait() error {
	if o.running == nil {
		return o.failed
	}

	return o.finish(<-o.running)
}

// flush commits the gathered batches and waits until they are stored.
func (o *overlap) flush(ctx context.Context) error {
	if err := o.wait(); err != nil {
		return err
	}

	if some, _ := o.stage.gathered(); !some {
		return nil
	}

	o.start(ctx)

	return o.wait()
}

// end flushes, and returns cause, unless a commit fails: then the batch that led to cause is void.
func (o *overlap) end(ctx context.Context, cause error) error {
	finish := o.flush
	if ctx.Err() != nil {
		finish = func(context.Context) error { return o.wait() }
	}

	if err := finish(ctx); err != nil {
		return err
	}

	return cause
}

// reader runs Source.Read in a separate goroutine.
type reader struct {
	batches chan chain.Batch // closed at the end
	err     error            // why it ended, once batches is closed; nil: the range is complete
	cancel  context.CancelFunc
}

// startReading begins a reading. The caller ends it.
func startReading(ctx context.Context, src Source, from, to uint64, f *chain.Filter) *reader {
	ctx, cancel := context.WithCancel(ctx)
	r := &reader{batches: make(chan chain.Batch), cancel: cancel}
	go func() {
		defer close(r.batches)
		for batch, err := range src.Read(ctx, from, to, f) {
			if err != nil {
				r.err = &readError{err}
				return
			}

			select {
			case r.batches <- batch:
			case <-ctx.Done():
				r.err = &readError{context.Cause(ctx)}
				return
			}
		}
	}()

	return r
}

// end stops the reading and returns when its goroutine has ended.
func (r *reader) end() {
	r.cancel()
	for range r.batches { // drained, so that the sender can end
	}
}
