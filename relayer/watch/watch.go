package watch

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"go.opentelemetry.io/otel/trace"

	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// Source is the watches' view of the chain.
type Source interface {
	View() chain.View
	Changed() <-chan struct{}
	Read(ctx context.Context, from, to uint64, f *chain.Filter) iter.Seq2[chain.Batch, error]
	Canonical(ctx context.Context, n uint64, known common.Hash) (chain.Header, error)
	Branch(ctx context.Context, tip chain.Header, numbers ...uint64) ([]chain.Header, error)
	CallBatch(ctx context.Context, requests ...chain.Request) ([]chain.Answer, error)
}

// Config is common to both watches. All fields are required, except Tracer and Stored.
type Config struct {
	Source  Source
	Ledger  *ledger.Ledger
	ABI     *contract.ABI
	Filters *Filters
	Log     *slog.Logger
	Metrics *Metrics
	Tracer  trace.Tracer // nil: untraced
	Latest  bool         // FINALITY=latest: published blocks are expected to be reorganised
	Stored  func(error)  // gets the outcome of each commit, nil where there is none to make; may be nil
}

// reorgError means that the block before a position, of a cursor or a remembered one, was orphaned.
type reorgError struct{ stale ledger.Position }

func (e *reorgError) Error() string {
	return fmt.Sprintf("processed block %d (%s) is not canonical", e.stale.Next-1, e.stale.Hash)
}

// storeError means that the database refused a commit, or failed to return a position: the nodes
// are not to blame.
type storeError struct{ err error }

func (e *storeError) Error() string { return e.err.Error() }
func (e *storeError) Unwrap() error { return e.err }

// unstored returns err as a storeError, unless it means that another writer was first, or names the
// stored branch.
func unstored(err error) error {
	switch branch := new(ledger.BranchError); {
	case err == nil, errors.Is(err, ledger.ErrMoved), errors.Is(err, ledger.ErrFenced), errors.As(err, &branch),
		errors.Is(err, context.Canceled):
		return err
	}

	return &storeError{err}
}

// readError means that the chain could not be read: what is known about the escrows stays valid.
type readError struct{ err error }

func (e *readError) Error() string { return e.err.Error() }
func (e *readError) Unwrap() error { return e.err }

// retry returns the delays of a loop that retries for ever. Each is up to half as long again as
// MaxInterval: with the 5 s that a request to a dead endpoint takes, less than 10 s.
func retry() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = 100 * time.Millisecond
	b.MaxInterval = 3 * time.Second
	b.MaxElapsedTime = 0

	return b
}

// behindPause bounds the pause before retrying a block that the endpoint has announced but cannot
// return: its URL may hide several machines, and the next one to answer may have the block.
const behindPause = 500 * time.Millisecond

// delay is how long to wait after an error of a reading that began then. The duration of the
// reading counts: it may have waited for an answer.
func delay(delays *backoff.ExponentialBackOff, err error, began time.Time) time.Duration {
	next := delays.NextBackOff()
	if errors.Is(err, chain.ErrBehind) {
		next = min(next, behindPause)
	}

	return next - time.Since(began)
}

// unread reports whether an error means that the chain could not be read, perhaps for hours: the
// escrows and the position stay valid.
func unread(err error) bool {
	is := new(readError)
	return errors.As(err, &is) && !errors.Is(err, chain.ErrDisagree)
}

// pause waits for a delay, or until the context ends or wake fires.
func pause(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-wake:
	}
}

// decode turns the selected logs, of factories or of escrows, into events of a factory's escrows. An escrow announces
// none, were it a factory. What the ABI does not decode is counted here, and a finding of the second reading.
func decode(abi *contract.ABI, logs []types.Log, factories bool,
	want func(*types.Log) (factory common.Address, ours bool), m *Metrics) ([]contract.Event, error) {
	var events []contract.Event
	for i := range logs {
		l := &logs[i]
		factory, ours := want(l)
		if !ours {
			continue
		}

		e, err := abi.Decode(l)
		if errors.Is(err, contract.ErrForeign) || err == nil && e.Name == contract.Deployed && !factories {
			m.foreign.Inc()
			continue
		}

		if err == nil {
			err = e.Complete()
		}

		if err != nil {
			return nil, err
		}

		e.Factory = factory
		events = append(events, e)
	}

	return events, nil
}

// deployments are the wanted EscrowDeployed among a batch's logs of factories.
func deployments(cfg *SlotConfig, batch *chain.Batch, factory func(*types.Log) bool,
	want func(*contract.Event) bool) ([]contract.Event, error) {
	events, err := decode(cfg.ABI, batch.Logs, true,
		func(l *types.Log) (common.Address, bool) { return l.Address, factory(l) }, cfg.Metrics)

	return slices.DeleteFunc(events, func(e contract.Event) bool { return e.Name != contract.Deployed || !want(&e) }), err
}

// shown reports whether there is a deployment at a place.
func shown(deployed []contract.Event, block int64, index int32) bool {
	return slices.ContainsFunc(deployed, func(e contract.Event) bool {
		return int64(e.BlockNumber) == block && int64(e.LogIndex) == int64(index)
	})
}

// checked verifies that the block before a position is still on the chain; a reorgError proves that
// it is not.
func checked(ctx context.Context, src Source, at ledger.Position) error {
	_, stands, err := instead(ctx, src, at)
	if err == nil && !stands {
		return &reorgError{at}
	}

	return err
}

// instead returns the chain's block at the height of the one before a position, and whether it is
// the same.
func instead(ctx context.Context, src Source, at ledger.Position) (h chain.Header, stands bool, err error) {
	if at.Hash == (common.Hash{}) || at.Next == 0 {
		return h, true, nil
	}

	h, err = src.Canonical(ctx, uint64(at.Next-1), at.Hash)

	return h, h.Hash == at.Hash, err
}
