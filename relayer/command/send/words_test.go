package send_test

import (
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
)

// unstorable is text that no database column takes: with a zero byte, with a byte that is not UTF-8, and long
// enough to be cut, within a letter.
var unstorable = "\x00\xff" + strings.Repeat("ä", 1000)

// unwilling has a node refuse every call in words that cannot be stored.
func (w *world) unwilling(node *faults.Node) *faults.Injected {
	return node.Inject(faults.Fault{Mode: faults.Refused, Method: "eth_call", Words: unstorable})
}

// Whatever a node or a contract says, a sender goes on: its words are made fit for the database.
func TestWordsThatCannotBeStored(t *testing.T) {
	t.Parallel()
	w, node := newFaultyWorld(t, false)
	sends := node.Inject(faults.Fault{Mode: faults.SendRefused, Words: unstorable})
	calls := w.unwilling(node)
	w.start(nil)
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.awaitHeld(id, command.CodeReverts)
	calls.Remove()
	require.Eventually(t, func() bool { w.mineAhead(); return sends.Hits() > 0 }, patience, 10*time.Millisecond)
	sends.Remove()
	w.await(id, true, command.Done)
}

// A keeper's release that fails in a node's own words is given up at once, as one that the contract refuses: it is
// made again after a pause.
func TestKeeperGivesUpInWhateverWords(t *testing.T) {
	t.Parallel()
	w, node := newFaultyWorld(t, false)
	kept := w.command(command.Release, w.escrow(1, 0), func(c *command.Command) { c.MaxFee = big.NewInt(1e16) })
	w.insert(kept, kept.ID(), send.KeeperName)
	w.exec(`alter table commands add check (state <> 'accepted' or code is distinct from 'would_revert')`)
	w.unwilling(node)
	w.start(func(c *send.Config) {
		c.Keeper = &send.Keeper{MinAmount: big.NewInt(7), MaxFee: big.NewInt(1e16), DayFees: big.NewInt(1e17)}
	})
	require.Equal(t, command.CodeReverts, w.await(kept.ID(), true, command.Refused).Code)
}
