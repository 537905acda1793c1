package relayer

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

func TestSince(t *testing.T) {
	t.Parallel()
	var s since
	at := time.Unix(1_700_000_000, 0)
	gone := errors.New("gone")
	require.Zero(t, s.of(nil, at))
	require.Equal(t, at, s.of(gone, at))
	require.Equal(t, at, s.of(gone, at.Add(time.Minute)), "since it began")
	require.Zero(t, s.of(nil, at.Add(2*time.Minute)))
	require.Equal(t, at.Add(3*time.Minute), s.of(gone, at.Add(3*time.Minute)), "anew")
}

// What refuses an instance that is not part of the fleet is the database's; a lost connection is the session's.
func TestRefusedJoiningIsTheDatabases(t *testing.T) {
	t.Parallel()
	var c condition
	require.NoError(t, c.verdict())
	c.lastLoss.set(errNoSession)
	require.NoError(t, c.verdict())
	c.lastLoss.set(fmt.Errorf("join: %w", &pgconn.PgError{Code: "25006", Message: "it is read-only"}))
	require.ErrorContains(t, c.verdict(), "it is read-only")
}
