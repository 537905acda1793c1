package fleet

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// Once is one reading of Run, where the registry was counted so long ago.
func (r *Reader) Once(ctx context.Context, counted time.Duration) (next Reading, err error) {
	r.countedAt = time.Now().Add(-counted)
	err = r.read(ctx, &next)

	return next, err
}

// asked is a database that refuses, or hangs until the context of a call ends.
type asked struct {
	at    []time.Duration
	begun time.Time
	hangs bool
}

func (a *asked) BeginTx(ctx context.Context, _ pgx.TxOptions) (pgx.Tx, error) {
	a.at = append(a.at, time.Since(a.begun))
	if a.hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}

	return nil, errors.New("refused")
}

// running runs a reader for a while.
func running(t *testing.T, db *asked, during time.Duration, look func(*Reader)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		db.begun = time.Now()
		r := NewReader(db, 1)
		ctx, cancel := context.WithTimeout(t.Context(), during)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx, func(Reading) {}) }()
		look(r)
		require.NoError(t, <-done)
	})
}

func TestWhoLooksOnIsToldSooner(t *testing.T) {
	t.Parallel()
	const second = time.Second
	seldom, often := &asked{}, &asked{}
	running(t, seldom, 11*second, func(*Reader) {})
	require.Equal(t, []time.Duration{0, 5 * second, 10 * second}, seldom.at)
	running(t, often, 7*second, func(r *Reader) {
		for range 6 {
			time.Sleep(second) // of the bubble's clock
			require.ErrorContains(t, r.Look().Err, "refused")
		}
	})
	require.Equal(t, []time.Duration{0, 2 * second, 4 * second, 6 * second}, often.at, "whoever looks, and how often")
}

// Behind a database that hangs nobody waits.
func TestALookAtAHangingDatabase(t *testing.T) {
	t.Parallel()
	db := &asked{hangs: true}
	running(t, db, 18*time.Second, func(r *Reader) {
		begun := time.Now()
		require.Zero(t, r.Look())
		require.Zero(t, time.Since(begun))
		time.Sleep(readEvery + time.Second)
		require.ErrorContains(t, r.Look().Err, "the database has not answered within 5s")
	})
	require.Len(t, db.at, 3)
}
