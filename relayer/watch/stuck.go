package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// stuckAfter is how many consecutive commits are refused at one block before the watch reports it:
// the first may be a coincidence, and each retry restarts from the database's position.
const stuckAfter = 3

// StuckError means that blocks cannot be stored: the database answers but refuses the commit at the
// same block repeatedly. The nodes are not at fault, and another instance of the same version meets
// the same.
type StuckError struct {
	Block int64 // first block of the commit
	Times int   // consecutive refusals
	Err   error
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("the commit from block %d on is refused, %d times in a row: %s", e.Block, e.Times, e.Err)
}

func (e *StuckError) Unwrap() error { return e.Err }

// refusals counts the consecutive commits refused at one block. stuck may be read from any
// goroutine; the rest belongs to the goroutine of the watch.
type refusals struct {
	block int64
	times int
	stuck atomic.Pointer[StuckError] // nil: commits succeed, or have failed too rarely
}

// Stuck returns why the watch cannot store the next blocks, a *StuckError; nil: it can. It may be
// called from any goroutine.
func (w *watcher) Stuck() *StuckError { return w.refused.stuck.Load() }

// accepted resets the count after a successful commit, or when there is no commit to make.
func (w *watcher) accepted() {
	w.refused.times = 0
	w.refused.stuck.Store(nil)
	if w.common.Stored != nil {
		w.common.Stored(nil)
	}
}

// refuse counts a failed commit, and returns its error, as a StuckError once there are enough.
func (w *watcher) refuse(ctx context.Context, from ledger.Position, err error) error {
	r := &w.refused
	if ctx.Err() != nil || !refusal(err) {
		return err
	}

	if r.times == 0 || r.block != from.Next {
		r.block, r.times = from.Next, 0
	}

	if r.times++; r.times < stuckAfter {
		return err
	}

	stuck := &StuckError{Block: r.block, Times: r.times, Err: err}
	if r.stuck.Swap(stuck) == nil {
		w.common.Log.ErrorContext(ctx, "commit refused again and again: nothing behind this block is stored",
			slog.Int64("block", r.block), slog.Int("times", r.times), slog.Any("err", err))
	}

	return stuck
}

// refusal reports whether an error concerns what was to be stored. A broken connection, a server
// that stops, recovers or lacks room, and a conflict with another transaction do not: the next
// attempt may succeed.
func refusal(err error) bool {
	if refused, is := errors.AsType[*pgconn.PgError](err); is {
		switch refused.Code[:2] {
		case "08", "25", "40", "53", "55", "57", "58":
			return refused.Code == queryCanceled // it exceeds the statement timeout each time
		}

		return true
	}

	reorg, branch := new(reorgError), new(ledger.BranchError)
	_, offline := errors.AsType[net.Error](err)
	_, unconnected := errors.AsType[*pgconn.ConnectError](err)

	return !offline && !unconnected && !pgconn.SafeToRetry(err) && !errors.As(err, &reorg) &&
		!errors.As(err, &branch) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) &&
		!errors.Is(err, net.ErrClosed) && !errors.Is(err, ledger.ErrFenced) && !unread(err) &&
		!errors.As(err, new(*readError)) && !errors.Is(err, context.Canceled) &&
		!errors.Is(err, context.DeadlineExceeded)
}

// queryCanceled is the SQLSTATE of a statement beyond its timeout.
const queryCanceled = "57014"
