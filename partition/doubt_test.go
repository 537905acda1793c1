package partition

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

// Of slots that were released everything is known. Of those that were claimed from the dead, and of
// those of a former life, whatever was committed before may have been published.
func TestWhoeverDiesLeavesDoubt(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	doubted := func() (n int) { // slots whose doubt is new since the last call
		require.NoError(t, pool.QueryRow(t.Context(), `
			with before as (select slot, doubt from slot_ownership where chain_id = $1 and doubt is not null),
			clear as (update slot_ownership s set doubt = null from before b where s.chain_id = $1 and s.slot = b.slot)
			select count(*) from before where doubt between now() - interval '1 hour' and now()`, chain).Scan(&n))
		return n
	}
	a := born(t, url, pool, "a", 0, 1, nil)
	steps(t, a)
	require.NoError(t, a.Release(t.Context(), nil))
	require.NoError(t, a.Leave(t.Context()))
	a.die(t)
	b := born(t, url, pool, "b", 0, 1, func(c *Config) { c.NewProcess = true })
	steps(t, b)
	require.Zero(t, doubted())
	b.die(t)
	c := born(t, url, pool, "c", 0, 1, nil)
	steps(t, c)
	require.Equal(t, Slots, doubted())
	c.die(t)
	again := born(t, url, pool, "c", 0, 1, nil) // the same process: it knows
	again.die(t)
	require.Zero(t, doubted())
	born(t, url, pool, "c", 0, 1, func(c *Config) { c.NewProcess = true })
	require.Equal(t, Slots, doubted())
}
