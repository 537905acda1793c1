package partition

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

// queue adds a row to the outbox and returns its seq.
func queue(t *testing.T, pool *pgxpool.Pool, slot int16) (seq int64) {
	err := pool.QueryRow(t.Context(), `
		insert into outbox (chain_id, block_number, log_index, slot, escrow, event_type)
			values ($1, 1, 1, $2, '', 'Approved') returning seq`,
		chain, slot).Scan(&seq)
	require.NoError(t, err)

	return seq
}

// doubts returns the lowest and the highest doubt of all slots.
func doubts(t *testing.T, pool *pgxpool.Pool) (low, high int64) {
	require.NoError(t, pool.QueryRow(t.Context(),
		`select min(doubt_seq), max(doubt_seq) from slot_ownership where chain_id = $1`, chain).Scan(&low, &high))
	return low, high
}

// Of slots that were released everything is known. Of those that were claimed from the dead, and of
// those of a former life, any row that is there may have been published.
func TestWhoeverDiesLeavesDoubt(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	a := born(t, url, pool, "a", 0, 1, nil)
	steps(t, a)
	queue(t, pool, 1)
	require.NoError(t, a.Release(t.Context(), nil))
	require.NoError(t, a.Leave(t.Context()))
	a.die(t)
	b := born(t, url, pool, "b", 0, 1, func(c *Config) { c.NewProcess = true })
	steps(t, b)
	low, high := doubts(t, pool)
	require.Zero(t, low)
	require.Zero(t, high)

	seq := queue(t, pool, 2)
	b.die(t)
	c := born(t, url, pool, "c", 0, 1, nil)
	steps(t, c)
	low, high = doubts(t, pool)
	require.Equal(t, seq, low)
	require.Equal(t, seq, high)

	seq = queue(t, pool, 3)
	c.die(t)
	again := born(t, url, pool, "c", 0, 1, nil) // the same process: it knows
	again.die(t)
	low, _ = doubts(t, pool)
	require.Less(t, low, seq)
	born(t, url, pool, "c", 0, 1, func(c *Config) { c.NewProcess = true })
	low, high = doubts(t, pool)
	require.Equal(t, seq, low)
	require.Equal(t, seq, high)
}
