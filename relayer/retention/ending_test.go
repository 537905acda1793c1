package retention_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// Event.Ends is the rule. The database repeats it as numbers of event types: in the partial index by which retention
// finds what it may remove, and in retention's statement, which must say the same to use that index.
func TestTheDatabaseKnowsWhatEndsAnEscrow(t *testing.T) {
	t.Parallel()
	db := testpg.Pool(t)
	rows, _ := db.Query(t.Context(), `select id, name from event_types order by id`)
	var id int16
	var name string
	var ending []int16
	_, err := pgx.ForEachRow(rows, []any{&id, &name}, func() error {
		if e := (&contract.Event{Name: name}); e.Ends() {
			ending = append(ending, id)
		}

		return nil
	})
	require.NoError(t, err)
	require.Equal(t, []int16{5, 6}, ending)

	var index string
	require.NoError(t, db.QueryRow(t.Context(), `select pg_get_indexdef('events_ended'::regclass)`).Scan(&index))
	require.Contains(t, index, `WHERE (type = ANY (ARRAY[5, 6]))`)
}
