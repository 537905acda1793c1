package retention_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/retention"
)

// insertCommand stores an answered command whose nonce is its number, and the parts that may follow it.
const insertCommand = `
	with c as (
		insert into commands (chain_id, command_id, sender, kind, escrow, effect, requester, message, max_fee, expires_at,
			state, code, nonce, gas, reserve_day, tx_hash, block_number, block_hash, reference, answered_at)
		select $1, '0x' || lpad(n::text, 64, '0'), '0x' || repeat('a', 40), 'approve', '0x' || lpad(n::text, 40, '0'), 'settle',
		       requester, '{"factory":"0x00000000000000000000000000000000000000FA"}', 9, now() + expires, state, code,
		       nonce, 9, (now() at time zone 'utc')::date + day, case when state in ('done', 'voided') then '0x' || repeat('b', 64) end, block, '0x' || repeat('c', 64), name,
		       case when state <> 'sent' then now() + answered end
		  from (select $2::int as n, $3::text as name, $4::text as requester, $5::text as state, $6::text as code, $7::bigint as nonce,
		               $8::interval as expires, $9::interval as answered, $10::int as day, $11::bigint as block) x
		returning *),
	k as (insert into command_claims (chain_id, escrow, effect, command_id) select chain_id, escrow, effect, command_id from c)
	insert into command_attempts (chain_id, sender, nonce, attempt, command_id, purpose, tx_hash, raw, gas, fee_cap, epoch, head)
	select chain_id, sender, nonce, 1, command_id, 'call', command_id, '', 1, 1, 1, 1 from c where nonce is not null`

// Answered commands leave when nothing counts on them any more, with their claims and attempts; what an audit compares
// of those with a nonce stays.
func TestAnsweredCommandsLeave(t *testing.T) {
	t.Parallel()
	f := setup(t) // the oldest block that is remembered is 50
	const old, young, yesterday, today = -2 * time.Hour, -time.Minute, -1, 0
	type stored struct {
		requester, state, code string
		nonce                  any
		expires, answered      time.Duration
		day, block             any
	}
	all := map[string]stored{
		"done":            {"x", "done", "", 1, old, old, yesterday, 50},
		"voided":          {"x", "voided", "expired", 2, old, old, yesterday, 7},
		"refused":         {"x", "refused", "conflict", nil, old, old, nil, nil},
		"keeper long ago": {"keeper", "refused", "would_revert", nil, old, -61 * 24 * time.Hour, nil, nil},
		// What stays:
		"open":            {"x", "sent", "", 3, old, old, yesterday, nil},
		"young":           {"x", "done", "", 4, old, young, yesterday, 7},
		"not expired":     {"x", "done", "", 5, young, old, yesterday, 7},
		"may be reopened": {"x", "done", "", 6, old, old, yesterday, 51},
		"today's budget":  {"keeper", "done", "", 7, old, old, today, 7},
		"unpublished":     {"x", "refused", "conflict", nil, old, old, nil, nil},
		"keeper's pause":  {"keeper", "refused", "would_revert", nil, old, -59 * 24 * time.Hour, nil, nil},
	}
	n := 0
	insert := func(chain int64, name string, c stored) {
		n++
		f.Exec(insertCommand, chain, n, name, c.requester, c.state, c.code, c.nonce, c.expires, c.answered, c.day, c.block)
	}
	for name, c := range all {
		insert(chain, name, c)
	}

	insert(chain+1, "another chain", stored{"x", "done", "", 8, old, old, yesterday, 7})
	f.Exec(`insert into replies (chain_id, command_id, state, code, body)
		select chain_id, command_id, state, code, '{}' from commands where reference = 'unpublished'`)

	clean := func(age time.Duration) int64 {
		r, err := retention.Once(t.Context(), retention.Config{DB: f.DB, ChainID: chain, Events: age})
		require.NoError(t, err)

		return r.Commands
	}
	require.Zero(t, clean(0), "for ever, unless it is set")
	require.EqualValues(t, 4, clean(time.Hour))
	require.Zero(t, clean(time.Hour))
	left := []string{"another chain", "keeper's pause", "may be reopened", "not expired", "open", "today's budget",
		"unpublished", "young"}
	require.Equal(t, left, f.Column(`select reference from commands order by 1`))
	require.Equal(t, left, f.Column(`select reference from commands join command_claims using (command_id) order by 1`))
	require.Equal(t, []string{"3", "4", "5", "6", "7", "8"}, f.Column(`select nonce::text from command_attempts order by 1`))
	require.Equal(t, []string{"1 done", "2 voided"}, f.Column(`select nonce || ' ' || state from used_nonces order by 1`))
	require.Equal(t, []string{"true"}, f.Column(`select distinct (hex(sender) = '0x' || repeat('a', 40)
		and hex(factory) = '0x00000000000000000000000000000000000000fa' and hex(tx_hash) = '0x' || repeat('b', 64)
		and hex(block_hash) = '0x' || repeat('c', 64) and hex(escrow) like '0x000000%' and kind = 'approve')::text from used_nonces`))

	f.Exec(`delete from replies`)
	f.Exec(`update commands set reserve_day = reserve_day - 1 where reference like 'today%'`)
	require.EqualValues(t, 2, clean(time.Hour))
}
