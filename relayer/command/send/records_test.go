package send_test

import (
	"fmt"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

func text(a common.Address) string { return fmt.Sprintf("0x%x", a[:]) }

// register stores an escrow as the relayer's watches would.
func register(t *testing.T, db *pgxpool.Pool, chain int64, escrow, payer, payee common.Address, amount int64,
	required uint8, block int64) {
	t.Helper()
	hash := common.BytesToHash(escrow[:])
	_, err := db.Exec(t.Context(),
		`insert into escrows (chain_id, discovered_block_number, log_index, slot, address, tx_hash) values ($1, $2, 0, 0, $3, $4)`,
		chain, block, escrow[:], hash[:])
	require.NoError(t, err)
	_, err = db.Exec(t.Context(), `insert into records (chain_id, deployed_block, last_block, last_index, slot, status, last_type, approvals_required, escrow, payer, payee, last_tx, amount, release_time)
		values ($1, $2, $2, 0, 0, 1, 1, $3, $4, $5, $6, $7, $8, 0)`, chain, block, int16(required), escrow[:], payer[:], payee[:], hash[:], amount)
	require.NoError(t, err)
}

// record stores the state of an escrow as the relayer's watches would.
func record(t *testing.T, db *pgxpool.Pool, chain int64, escrow common.Address, status string,
	approvers ...common.Address) {
	t.Helper()
	all := []byte{}
	for _, a := range approvers {
		all = append(all, a[:]...)
	}

	number := map[string]int16{"created": 1, "approved": 2, "released": 3, "refunded": 4}[status]
	_, err := db.Exec(t.Context(),
		`update records set status = $3, approvers = $4, approvals = $5 where chain_id = $1 and escrow = $2`, chain,
		escrow[:], number, all, len(approvers))
	require.NoError(t, err)
}
