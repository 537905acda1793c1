package watch_test

import (
	"bytes"
	"context"
	"io"
	"iter"
	"log/slog"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
	"github.com/fusion-prime/escrow-relayer/relayer/verify"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

// One endpoint of three, the first, invents a release of a real escrow: the bits of its log are in the block's
// bloom filter, under the block's true hash, and the log is in what it answers for the range and for the
// block. The watches publish what the chain has and nothing else, the liar is named, and what was stored of
// its inventions before is retracted.
func TestInventedRelease(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"http", "ws"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			liar, err := faults.NewNode(w.sim.HTTP(), w.sim.WS(), 1)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, liar.Close()) })
			first := liar.HTTP()
			if scheme == "ws" {
				first = liar.WS()
			}

			w.src = openSource(t, first, w.sim.WS(), w.sim.HTTP())

			w.create(2)
			w.mine(1 + confirmations)
			w.run(watch.FilterTopics, true)
			truth := w.expect(w.head() - confirmations)

			w.approve(1, truth.Escrows[0])
			w.mine(1)
			lie := liar.Inject(faults.Fault{Mode: faults.Bits, Logs: []types.Log{w.invent(truth.Escrows[1])}})
			w.approve(1, truth.Escrows[1])
			w.mine(1 + confirmations)
			w.expect(w.head() - confirmations)
			require.Empty(t, w.invented())

			w.mine(200) // what was read is final
			require.Eventually(t, func() bool { return w.src.View().Final > w.head()-200 }, patience, 5*time.Millisecond)
			w.store(w.invent(truth.Escrows[1]))
			require.Len(t, w.invented(), 1)
			w.verify(t.Output())
			require.Eventually(t, func() bool { return len(w.invented()) == 0 }, patience, 5*time.Millisecond)
			require.Positive(t, lie.Hits())
			require.Eventually(t, func() bool { return len(w.src.Faults()) > 0 }, patience, 5*time.Millisecond)
			require.Equal(t, endpoint.Lie, w.src.Faults()[0].Kind)
			w.Publish() // what was removed is sent first
			w.mine(1)   // the owner of the slot queues the retraction with its next commit
			require.Eventually(t, func() bool { return len(w.out.retracted()) > 0 }, patience, 5*time.Millisecond)
			require.Len(t, w.out.retracted(), 1)
			require.True(t, strings.HasSuffix(w.out.retracted()[0], ":4000"), w.out.retracted()[0])
			w.expect(w.head() - confirmations)
		})
	}
}

// verify runs a verifier until the test ends.
func (w *world) verify(log io.Writer) {
	filters := watch.NewFilters(w.abi, w.followed(), watch.FilterTopics, 1000)
	v := verify.New(verify.Config{Source: w.src, Filters: filters.Again(), Ledger: w.led, ABI: w.abi,
		Factories: w.followed(), Every: time.Millisecond, Log: slog.New(slog.NewTextHandler(log, nil)),
		Metrics: verify.NewMetrics(prometheus.NewRegistry())})
	ctx, stop := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- v.Run(ctx, 1) }()
	w.t.Cleanup(func() { stop(); require.NoError(w.t, <-done) })
}

// tries counts the lines of a verifier that no second endpoint could be asked.
type tries struct{ n atomic.Int64 }

func (l *tries) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("read from a second endpoint")) {
		l.n.Add(1)
	}

	return len(line), nil
}

