package send_test

import (
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/retention"
)

// leave has everything that was answered leave, as if it had been answered long ago.
func (w *world) leave() int64 {
	w.t.Helper()
	w.exec(`update commands set answered_at = answered_at - interval '9 days', expires_at = expires_at - interval '9 days',
		reserve_day = reserve_day - 9 where answered_at is not null`)
	w.exec(`delete from replies`)
	w.exec(`delete from chain_blocks where number < (select max(number) from chain_blocks)`)
	r, err := retention.Once(w.t.Context(), retention.Config{DB: w.db, ChainID: w.node.ChainID().Int64(),
		Events: time.Hour})
	require.NoError(w.t, err)
	w.exec(`update used_nonces set expires_at = expires_at + interval '9 days'`)

	return r.Commands
}

// An audit knows the nonces of commands that have left, and compares their answers with the chain. The sender goes on,
// the same act can be asked for again, and an operator gets none of those nonces a second time.
func TestAuditOfWhatHasLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	stop := w.start(func(c *send.Config) { c.BumpBlocks = 1 })
	escrows := []common.Address{w.escrow(1, 0), w.escrow(1, 0)}
	var ids []common.Hash
	for _, e := range escrows {
		ids = append(ids, w.accept(w.command(command.Approve, e, nil)))
	}

	w.exec(`update commands set cancel_requested = true where command_id = $1`, ids[1].Hex())
	w.await(ids[0], true, command.Done)
	w.await(ids[1], true, command.Done, command.Voided, command.Cancelled)
	w.mine(confirmations)
	used := len(w.sent())
	stop()
	w.stopLedger()
	require.EqualValues(t, 2, w.leave())
	require.Zero(t, w.int(`select count(*) from commands`)+w.int(`select count(*) from command_attempts`)+
		w.int(`select count(*) from command_claims`))
	found, done := w.audit()
	require.Empty(t, found, "%v", w.findings)
	require.Equal(t, send.Audited{Senders: 1, Nonces: used, Commands: used}, done)

	w.exec(`update used_nonces set tx_hash = bytes('0x' || repeat('1', 64)) where nonce = 0`)
	found, _ = w.audit()
	require.Equal(t, map[uint64]string{0: send.FindingDiffering}, found)
	require.Contains(t, w.findings[0].Why, "it was answered done by transaction 0x1111")

	w.exec(`update senders set next_nonce = 9`)
	require.NoError(t, w.adopt(t.Context()))
	w.start(nil)
	w.stopLedger = w.watch()
	require.Equal(t, command.Already, w.await(w.accept(w.command(command.Approve, escrows[0], nil)), true,
		command.Already).State)
	w.await(w.accept(w.command(command.Approve, w.escrow(1, 0), nil)), true, command.Done)
	require.Len(t, w.sent(), used+1)
}

// Rounds and intake read what is open, and retention what is to leave, however much was answered: before the table is
// analyzed, and after.
func TestRoundsReadNoAnsweredCommands(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	w.mine(confirmations + 1)
	stop := w.start(nil)
	w.awaitState("active") // with its first nonce, which is none of these
	stop()
	const answered = 100_000
	w.exec(`insert into commands (chain_id, command_id, sender, kind, escrow, effect, requester, message, max_fee, expires_at, received_at,
		       answered_at, state, code, nonce, block_number)
		select $1, '0x' || lpad(to_hex(n), 64, '0'), $2, 'approve', '0x' || lpad(to_hex(n), 40, '0'), 'settle',
		       case n % 3 when 0 then 'keeper' else $3 end, '{}', 1, now() - interval '8 days', now() - interval '9 days', now() - interval '9 days',
		       case n % 3 when 1 then 'refused' else 'done' end, case n % 3 when 1 then 'conflict' else '' end,
		       case when n % 3 <> 1 then 1000000 + n end, 1000000 + n
		  from generate_series(1, $4::int) n`, w.node.ChainID().Int64(), text(w.sender.Address), text(w.requester.Address), answered)
	db, read := testpg.Counted(t, w.db.Config().ConnString())
	before := read("commands")
	w.verified(1000)
	stop = w.start(func(c *send.Config) {
		c.DB = db
		c.Keeper = &send.Keeper{MinAmount: c.Limits.MaxFee, MaxFee: c.Limits.MaxFee, DayFees: c.Limits.DayFees,
			Every: time.Millisecond}
	})
	for analyzed := range 2 {
		for range 3 {
			w.await(w.accept(w.command(command.Approve, w.escrow(1, 0), nil)), true, command.Done)
		}

		if analyzed == 0 {
			w.exec(`analyze commands`)
		}
	}

	stop()
	r, err := retention.Once(t.Context(), retention.Config{DB: db, ChainID: w.node.ChainID().Int64(),
		Events: 30 * 24 * time.Hour})
	require.NoError(t, err)
	require.Zero(t, r.Commands, "none is so old")
	require.Less(t, read("commands")-before, answered/2)
}
