package registry_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/registry"
)

// What was read without a layout is read again, and nothing else is.
func TestReadWith(t *testing.T) {
	s := begin(t)
	s.exec(`insert into cursors (chain_id, instance_id, next_block) values ($1, 'r0', 15)`, chain)
	s.exec(`insert into leadership (chain_id, start_block, next_block, verified_block, epoch) values ($1, 1, 1, 0, 1)`, chain)
	s.exec(`insert into factories (chain_id, id, address, start_block, retired_block) values ($1, 2, '\x0000000000000000000000000000000000000002', 5, 7)`, chain)
	reads := func(epoch int64, deployments, others string) []string {
		gained, err := registry.ReadWith(t.Context(), s.db, chain, epoch,
			registry.Layouts{Deployments: []string{deployments}, Others: []string{others}})
		require.NoError(t, err)

		return gained
	}
	state := func() (text string) {
		require.NoError(t, s.db.QueryRow(t.Context(), `
			select string_agg(coalesce(past_block || '-' || until_block, 'read'), ' ' order by id) || ' ' || min(verified_block) || ' ' || min(again_block)
			from factories f join leadership l using (chain_id) where chain_id = $1`, chain).Scan(&text))
		s.exec(`update factories set past_block = null, until_block = null`)
		s.exec(`update leadership set verified_block = 9, epoch = epoch + 1`)

		return text
	}
	require.Empty(t, reads(1, "a", "b"), "nothing was read yet")
	require.Equal(t, "read read 0 0", state())
	s.exec(`update leadership set next_block = 20`)
	require.Empty(t, reads(2, "a", "b"))
	require.Equal(t, "read read 9 0", state())
	require.Equal(t, []string{"c"}, reads(3, "a", "c"), "of the escrows")
	var generation int
	require.NoError(t, s.db.QueryRow(t.Context(), `select generation from cursors`).Scan(&generation))
	require.Equal(t, 1, generation, "what owners have read without it is void")
	require.Equal(t, "read read 0 19", state())
	require.Equal(t, []string{"d"}, reads(4, "d", "c"), "of the factories, also of a retired one")
	require.Equal(t, "1-20 5-7 9 19", state())
	require.Equal(t, []string{"a"}, reads(5, "a", "c"), "it was taken away meanwhile")
	require.Equal(t, "1-20 5-7 9 19", state())
	s.exec(`update leadership set epoch = epoch + 1`)
	require.Equal(t, []string{"a", "c"}, reads(7, "a", "c"), "a leader of an older release tells nothing")
	require.Equal(t, "1-20 5-7 9 19", state())
	s.exec(`update factories set past_block = 3, until_block = 15 where id = 1`)
	require.Equal(t, []string{"d"}, reads(8, "d", "c"), "while a past is read that began when less had been read")
	require.Equal(t, "1-20 5-7 9 19", state())

	// An owner with fewer of them stores nothing from then on, also while the next term begins; one with others goes on.
	for _, ago := range []int{0, 1} {
		s.exec(`update leadership set read_epoch = epoch - $1::integer`, ago)
		for knows, lacks := range map[string][]string{"d": {"c"}, "c": {"d"}, "e": {}} {
			lacking, err := registry.Lacking(t.Context(), s.db, chain, registry.Layouts{Deployments: []string{knows}})
			require.NoError(t, err)
			require.Equal(t, lacks, lacking, "%s, %d terms ago", knows, ago)
		}
	}

	lacking, err := registry.Lacking(t.Context(), s.db, chain,
		registry.Layouts{Deployments: []string{"d"}, Others: []string{"c"}})
	require.NoError(t, err)
	require.Empty(t, lacking)
	_, err = registry.ReadWith(t.Context(), s.db, chain, 6, registry.Layouts{})
	require.ErrorIs(t, err, registry.ErrUnknown)
}
