package fleet_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// Without commands nothing is said of them, in no form.
func TestFleetWithoutCommands(t *testing.T) {
	w := setup(t)
	w.chainRow("a", 0, time.Hour)
	w.live("a", 0, 1, 1005).Lead()
	f, err := fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.False(t, f.HasCommands())
	text, err := json.Marshal(f)
	require.NoError(t, err)
	for _, word := range []string{`"senders"`, `"commands"`, `"replies"`} {
		require.NotContains(t, string(text), word)
	}
}

func (w *world) sender(address byte, name, state string, lock int64) string {
	text := "0x" + string([]byte{address, address}) + "00000000000000000000000000000000000000"
	w.Exec(`insert into senders (chain_id, address, name, instance_id, state, reason, lock_key, max_in_flight,
		max_fee, day_fees, day_value, next_nonce, first_nonce, balance, checked_block)
		values ($1, $2, $3, 'a', $4::text, case $4::text when 'active' then null else 'because' end, $5, 16,
			100, 1000, 0, 7, 5, 999, 42)`,
		chain, text, name, state, lock)

	return text
}

func (w *world) command(sender string, id byte, state, code, age string, nonce any) {
	w.Exec(`insert into commands (chain_id, command_id, sender, kind, escrow, effect, requester, message,
		max_fee, expires_at, state, code, nonce, assigned_at, next_look, received_at)
		values ($1, '0x' || repeat($2::text, 64), $3, 'approve', '0x' || repeat('e', 40), $2::text, 'keeper', '{}',
			100, now() + interval '1 hour', $4, $5, $6, case when $6::bigint is null and $5 <> 'signer' then null else now() - $7::interval end,
			now() - $7::interval, now() - $7::interval)`,
		chain, string(id), sender, state, code, nonce, age)
}

func TestSenders(t *testing.T) {
	w := setup(t)
	w.chainRow("a", 0, time.Hour)
	w.live("a", 0, 1, 1005).Lead()
	w.Session(11)
	busy := w.sender('1', "arbiter", "active", 11)
	halted := w.sender('2', "arbiter", "halted", 22) // of another key under the same name
	w.sender('3', "gone", "active", 33)
	w.Exec(`update senders set updated_at = now() - interval '2 hours', balance = 1000000 where name = 'gone'`)
	w.Exec(`update senders set spend_day = (now() at time zone 'utc')::date - 1, spent_fees = 5 where address = $1`, busy)
	w.Exec(`update senders set spend_day = (now() at time zone 'utc')::date, spent_fees = 6, balance = 1000
		where address = $1`, halted)

	w.command(busy, '1', "accepted", "signer", "6 minutes", nil)
	w.command(busy, '2', "sent", "underpriced", "40 minutes", 6)
	w.command(busy, '3', "accepted", "budget", "50 minutes", nil)
	w.command(busy, '4', "accepted", "balance", "50 minutes", nil)
	w.command(busy, '5', "accepted", "", "-50 minutes", nil)
	w.Exec(`insert into replies (chain_id, command_id, state, code, body, created_at)
		values ($1, '', 'done', '', '{}', now() - interval '4 minutes'),
			($1, '', 'done', '', '{}', now() - interval '3 minutes')`, chain)

	f, err := fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.True(t, f.HasCommands())
	require.Len(t, f.Senders, 2, "who has nothing to do and no owner is left out")
	s := f.Senders[0]
	require.Equal(t, busy, s.Address)
	require.True(t, s.Served)
	require.Equal(t, []int{1, 4, 1, 1, 1}, []int{s.InFlight, s.Waiting, s.Budget, s.Underpriced, s.Unfunded})
	require.InDelta(t, 2400, s.OldestAge.Seconds(), 60, "held ones wait for their reason")
	require.InDelta(t, 360, s.UnsignedAge.Seconds(), 60)
	require.Equal(t, "0", s.SpentFees, "of yesterday")
	require.True(t, s.Low())
	require.False(t, f.Senders[1].Served)
	require.Equal(t, "6", f.Senders[1].SpentFees)
	require.Equal(t, []string{"arbiter", halted}, []string{s.Label(), f.Senders[1].Label()}, "two series of one metric")
	require.False(t, f.Senders[1].Low(), "exactly ten commands")

	require.Len(t, f.Commands, 5)
	require.Equal(t, "accepted", f.Commands[0].State, "the newest first")
	require.Nil(t, f.Commands[0].Nonce)
	require.EqualValues(t, 6, *f.Commands[3].Nonce)
	require.EqualValues(t, 2, f.Replies.Messages)
	require.InDelta(t, 240, f.Replies.OldestAge.Seconds(), 60)
	require.Equal(t, []string{fleet.HaltedSender, fleet.UnsignedCommand, fleet.LowFees, fleet.SpentBudget,
		fleet.OldCommand, fleet.LowBalanceOf}, kinds(f.Problems))
	require.Contains(t, f.Problems[0].Text, "because")

	w.Exec(`update replies set created_at = now() - interval '6 minutes'`)
	f, err = fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.Contains(t, kinds(f.Problems), fleet.OldReplies)
}
