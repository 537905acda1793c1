package database

import (
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testfleet"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// A statement of a rollback is silent for longer than a connection may be: it takes as long as it takes,
// and later statements on the same connection have the usual limit. (In an instance: 35 s.)
func TestARollbackMayTakeLongerThanAConnectionIsSilent(t *testing.T) {
	t.Parallel()
	const chain, me = 31337, "r0"
	f := testfleet.New(t, chain)
	f.Alone(me, 1, "0xfac")
	db, err := Open(t.Context(), settings(f.URL))
	require.NoError(t, err)
	t.Cleanup(db.Close)
	db.sockets.silence = 2 * time.Second
	_, err = db.Pool.Exec(t.Context(), `select pg_sleep(60)`)
	require.Error(t, err, "what is no rollback")

	last := common.Hash{1}
	f.Exec(`update cursors set next_block = 9, block_hash = $1`, last.Hex())
	f.Exec(`update leadership set next_block = 9, block_hash = $1`, last.Hex())
	f.Exec(`insert into chain_blocks values ($1, 8, $2)`, chain, last.Hex())
	f.Exec(`create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(5); return null; end $$`)
	f.Exec(`create trigger slow before delete on chain_blocks for each statement execute function slow()`)
	led := ledger.New(ledger.Config{DB: db.Pool, ChainID: chain, InstanceID: me,
		EventNames: []string{"EscrowDeployed"}, Publishes: func(string) bool { return true }})
	rolled, err := led.Rollback(t.Context(), ledger.Position{Next: 9, Hash: last}, ledger.Position{Next: 1})
	require.NoError(t, err)
	require.True(t, rolled.Done)
	_, err = db.Pool.Exec(t.Context(), `select pg_sleep(60)`)
	require.Error(t, err, "the limit is back")
}
