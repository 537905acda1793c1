package testchain_test

import (
	"context"
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
)

const patience = 5 * time.Minute

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func dial(t testing.TB, url string) *ethclient.Client {
	t.Helper()
	c, err := ethclient.DialContext(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(c.Close)

	return c
}

func startSim(t testing.TB, o testchain.Options) *testchain.Sim {
	t.Helper()
	n, err := testchain.StartSim(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Stop()) })

	return n
}

func headOf(t testing.TB, c *ethclient.Client) *types.Header {
	t.Helper()
	h, err := c.HeaderByNumber(t.Context(), nil)
	require.NoError(t, err)

	return h
}

// testNode is what every Node has to do.
func testNode(t *testing.T, n testchain.Node) {
	ctx := within(t)
	d, err := testchain.Deploy(ctx, n)
	require.NoError(t, err)
	http, ws := dial(t, n.HTTP()), dial(t, n.WS())

	id, err := http.ChainID(ctx)
	require.NoError(t, err)
	require.Zero(t, id.Cmp(n.ChainID()))
	code, err := ws.CodeAt(ctx, d.Factory, nil)
	require.NoError(t, err)
	require.NotEmpty(t, code)

	heads := make(chan *types.Header, 1000)
	sub, err := ws.SubscribeNewHead(ctx, heads)
	require.NoError(t, err)
	defer sub.Unsubscribe()

	t.Log("mining moves the head")
	before := headOf(t, http).Number.Uint64()
	require.NoError(t, n.Mine(ctx, 3))
	// geth may still be making blocks for earlier transactions
	require.GreaterOrEqual(t, headOf(t, http).Number.Uint64(), before+3)
	for want := before + 1; want <= before+3; {
		if got := (<-heads).Number.Uint64(); got > before { // one from before may be announced late
			require.Equal(t, want, got)
			want++
		}
	}

	t.Log("events come in the order of the deployed system")
	w, err := testchain.OpenWallet(ctx, n.Client(), n.Accounts()...)
	require.NoError(t, err)
	payer, payee := n.Accounts()[0].Address, n.Accounts()[1].Address
	factory, escrowABI := contracts.NewEscrowFactory(), contracts.NewEscrow()
	create := testchain.Call{To: &d.Factory, Value: big.NewInt(5),
		Data: factory.PackCreateEscrow(payee, new(big.Int), 2, common.Address{})}
	receipts, err := w.Transact(ctx, n, 0, create)
	require.NoError(t, err)
	require.Len(t, receipts[0].Logs, 2)
	created, err := escrowABI.UnpackEscrowCreatedEvent(receipts[0].Logs[0])
	require.NoError(t, err)
	require.Equal(t, payer, created.Payer)
	deployed, err := factory.UnpackEscrowDeployedEvent(receipts[0].Logs[1])
	require.NoError(t, err)
	require.Equal(t, receipts[0].Logs[0].Address, deployed.Escrow)
	require.Equal(t, big.NewInt(5), deployed.Amount)

	escrow := deployed.Escrow
	approve := testchain.Call{To: &escrow, Data: escrowABI.PackApprove()}
	_, err = w.Transact(ctx, n, 0, approve)
	require.NoError(t, err)
	_, err = w.Transact(ctx, n, 1, approve)
	require.NoError(t, err)
	truth := readTruth(t, n, d)
	require.Equal(t, []string{"EscrowCreated", "EscrowDeployed", "Approved", "Approved", "EscrowReleased"},
		names(truth.Events[escrow]))
	kept := truth.IDs(escrow)

	sim, is := n.(*testchain.Sim)
	if !is {
		return
	}

	for _, fate := range []testchain.Fate{testchain.Drop, testchain.Keep} {
		t.Logf("a reorganisation replaces blocks (transactions kept: %v)", fate)
		require.NoError(t, n.Mine(ctx, 1)) // so that what happened before is below the fork
		receipts, err = w.Transact(ctx, n, 2, create)
		require.NoError(t, err)
		mined := receipts[0]
		deployed, err = factory.UnpackEscrowDeployedEvent(mined.Logs[1])
		require.NoError(t, err)
		before := headOf(t, http)
		require.NoError(t, sim.Reorg(ctx, int(before.Number.Uint64()-mined.BlockNumber.Uint64())+1, fate))
		same, err := http.HeaderByNumber(ctx, mined.BlockNumber)
		require.NoError(t, err)
		require.NotEqual(t, mined.BlockHash, same.Hash())
		require.Greater(t, headOf(t, http).Number.Uint64(), before.Number.Uint64())
		parent, err := http.HeaderByNumber(ctx, new(big.Int).Sub(mined.BlockNumber, big.NewInt(1)))
		require.NoError(t, err)
		require.Equal(t, parent.Hash(), same.ParentHash)

		truth := readTruth(t, n, d)
		require.Equal(t, kept, truth.IDs(escrow), "what was below the fork stays")
		if fate == testchain.Keep {
			require.Equal(t, []string{"EscrowCreated", "EscrowDeployed"}, names(truth.Events[deployed.Escrow]))
		} else {
			require.NotContains(t, truth.Events, deployed.Escrow)
			require.NoError(t, w.Sync(ctx))
		}
	}

	t.Log("depth is checked")
	require.ErrorContains(t, sim.Reorg(ctx, 0, testchain.Drop), "choose from 1 to")
	require.ErrorContains(t, sim.Reorg(ctx, 1<<20, testchain.Drop), "choose from 1 to")
}

