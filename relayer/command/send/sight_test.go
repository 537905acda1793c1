package send_test

import (
	"context"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
)

// countingCaller counts what the nodes are asked, by method: each call of a batch. What a busy machine
// did not answer in time is asked again, and counts once.
type countingCaller struct {
	evm.Caller
	mu       sync.Mutex
	items    map[string]int
	requests int // each batch is one
}

func (c *countingCaller) CallBatch(ctx context.Context, requests ...chain.Request) ([]chain.Answer, error) {
	c.mu.Lock()
	for _, r := range requests {
		c.items[r.Method]++
	}

	c.requests++
	c.mu.Unlock()
	for {
		answers, err := c.Caller.CallBatch(ctx, requests...)
		if err == nil || ctx.Err() != nil {
			return answers, err
		}
	}
}

func (c *countingCaller) CallEach(ctx context.Context, method string, params ...any) ([]chain.Answer, error) {
	c.mu.Lock()
	c.items[method]++
	c.requests++
	c.mu.Unlock()

	return c.Caller.CallEach(ctx, method, params...)
}

// counted is what was asked since the last reset.
func (c *countingCaller) counted() (items map[string]int, requests int) {
	c.mu.Lock()
	defer c.mu.Unlock()

	return maps.Clone(c.items), c.requests
}

func (c *countingCaller) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.items, c.requests = map[string]int{}, 0
}

// What a sender asks of the nodes: nothing per block while it has nothing to do, one call per block
// while a transaction waits to be mined, and what is needed when one is sent and when it is final.
func TestRequestsPerBlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	asked := &countingCaller{Caller: w.source, items: map[string]int{}}
	pool := &deafChain{Nodes: evm.NewNodes(asked)}
	cfg := w.config()
	cfg.Chain, cfg.LookEvery, cfg.BumpBlocks = pool, time.Hour, 1000
	escrow := w.escrow(1, 0)
	mine := func() {
		w.mine(1)
		require.Eventually(t, func() bool { return int(w.nodes.View().Head) == w.head() }, patience, 5*time.Millisecond)
	}
	mine()
	wake := make(chan struct{}, 1)
	w.run(func(ctx context.Context) error { return send.Run(ctx, cfg, wake) })
	checked := func() bool { return w.int(`select count(*) from senders where checked_block > 0`) == 1 }
	require.Eventually(t, checked, patience, 10*time.Millisecond)

	// Nothing to do, then one command: one look, one simulation, the fees, the broadcast.
	asked.reset()
	for range 20 {
		mine()
	}

	id := w.accept(w.command(command.Approve, escrow, nil))
	wake <- struct{}{}
	require.Eventually(t, func() bool {
		return w.int(`select count(*) from command_attempts`) == 1
	}, patience, 10*time.Millisecond)
	items, requests := asked.counted()
	require.Equal(t, map[string]int{"eth_getTransactionCount": 3, "eth_getBalance": 2, "eth_getBlockByNumber": 1,
		"eth_call": 1, "eth_estimateGas": 1, "eth_feeHistory": 1, "eth_maxPriorityFeePerGas": 1}, items)
	require.Equal(t, 4, requests, "the account at once, a simulation with a header and the state, the fees in two")

	// It waits to be mined.
	asked.reset()
	nonces := func(n int) func() bool {
		return func() bool { items, _ := asked.counted(); return items["eth_getTransactionCount"] >= n }
	}
	for n := range 10 {
		mine()
		require.Eventually(t, nonces(n+1), patience, 5*time.Millisecond)
	}

	items, _ = asked.counted()
	require.Equal(t, map[string]int{"eth_getTransactionCount": 10}, items)

	// It is mined, and final two blocks later.
	asked.reset()
	var raw []byte
	require.NoError(t, w.db.QueryRow(t.Context(), `select raw from command_attempts`).Scan(&raw))
	require.NoError(t, w.rpc.CallContext(t.Context(), nil, "eth_sendRawTransaction", hexutil.Bytes(raw)))
	for n := range confirmations {
		mine()
		require.Eventually(t, nonces(n+1), patience, 5*time.Millisecond)
	}

	mine()
	w.await(id, false, command.Done)
	items, _ = asked.counted()
	asks := items["eth_getTransactionCount"]
	require.GreaterOrEqual(t, asks, confirmations+3)
	require.LessOrEqual(t, asks, 2*(confirmations+4), "the ledger may come to the block some rounds later")
	delete(items, "eth_getTransactionCount")
	require.Equal(t, map[string]int{"eth_getBalance": 1, "eth_getBlockByNumber": 2, "eth_getTransactionReceipt": 1}, items,
		"the header is of the target, with what says that it is mined and with the receipt")
}

// Fees are asked for once for all senders, also when they ask at the same moment.
func TestSendersShareFees(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	w.mine(3)
	require.Eventually(t, func() bool { return int(w.nodes.View().Head) == w.head() }, patience, 5*time.Millisecond)
	asked := &countingCaller{Caller: w.source, items: map[string]int{}}
	nodes := evm.NewNodes(asked)
	const senders = 8
	share := func() {
		var wg sync.WaitGroup
		target := nodes.View().Target
		for i := range senders {
			wg.Go(func() {
				if _, err := nodes.Look(t.Context(), common.Address{byte(i)}, target, false); err != nil {
					t.Errorf("a look at sender %d: %v", i, err)
				}

				if _, err := nodes.Fees(t.Context()); err != nil {
					t.Errorf("fees for sender %d: %v", i, err)
				}
			})
		}

		wg.Wait()
	}
	share()
	share()
	items, _ := asked.counted()
	require.Equal(t, 1, items["eth_feeHistory"])
	require.Equal(t, 2*senders, items["eth_getBalance"])

	w.mine(1)
	require.Eventually(t, func() bool { return int(w.nodes.View().Head) == w.head() }, patience, 5*time.Millisecond)
	share()
	items, _ = asked.counted()
	require.Equal(t, 2, items["eth_feeHistory"], "as of another view")
}
