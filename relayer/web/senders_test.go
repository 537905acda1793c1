package web

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testfleet"
)

// commands gives the chain three senders, and commands in every state that a person may meet.
func (w *world) commands(session *testfleet.Session) {
	session.Lock(501, 502)
	w.Exec(`insert into senders (chain_id, address, name, instance_id, since, state, reason,
			lock_key, max_in_flight, max_fee, day_fees, day_value,
			next_nonce, first_nonce, balance, checked_block, spend_day, spent_fees)
		values
		($1, '0x' || repeat('a1', 20), 'arbiter', 'relayer-0', now(), 'active', null,
			501, 16, 5e15, 5e17, 0, 1207, 0, 812345678901234567, 9000,
			(now() at time zone 'utc')::date, 3210000000000000),
		($1, '0x' || repeat('b2', 20), 'payer', 'relayer-0', now(), 'halted',
			'nonce 88 is used up in a final block, but by none of the 2 transactions that were signed for command 0x12: ' ||
			'somebody else used the key. Look at the account in an explorer, then run escrow-relayer sender adopt-nonce',
			502, 16, 5e15, 5e17, 2e18, 88, 3, 4e15, 9000, null, 0),
		($1, '0x' || repeat('c3', 20), '', 'relayer-7', now(), 'active', null,
			503, 1, 5e15, 5e17, 0, null, null, null, null, null, 0)`, testChain)
	w.Exec(`insert into commands (chain_id, command_id, sender, kind, escrow, effect, requester, message,
			max_fee, expires_at, state, code, detail, nonce, reference,
			received_at, assigned_at, sent_at, answered_at, tx_hash, next_look)
		select $1, '0x' || lpad(to_hex(n), 64, '0'), '0x' || repeat('a1', 20), kind,
			'0x' || repeat(lpad(to_hex(n), 2, '0'), 20), 'x' || n, 'keeper', '{}', 5e15,
			now() + interval '1 hour', state, code, detail, case when nonced then 1200 + n end, 'settlement ' || n,
			now() - came, case when nonced then now() - came + interval '34 milliseconds' end,
			case when nonced then now() - came + interval '61 milliseconds' end,
			case when answered then now() - came + interval '25 seconds' end,
			case when mined then '0x' || repeat(lpad(to_hex(n), 2, '0'), 32) end, now() + interval '1 hour'
		from (values
			(1, 'approve', 'done', '', '', true, true, true, interval '9 minutes'),
			(2, 'release', 'done_late', '', '', true, true, true, interval '8 minutes'),
			(3, 'create', 'reverted', 'would_revert', 'AlreadyApproved', true, true, true, interval '7 minutes'),
			(4, 'approve', 'refused', 'conflict', 'another command was first', false, true, false, interval '6 minutes'),
			(5, 'refund', 'accepted', 'would_revert', 'TooEarly', false, false, false, interval '5 minutes'),
			(6, 'approve', 'sent', 'underpriced', 'the fee cap is reached', true, false, false, interval '4 minutes'),
			(7, 'approve', 'accepted', '', '', false, false, false, interval '3 seconds')
		) as v (n, kind, state, code, detail, nonced, answered, mined, came)`, testChain)
}

func TestPageShowsSendersAndCommands(t *testing.T) {
	t.Parallel()
	w := setup(t)
	sessions := w.fleet(3)
	h := w.server().handler
	text := body(t, get(t, h, "/"))
	for _, word := range []string{"Senders of commands</h2>", "Last commands</h2>", "arbiter"} {
		require.NotContains(t, text, word, "nothing without commands")
	}

	require.Contains(t, text, `<section id="senders" aria-label="Senders of commands"></section>`, "empty, and so hidden")
	require.NotContains(t, body(t, get(t, h, "/status")), `"senders"`)

	w.commands(sessions[0])
	h = w.server().handler
	text = body(t, get(t, h, "/"))
	for _, word := range []string{
		`class="verdict critical"`, "a sender is halted: payer: nonce 88 is used up", "commands.md#sender_halted",
		">arbiter<", "0.812345", "0.00321 of 0.5", "✕</span> halted", "nobody</span>", ">1,207<",
		"nonce 0.03s · signed 0.06s · answered 25s", "TooEarly", "waits",
	} {
		require.Contains(t, text, word)
	}

	answer := read[status](t, h, "/status")
	require.Len(t, answer.Fleet.Senders, 3)
	require.Len(t, answer.Fleet.Commands, 7)
}

// What a node says in a reason is masked as everything else is, and escaped.
func TestSendersAreMaskedAndEscaped(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.front.Mask = mask
	sessions := w.fleet(1)
	w.commands(sessions[0])
	w.Exec(`update senders set name = E'arbiter\x1b[31m' where name = 'arbiter'`)
	w.Exec(`update senders set reason = '<script>alert(1)</script> ` + secret + `' where name = 'payer'`)
	w.Exec(`update commands set detail = '"><i>` + secret + `' where command_id like '%5'`)
	text := body(t, get(t, w.server().handler, "/"))
	require.NotContains(t, text, "\x1b")
	require.Contains(t, text, "arbiter\uFFFD[31m")
	require.NotContains(t, text, "<script>alert")
	require.NotContains(t, text, `"><i>`)
	require.NotContains(t, text, secret)
}

func TestCoarseAmounts(t *testing.T) {
	t.Parallel()
	for wei, want := range map[string]string{
		"0": "0", "1": "< 0.000001", "1000000000000": "0.000001", "1500000000000000000": "1.5",
		"12345678901234567890": "12.345678", "1000000000000000001": "1", "": "",
	} {
		require.Equal(t, want, coarse(wei), wei)
	}
}