func readTruth(t testing.TB, n testchain.Node, d testchain.Deployment) *testchain.Truth {
	t.Helper()
	truth, err := testchain.ReadTruth(t.Context(), n.Client(), d.Block, headOf(t, dial(t, n.HTTP())).Number.Uint64(),
		d.Factory, d.Legacy)
	require.NoError(t, err)

	return truth
}

func names(entries []testchain.Entry) (out []string) {
	for _, e := range entries {
		out = append(out, e.Name)
	}

	return out
}

func TestSimIsANode(t *testing.T) {
	t.Parallel()
	testNode(t, startSim(t, testchain.Options{ChainID: 31337}))
}

// What the relayer's CONFIRMATIONS=safe and finalized mean on this chain.
func TestSimTags(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	n := startSim(t, testchain.Options{})
	c := dial(t, n.HTTP())
	at := func(tag rpc.BlockNumber) uint64 {
		h, err := c.HeaderByNumber(ctx, big.NewInt(int64(tag)))
		require.NoError(t, err)
		return h.Number.Uint64()
	}
	require.NoError(t, n.Mine(ctx, 31))
	require.EqualValues(t, 31, at(rpc.SafeBlockNumber))
	require.EqualValues(t, 0, at(rpc.FinalizedBlockNumber))
	require.NoError(t, n.Mine(ctx, 2))
	require.EqualValues(t, 33, at(rpc.SafeBlockNumber))
	require.EqualValues(t, 32, at(rpc.FinalizedBlockNumber))

	// Finality does not hold against Reorg: the tag moves to another block 32.
	was, err := c.HeaderByNumber(ctx, big.NewInt(32))
	require.NoError(t, err)
	require.NoError(t, n.Reorg(ctx, 3, testchain.Drop))
	require.EqualValues(t, 32, at(rpc.FinalizedBlockNumber))
	is, err := c.HeaderByNumber(ctx, big.NewInt(int64(rpc.FinalizedBlockNumber)))
	require.NoError(t, err)
	require.NotEqual(t, was.Hash(), is.Hash())
}