// While the second endpoint is out, the first one's word counts, and what it gives no receipts for is not proved: it
// leaves an event out and invents another one. The second reading does not pass these blocks until it has somebody to
// ask. Then what was left out is stored and published, what was invented is retracted, both are findings, and the
// endpoint, which keeps to its lies, is named.
func TestBelievedBlocksAreComparedLater(t *testing.T) {
	t.Parallel()
	w := setup(t)
	var nodes []*faults.Node
	for range 2 {
		n, err := faults.NewNode(w.sim.HTTP(), w.sim.WS(), 1)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, n.Close()) })
		nodes = append(nodes, n)
	}

	liar, second := nodes[0], nodes[1]
	var unable []*faults.Injected // of the second one, until blocks were believed: none has proved itself by then
	for _, method := range []string{"eth_getBlockReceipts", "eth_getTransactionReceipt"} {
		liar.Inject(faults.Fault{Mode: faults.Without, Words: method})
		unable = append(unable, second.Inject(faults.Fault{Mode: faults.Without, Words: method}))
	}

	var later atomic.Int64
	w.src = openSourceAt(t, func() time.Time { return time.Now().Add(time.Duration(later.Load())) }, liar.HTTP(),
		second.HTTP())
	w.create(2)
	w.mine(1 + confirmations)
	w.run(watch.FilterTopics, true)
	truth := w.expect(w.head() - confirmations)

	down := second.Inject(faults.Fault{Mode: faults.Down})
	require.Eventually(t, func() bool { return !w.src.Endpoints()[1].Up }, patience, 5*time.Millisecond)
	w.approve(1, truth.Escrows...)
	w.mine(1)
	believed := w.head()
	lies := []*faults.Injected{liar.Inject(faults.Fault{Mode: faults.Withheld, N: believed}),
		liar.Inject(faults.Fault{Mode: faults.Invented, Logs: []types.Log{w.approval(truth.Escrows[0])}})}
	later.Store(int64(2 * time.Minute))
	w.mine(200 + confirmations)
	require.Eventually(t, func() bool { return w.src.Trust() == chain.Believed && len(w.invented()) == 1 }, time.Minute,
		5*time.Millisecond)
	for _, lie := range lies {
		require.Positive(t, lie.Hits())
	}

	require.Eventually(t, func() bool { return w.src.View().Final > believed }, patience, 5*time.Millisecond)
	log := &tries{}
	w.verify(log)
	require.Eventually(t, func() bool { return log.n.Load() > 0 }, patience, 5*time.Millisecond)
	require.Less(t, w.verified(), int64(believed))
	require.Len(t, w.invented(), 1)
	require.Empty(t, w.Column(`select kind from findings`))

	for _, fault := range append(unable, down) {
		fault.Remove()
	}

	soon := func(is func() bool) { // an endpoint that is suspect is left out for a while, and blocks count without it then
		require.Eventually(t, func() bool { later.Add(int64(200 * time.Millisecond)); return is() }, time.Minute,
			5*time.Millisecond)
	}
	soon(func() bool { return w.verified() >= int64(believed) })
	require.Empty(t, w.invented())
	require.Equal(t, []string{"extra_event", "missing_event"}, w.Column(`select distinct kind from findings order by kind`))
	w.Publish() // the invention is out: it can be taken back
	w.mine(1)   // the owner of the slots queues that, and what was missing, with its next commit
	soon(func() bool { return len(w.out.retracted()) > 0 })
	require.Len(t, w.out.retracted(), 1)
	require.Equal(t, w.src.Endpoints()[0].Name, w.src.Faults()[0].Endpoint)
	require.Len(t, w.src.Faults(), 1)
	truth, err := testchain.ReadTruth(t.Context(), w.sim.Client(), 0, believed, w.d.Factory)
	require.NoError(t, err)
	for _, escrow := range truth.Escrows {
		for _, e := range truth.Events[escrow] {
			if published(e.Name) {
				require.Contains(t, w.out.of(escrow), e.Name+" "+e.ID)
			}
		}
	}
}

// verified is up to which block everything was read twice.
func (w *world) verified() (block int64) {
	require.NoError(w.t, w.DB.QueryRow(w.t.Context(), `select verified_block from leadership`).Scan(&block))
	return block
}

// approval is one of an escrow in the newest block, beside the true one: the block's bloom filter allows for it.
func (w *world) approval(of common.Address) types.Log {
	c := w.sim.Client()
	head := new(big.Int).SetUint64(w.head())
	logs, err := c.FilterLogs(w.t.Context(), ethereum.FilterQuery{FromBlock: head, ToBlock: head,
		Addresses: []common.Address{of}})
	require.NoError(w.t, err)
	require.NotEmpty(w.t, logs)
	l := logs[0]
	l.Index, l.TxHash = inventedIndex, common.Hash{0xba, 0xd0}

	return l
}

