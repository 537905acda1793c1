package watch

import (
	"context"
	"time"

	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/source"
)

// stage is what a watch does with the batches of one reading. Its methods are called from one goroutine.
type stage interface {
	// gather prepares a batch and puts it behind what was gathered before. False: the reading is to
	// begin anew, behind what was gathered. A batch that it returns an error for is not gathered.
	gather(ctx context.Context, batch *source.Batch) (bool, error)
	// gathered says whether there is something to commit, and whether it is so much that nothing more
	// is to be added.
	gathered() (some, enough bool)
	// waits says whether what was gathered is to wait for what comes behind it. If it still is when the
	// reading has ended, it is forgotten: the next one gives it again.
	waits(ended bool) bool
	// take hands over what was gathered, as a commit. What it returns is run in another goroutine;
	// landed is called with its error, from the watch's own.
	take(ctx context.Context) (commit func() error, landed func(error) error)
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
	landed  func(error) error // of the same commit
	failed  error             // of a commit: nothing that was prepared behind it is stored
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

				return o.end(ctx, r.err)
			}

			if more, err := o.stage.gather(ctx, &batch); err != nil || !more {
				return o.end(ctx, err)
			}
		case err := <-o.running:
			if err := o.land(err); err != nil {
				return err
			}
		case <-stop:
			return o.end(ctx, nil)
		}
	}
}

// start begins the commit of what was gathered.
func (o *overlap) start(ctx context.Context) {
	commit, landed := o.stage.take(ctx)
	running := make(chan error, 1)
	o.running, o.landed = running, landed
	go func() { running <- commit() }() // run does not return before it has taken the error
}

// land takes in how a commit ended.
func (o *overlap) land(err error) error {
	landed := o.landed
	o.running, o.landed = nil, nil
	o.failed = landed(err)

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

	return o.land(<-o.running)
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
	batches chan source.Batch // closed at the end
	err     error             // why it ended, once batches is closed; nil: everything was read
	cancel  context.CancelFunc
}

// read begins a reading. The caller ends it.
func read(ctx context.Context, src Source, from, to uint64, f *source.Filter) *reader {
	ctx, cancel := context.WithCancel(ctx)
	r := &reader{batches: make(chan source.Batch), cancel: cancel}
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

// What one commit takes together. A reading of final blocks brings some 1,500 events at a time, a
// reading block by block one block.
const (
	enoughEvents = 2048
	enoughBlocks = 128 // readings
)

// group is consecutive batches that are stored by one commit.
type group struct {
	from, to ledger.Position
	inside   []ledger.Block // the last block of each batch but the newest
	time     uint64         // of the last block
	batches  int
	logs     int
	silent   bool      // each of them is quiet
	since    time.Time // when the first batch was begun to be waited for
	read     time.Time // when it came
}

// add puts a batch behind those that are there, which was waited for since one moment and came at
// another. The first begins at a position.
func (g *group) add(at ledger.Position, b *source.Batch, since, read time.Time) {
	if g.batches == 0 {
		g.from, g.since, g.read, g.silent = at, since, read, true
	} else {
		g.inside = append(g.inside, ledger.Block{Number: g.to.Next - 1, Hash: g.to.Hash})
	}

	g.to, g.time = g.from.To(int64(b.To)+1, b.Last.Hash), b.Last.Time
	g.batches++
	g.logs += len(b.Logs)
	g.silent = g.silent && isQuiet(b)
}