func TestSimSendsRemovedLogs(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	n := startSim(t, testchain.Options{})
	d, err := testchain.Deploy(ctx, n)
	require.NoError(t, err)
	logs := make(chan types.Log, 10)
	sub, err := dial(t, n.WS()).SubscribeFilterLogs(ctx, ethereum.FilterQuery{Addresses: []common.Address{d.Noise}}, logs)
	require.NoError(t, err)
	defer sub.Unsubscribe()
	w, err := testchain.OpenWallet(ctx, n.Client(), n.Accounts()[0])
	require.NoError(t, err)
	_, err = w.Transact(ctx, n, 0, testchain.Call{To: &d.Noise, Data: contracts.NewNoise().PackApproved(big.NewInt(1))})
	require.NoError(t, err)
	require.False(t, (<-logs).Removed)
	require.NoError(t, n.Reorg(ctx, 1, testchain.Drop))
	require.True(t, (<-logs).Removed)
}

func TestSimMinesAllThatWasSent(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	n := startSim(t, testchain.Options{})
	w, err := testchain.OpenWallet(ctx, n.Client(), n.Accounts()...)
	require.NoError(t, err)
	c := dial(t, n.HTTP())
	for round := range 100 { // a race in the pool, seen once in ten runs with a single round
		calls := make([]testchain.Call, 1+round%8)
		for i := range calls {
			calls[i] = testchain.Call{To: &common.Address{1}, Gas: 21_000, Value: big.NewInt(1)}
		}

		_, err := w.Send(ctx, round%2, calls...)
		require.NoError(t, err)
		require.NoError(t, n.Mine(ctx, 1))
		mined, err := c.TransactionCount(ctx, headOf(t, c).Hash())
		require.NoError(t, err)
		require.EqualValues(t, len(calls), mined)
	}
}

func TestSimTime(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	n := startSim(t, testchain.Options{})
	c := dial(t, n.HTTP())
	require.NoError(t, n.Mine(ctx, 1))
	before := headOf(t, c).Time
	require.InDelta(t, time.Now().Unix(), before, 60)
	require.NoError(t, n.AdvanceTime(ctx, 31*24*time.Hour))
	after := headOf(t, c).Time
	require.GreaterOrEqual(t, after, before+31*24*3600)
	require.NoError(t, n.Mine(ctx, 1))
	require.Equal(t, after+1, headOf(t, c).Time)
}

// Whoever says that he saw a block must not have said so before it was begun.
func TestSimKnowsItsHeadOfBefore(t *testing.T) {
	t.Parallel()
	ctx, s := within(t), startSim(t, testchain.Options{Accounts: 1})
	begun := time.Now()
	require.NoError(t, s.Mine(ctx, 3))
	three := time.Now()
	require.NoError(t, s.Reorg(ctx, 2, testchain.Drop)) // to block 4
	four := time.Now()
	require.NoError(t, s.Mine(ctx, 1))
	require.Zero(t, s.HeadAt(begun))
	require.Equal(t, uint64(3), s.HeadAt(three))
	require.Equal(t, uint64(4), s.HeadAt(four))
	require.Equal(t, uint64(5), s.HeadAt(time.Now()))
}

func TestSimMinesAtAnInterval(t *testing.T) {
	t.Parallel()
	n := startSim(t, testchain.Options{Interval: 5 * time.Millisecond})
	heads := make(chan *types.Header, 1000)
	sub, err := dial(t, n.WS()).SubscribeNewHead(within(t), heads)
	require.NoError(t, err)
	defer sub.Unsubscribe()
	for range 3 {
		<-heads
	}

	n.SetInterval(0)
	at := headOf(t, dial(t, n.HTTP())).Number.Uint64()
	n.SetInterval(time.Hour)
	require.InDelta(t, at, headOf(t, dial(t, n.HTTP())).Number.Uint64(), 1, "one block may have been on its way")
}

func TestAccountsFollowFromTheSeed(t *testing.T) {
	t.Parallel()
	require.Equal(t, testchain.Accounts(7, 5)[:3], testchain.Accounts(7, 3))
	require.NotEqual(t, testchain.Accounts(7, 1), testchain.Accounts(8, 1))
}
