package send_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
)

// viewedChain counts how often a sender asks what is seen of the chain: twice per round.
type viewedChain struct {
	*evm.Nodes
	views atomic.Int64
}

func (c *viewedChain) View() evm.View {
	c.views.Add(1)
	return c.Nodes.View()
}

// A sender that may give no nonces out rests between its rounds, although commands wait.
func TestAPausedSenderRests(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	w.mine(confirmations + 1)
	stop := w.start(nil)
	w.awaitState("active")
	stop()
	require.NoError(t, send.Pause(t.Context(), w.db, w.node.ChainID().Int64(), w.sender.Address, "a test"))
	w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.awaitTarget()

	const rest = 2 * time.Second
	chain := &viewedChain{Nodes: w.nodes}
	w.start(func(c *send.Config) { c.Chain, c.LookEvery = chain, rest })
	await := func(views int64) {
		require.Eventually(t, func() bool { return chain.views.Load() >= views }, patience, time.Millisecond)
	}
	await(4)
	begin := time.Now()
	await(8)
	require.GreaterOrEqual(t, time.Since(begin), rest)
}
