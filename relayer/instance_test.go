package relayer

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

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
