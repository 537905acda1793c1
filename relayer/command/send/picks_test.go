package send

import (
	"math/big"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

// What is under way is looked up by escrow, also before the table is analyzed: a launch of 26 commands reads no more
// while 1,500 are under way.
func TestPicksReadTheirEscrows(t *testing.T) {
	t.Parallel()
	db, read := testpg.Counted(t, testpg.New(t))
	for _, statement := range []string{
		`insert into factories (chain_id, start_block, address, id) select 1, 1, bytes('0x' || repeat('fa', 20)), 1`,
		`insert into commands (chain_id, command_id, sender, kind, escrow, effect, requester, message, max_fee, expires_at, state, nonce)
		 select 1, '0x' || lpad(to_hex(n), 64, '0'), 'sender ' || n % 40, 'approve', '0x' || lpad(to_hex(n), 40, '0'), 'approve', 'x',
		        json_build_object('factory', '0x' || repeat('fa', 20)), 1, now() + interval '1 hour', case when n <= 1500 then 'sent' else 'accepted' end,
		        case when n <= 1500 then n end
		   from generate_series(1, 2560) n`,
		`insert into command_claims select chain_id, escrow, effect, command_id from commands`,
	} {
		_, err := db.Exec(t.Context(), statement)
		require.NoError(t, err)
	}

	var ids []string
	require.NoError(t, db.QueryRow(t.Context(),
		`select array_agg(command_id) from commands where sender = 'sender 1' and state = 'accepted'`).Scan(&ids))
	before := read("commands")
	rows, _ := db.Query(t.Context(), lockPicks, pgx.StrictNamedArgs{"chain": 1, "sender": "sender 1", "ids": ids})
	picked, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Len(t, picked, len(ids))
	require.Less(t, read("commands")-before, 10*len(ids))
}

// Who follows a sender without its key has no limits: what its commands may cost is what they say.
func TestBudgetWithoutLimits(t *testing.T) {
	own := big.NewInt(7)
	require.Equal(t, own, (&Limits{}).budget(own))
	require.Equal(t, big.NewInt(5), (&Limits{MaxFee: big.NewInt(5)}).budget(own))
}
