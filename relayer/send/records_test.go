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
func register(t *testing.T, db *pgxpool.Pool, chain int64, escrow, payer, payee common.Address, amount int64, required uint8, block int64) {
	t.Helper()
	_, err := db.Exec(t.Context(), `insert into escrow_registry (chain_id, address, slot, discovered_block_number, event_id, last_monitored_block, payer, payee, amount)
		values ($1, $2, 0, $3, 'e', $3, $4, $5, $6)`, chain, text(escrow), block, text(payer), text(payee), fmt.Sprint(amount))
	require.NoError(t, err)
	_, err = db.Exec(t.Context(), `insert into escrow_records (chain_id, escrow, slot, status, payer, payee, amount, release_time, approvals_required, last_event_id, last_event_type, last_event_block)
		values ($1, $2, 0, 'created', $3, $4, $5, 0, $6, 'e', 'EscrowDeployed', $7)`, chain, text(escrow), text(payer), text(payee), amount, required, block)
	require.NoError(t, err)
}

// record stores the state of an escrow as the relayer's watches would.
func record(t *testing.T, db *pgxpool.Pool, chain int64, escrow common.Address, status string, approvers ...common.Address) {
	t.Helper()
	texts := make([]string, len(approvers))
	for i, a := range approvers {
		texts[i] = text(a)
	}
	_, err := db.Exec(t.Context(), `update escrow_records set status = $3, approvers = $4, approvals = $5 where chain_id = $1 and escrow = $2`, chain, text(escrow), status, texts, len(texts))
	require.NoError(t, err)
}
