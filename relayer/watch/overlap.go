package watch

import (
	"context"

	"github.com/fusion-prime/escrow-relayer/relayer/chain"
)

// stage is what a watch does with the batches of one reading. Its methods are called from one goroutine.
type stage interface {
	// gather prepares a batch and puts it behind what was gathered before. False: the reading is to
	// begin anew, behind what was gathered. A batch that it returns an error for is not gathered.
	gather(ctx context.Context, batch *chain.Batch) (bool, error)
	// gathered says whether there is something to commit, and whether it is so much that nothing more
	// is to be added.
	gathered() (some, enough bool)
	// waits says whether what was gathered is to wait for what comes behind it. If it still is when the
	// reading has ended, it is forgotten: the next one gives it again.
	waits(ended bool) bool
	// take hands over what was gathered, as a commit. commit runs in another goroutine; ended is
	// called with its error, from the goroutine of the watch, and returns the error that counts.
	take(ctx context.Context) (commit func() error, ended func(error) error)
}

// overlap reads, prepares and commits at the same time: while one commit runs, what comes next is
// read, matched, decoded and gathered for the commit after it. So what was waiting is stored by one
// transaction, however many blocks it has, and a commit begins as soon as the one before it ended.
//
// What was gathered behind a commit that fails is thrown away with it: it was prepared on the guess
// that the commit succeeds.
type overlap struct {
	stage   stage
	running chan error        // of the commit that runs; nil: none does
	ended   func(error) error // of the same commit
	failed  error             // of a commit: nothing that was prepared behind it is stored
	unread  error             // why the reading ended before its last block; nil: it did not
	left    bool              // the reading ended with something that waits
}

// run commits what a reading gives until it ends, until stop is closed, or until gather wants to
// begin anew. What was gathered until then is committed, unless ctx is over. No commit runs when
// run returns.
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

				o.unread = r.err

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
	go func() { running <- commit() }() // run does not return before it has taken the error
}

// finish takes in how the running commit ended.
func (o *overlap) finish(err error) error {
	ended := o.ended
	o.running, o.ended = nil, nil
	o.failed = ended(err)

	return o.failed
}

// idle says whether everything that was gathered is stored.
func (o *overlap) idle() bool {
	some, _ := o.stage.gathered()
	return !some && o.running == nil && o.failed == nil
}

// wait returns when no commit runs, with the error of one that failed.
func (o *overlap) wait() error {
	if o.running == nil {
		return o.failed
	}

	return o.finish(<-o.running)
}

// flush commits what was gathered and waits until it is stored.
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

// end flushes, and returns cause unless a commit fails: then what cause says was seen behind
// something that is void.
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

// reader is Source.Read in a goroutine of its own.
type reader struct {
	batches chan chain.Batch // closed at the end
	err     error            // why it ended, once batches is closed; nil: everything was read
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
	for range r.batches { // what was read is not wanted
	}
}
