package watch

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain"
)

// fakeStage gathers block numbers; its commits wait until the test says how they end.
type fakeStage struct {
	line     *overlap
	waitsFor uint64 // gathering this block waits until everything before it is stored
	quiet    uint64 // a group that begins with this block or one above it waits
	most     int
	pending  []uint64
	began    chan []uint64
	outcomes chan error
	stored   [][]uint64
}

func (f *fakeStage) gathered() (some, enough bool) {
	return len(f.pending) > 0, len(f.pending) >= f.most
}

func (f *fakeStage) waits(bool) bool {
	return f.quiet > 0 && f.pending[0] >= f.quiet && len(f.pending) < f.most
}

func (f *fakeStage) gather(ctx context.Context, b *chain.Batch) (bool, error) {
	if b.From == f.waitsFor {
		if err := f.line.flush(ctx); err != nil {
			return false, err
		}
	}

	f.pending = append(f.pending, b.From)

	return true, nil
}

func (f *fakeStage) take(context.Context) (commit func() error, landed func(error) error) {
	blocks := f.pending
	f.pending = nil
	commit = func() error {
		f.began <- blocks
		return <-f.outcomes
	}

	return commit, func(err error) error {
		if err == nil {
			f.stored = append(f.stored, blocks)
		}

		return err
	}
}

// overlapping runs a stage; give hands it a block, and wait returns what run returned.
func overlapping(t *testing.T, f *fakeStage) (give func(uint64), finish func(), wait func() error) {
	f.began, f.outcomes = make(chan []uint64, 8), make(chan error)
	f.line = &overlap{stage: f}
	r := &reader{batches: make(chan chain.Batch)}
	result := make(chan error, 1)
	go func() { result <- f.line.run(t.Context(), r, nil) }()

	give = func(n uint64) {
		select {
		case r.batches <- chain.Batch{From: n, To: n}:
		case <-time.After(time.Minute):
			require.FailNow(t, "nobody takes the block", "%d", n)
		}
	}

	return give, func() { close(r.batches) }, func() error { return <-result }
}

func TestWhatComesDuringACommitIsStoredByTheNext(t *testing.T) {
	f := &fakeStage{most: 2}
	give, finish, wait := overlapping(t, f)
	give(1)
	require.Equal(t, []uint64{1}, <-f.began, "nothing else is waited for")
	give(2)
	give(3)
	go func() {
		give(4) // there is enough: it is not taken before these are
		finish()
	}()
	f.outcomes <- nil
	require.Equal(t, []uint64{2, 3}, <-f.began)
	f.outcomes <- nil
	require.Equal(t, []uint64{4}, <-f.began)
	f.outcomes <- nil
	require.NoError(t, wait())
	require.Equal(t, [][]uint64{{1}, {2, 3}, {4}}, f.stored)
}

func TestWhatIsBehindAFailedCommitIsNotCommitted(t *testing.T) {
	moved := errors.New("moved")
	for name, waits := range map[string]uint64{"while reading": 0, "while a batch waits for what is before it": 3} {
		t.Run(name, func(t *testing.T) {
			f := &fakeStage{most: 10, waitsFor: waits}
			give, _, wait := overlapping(t, f)
			give(1)
			<-f.began
			give(2)
			give(3)
			f.outcomes <- moved
			require.ErrorIs(t, wait(), moved)
			require.Empty(t, f.began)
			require.Empty(t, f.stored)
		})
	}
}

// What waits is stored with what comes behind it, or where something has to be stored before; at the
// end of a reading it is left to the next one.
func TestWhatWaits(t *testing.T) {
	t.Run("is stored when it is enough", func(t *testing.T) {
		f := &fakeStage{most: 2, quiet: 1}
		give, finish, wait := overlapping(t, f)
		give(1)
		give(2)
		require.Equal(t, []uint64{1, 2}, <-f.began)
		f.outcomes <- nil
		finish()
		require.NoError(t, wait())
		require.False(t, f.line.left)
	})

	t.Run("is stored before what needs it", func(t *testing.T) {
		f := &fakeStage{most: 10, quiet: 1, waitsFor: 3}
		give, finish, wait := overlapping(t, f)
		give(1)
		give(2)
		go give(3)
		require.Equal(t, []uint64{1, 2}, <-f.began)
		f.outcomes <- nil
		finish()
		require.NoError(t, wait())
		require.Equal(t, [][]uint64{{1, 2}}, f.stored)
		require.True(t, f.line.left, "block 3")
	})

	t.Run("is left at the end, behind a commit that is waited for", func(t *testing.T) {
		f := &fakeStage{most: 10, quiet: 2}
		give, finish, wait := overlapping(t, f)
		give(1)
		require.Equal(t, []uint64{1}, <-f.began)
		give(2)
		finish()
		f.outcomes <- nil
		require.NoError(t, wait())
		require.Equal(t, [][]uint64{{1}}, f.stored)
		require.True(t, f.line.left)
	})
}