// inventedIndex is the log index of the release that never happened.
const inventedIndex = 4000

// invented are the stored events that never happened.
func (w *world) invented() []string {
	return w.Column(`select block_number::text from events where log_index = 4000`)
}

// store stores an event that never happened beside one of its block.
func (w *world) store(l types.Log) {
	w.Exec(`insert into events select (jsonb_populate_record(e, jsonb_build_object('log_index', $1::int))).*
		from events e where block_number <= $2 order by block_number desc limit 1`, inventedIndex, int64(l.BlockNumber))
}

// invent returns a release of an escrow, in the newest block, that never happened.
func (w *world) invent(escrow common.Address) types.Log {
	c := w.sim.Client()
	head, err := c.HeaderByNumber(w.t.Context(), nil)
	require.NoError(w.t, err)
	data := append(common.BigToHash(big.NewInt(1e18)).Bytes(), common.BigToHash(big.NewInt(1_700_000_000)).Bytes()...)

	return types.Log{
		Address: escrow, Data: data, BlockNumber: head.Number.Uint64(), BlockHash: head.Hash(), BlockTimestamp: head.Time,
		TxHash: common.Hash{0xba, 0xd0}, Index: inventedIndex,
		Topics: []common.Hash{crypto.Keccak256Hash([]byte("EscrowReleased(address,uint256,uint256)")), {12: 0xba, 31: 0xd}},
	}
}

// What was stored of an invented second announcement is taken back, and its escrow is followed as before.
func TestAnInventedAnnouncementTakesNoEscrowAway(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.src = openSource(t, w.sim.WS(), w.sim.HTTP())
	w.create(2)
	w.mine(1 + confirmations)
	w.run(watch.FilterTopics, true)
	truth := w.expect(w.head() - confirmations)
	w.mine(200) // what was read is final
	require.Eventually(t, func() bool { return w.src.View().Final > w.head()-200 }, patience, 5*time.Millisecond)
	w.Exec(`insert into events select (jsonb_populate_record(e, jsonb_build_object('log_index', $1::int, 'told', false))).*
		from events e where type = 1 order by log_index limit 1`, inventedIndex)
	w.verify(t.Output())
	require.Eventually(t, func() bool { return len(w.invented()) == 0 }, patience, 5*time.Millisecond)
	w.approve(1, truth.Escrows...)
	w.mine(1 + confirmations)
	require.Equal(t, 2, w.expect(w.head()-confirmations).Count("Approved"))
}

// announcing is a chain whose node says, in the block of the first deployment, that the factory has deployed itself.
type announcing struct {
	watch.Source

	factory common.Address
}

func (a announcing) Read(ctx context.Context, from, to uint64, f *chain.Filter) iter.Seq2[chain.Batch, error] {
	return func(yield func(chain.Batch, error) bool) {
		for b, err := range a.Source.Read(ctx, from, to, f) {
			i := slices.IndexFunc(b.Logs, func(l types.Log) bool { return l.Address == a.factory })
			if from < 20 && i >= 0 {
				l := b.Logs[i]
				l.Topics = slices.Clone(l.Topics)
				l.Topics[1], l.Index = common.BytesToHash(a.factory[:]), inventedIndex
				b.Logs = slices.Insert(slices.Clone(b.Logs), i+1, l)
			}

			if !yield(b, err) {
				return
			}
		}
	}
}

// A node invents that a factory is its own escrow: the owner of its slot stores nothing of the escrows of others, whose
// owners alone decide their order.
func TestAFactoryIsNoEscrowThatDeploys(t *testing.T) {
	t.Parallel()
	w := setup(t)
	slot := partition.Slot(w.d.Factory)
	w.holds = holder{slot}
	w.create(3)
	w.mine(1)
	w.create(3)
	w.mine(40 + confirmations)
	w.chain = announcing{w.src, w.d.Factory}
	w.run(watch.FilterTopics, false)
	w.passed()
	require.Equal(t, []string{strconv.Itoa(int(slot))}, w.Column(`select distinct slot::text from events`))
}
