package send_test

import (
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
)

// audit returns what is wrong, as kind by nonce.
func (w *world) audit() (map[uint64]string, send.Audited) {
	w.t.Helper()
	found := map[uint64]string{}
	w.findings = map[uint64]send.Finding{}
	done, err := send.Audit(w.t.Context(), w.db, w.node.ChainID().Int64(), w.nodes, func(f send.Finding) error {
		found[f.Nonce], w.findings[f.Nonce] = f.Kind, f
		return nil
	})
	require.NoError(w.t, err)

	return found, done
}

// Every transaction of the account is known; then one is foreign, one answer is wrong, and one is missing.
func TestAudit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	_, done := w.audit()
	require.Zero(t, done, "no sender was ever used")

	stop := w.start(func(c *send.Config) { c.BumpBlocks = 1 })
	var ids []common.Hash
	for range 3 {
		ids = append(ids, w.accept(w.command(command.Approve, w.escrow(1, 0), nil)))
	}

	w.await(ids[2], false, command.Sent)
	w.exec(`update commands set cancel_requested = true where command_id = $1`, ids[2].Hex())
	w.await(ids[0], true, command.Done)
	w.await(ids[1], true, command.Done)
	w.await(ids[2], true, command.Done, command.Voided)
	found, done := w.audit()
	require.Empty(t, found)
	require.Equal(t, send.Audited{Senders: 1, Nonces: 3, Commands: 3}, done)
	require.Eventually(t, func() bool { // the sender notes the block after it has answered
		return w.int(`select count(*) from senders where checked_block >= (select max(block_number) from commands)`) == 1
	}, patience, 20*time.Millisecond)
	stop()

	// What is not final is nobody's fault yet.
	w.use()
	found, _ = w.audit()
	require.Empty(t, found)
	w.mine(confirmations)
	require.Eventually(t, func() bool { found, _ = w.audit(); return found[3] == send.FindingForeign }, patience,
		20*time.Millisecond)

	w.exec(`update commands set tx_hash = '0x' || repeat('1', 64) where command_id = $1`, ids[0].Hex())
	w.exec(`update commands set state = 'sent', answered_at = null, tx_hash = null, block_number = null, block_hash = null
		where command_id = $1`, ids[1].Hex())
	w.exec(`update command_attempts set tx_hash = '0x' || lpad(attempt::text, 64, '2')
		where command_id = $1`, ids[2].Hex())
	// Commands of different escrows may overtake each other: one whose escrow is not seen yet is held.
	nonce := func(i int) uint64 {
		return uint64(w.int(`select nonce from commands where command_id = $1`, ids[i].Hex()))
	}
	found, done = w.audit()
	require.Equal(t, map[uint64]string{nonce(0): send.FindingDiffering, nonce(1): send.FindingUnanswered,
		nonce(2): send.FindingForeign, 3: send.FindingForeign}, found)
	require.Equal(t, send.Audited{Senders: 1, Nonces: 4, Commands: 3}, done)

	// The sender has not looked at the block yet: it will answer.
	w.exec(`update senders set checked_block = 1`)
	found, _ = w.audit()
	require.NotContains(t, found, nonce(1))
}

// An answer whose block is not on the chain any more, while nobody runs to take it back.
func TestAuditSeesAReorganisation(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	stop := w.start(nil)
	first := w.await(w.accept(w.command(command.Approve, w.escrow(1, 0), nil)), true, command.Done)
	stop()
	w.reorg(w.head() - int(first.Block) + 1)
	require.Eventually(t, func() bool { // the new branch has to become as long as what the ledger has
		w.mine(1)
		found, _ := w.audit()

		return found[0] == send.FindingDiffering
	}, patience, 20*time.Millisecond)
}
