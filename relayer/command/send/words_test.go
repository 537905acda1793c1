package send_test

import (
	"context"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
)

// unstorable is text that no database column takes: with a zero byte, with a byte that is not UTF-8, and long
// enough to be cut, within a letter.
var unstorable = "\x00\xff" + strings.Repeat("ä", 1000)

// wordyChain has a second node, which refuses every transaction in words that cannot be stored, and at first
// a simulation that fails in such words.
type wordyChain struct {
	*send.Nodes
	simulated bool
}

func (c *wordyChain) Broadcast(ctx context.Context, raws [][]byte) [][]error {
	results := make([][]error, len(raws))
	for i := range raws {
		results[i] = []error{errors.New(unstorable), errors.New(unstorable)}
	}

	c.Nodes.Broadcast(ctx, raws)

	return results
}

func (c *wordyChain) Simulate(ctx context.Context, target send.Block, calls []send.Call) ([]send.Simulation, error) {
	if c.simulated {
		return c.Nodes.Simulate(ctx, target, calls)
	}

	c.simulated = true
	all := make([]send.Simulation, len(calls))
	for i := range all {
		all[i] = send.Simulation{Reverts: &send.Revert{Reason: unstorable}}
	}

	return all, nil
}

// Whatever a node or a contract says, a sender goes on: its words are made fit for the database.
func TestWordsThatCannotBeStored(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	w.start(func(c *send.Config) { c.Chain = &wordyChain{Nodes: w.nodes} })
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.awaitHeld(id, command.CodeReverts)
	require.Eventually(t, func() bool {
		return w.int(`select count(*) from command_attempts where last_error <> ''`) > 0
	}, patience, 10*time.Millisecond)
	w.await(id, true, command.Done)
}

// A keeper's release that fails in a node's own words is given up at once, as one that the contract refuses: it is
// made again after a pause.
func TestKeeperGivesUpInWhateverWords(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	kept := w.command(command.Release, w.escrow(1, 0), func(c *command.Command) { c.MaxFee = big.NewInt(1e16) })
	w.insert(kept, kept.ID(), send.KeeperName)
	w.start(func(c *send.Config) {
		c.Chain = &wordyChain{Nodes: w.nodes}
		c.Keeper = &send.Keeper{MinAmount: big.NewInt(7), MaxFee: big.NewInt(1e16), DayFees: big.NewInt(1e17)}
	})
	require.Equal(t, command.CodeReverts, w.await(kept.ID(), true, command.Refused).Code)
	require.Equal(t, 0, w.int(`select holds from commands`))
}
