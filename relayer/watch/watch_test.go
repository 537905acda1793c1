package watch_test

import (
	"context"
	"iter"
	"log/slog"
	"math/big"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/internal/testfleet"
	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

const chainID, me = 1337, "r0"

// patience is what only something that hangs exceeds, also on a machine that does much else.
const patience = 10 * time.Minute

// world is a chain, a database whose slots all belong to one instance, and its two watches.
type world struct {
	*testfleet.Fleet
	t      *testing.T
	sim    *testchain.Sim
	d      testchain.Deployment
	wallet *testchain.Wallet
	src    *chain.Source
	abi    *contract.ABI
	led    *ledger.Ledger
	hints  chan struct{}

	page  int   // LateAtOnce
	near  int64 // Near
	holds holder
	chain watch.Source // of the slot watch; nil: src
	leads watch.Source // of the factory watch; nil: src

	out *recorder
	// of the last run
	slots   *watch.SlotWatch
	filters *watch.Filters
	tracer  trace.Tracer
}

// recorder is a publisher that remembers what it was offered.
type recorder struct {
	mu       sync.Mutex
	ids      map[common.Address][]string // of events
	by       map[common.Address][]common.Address
	taken    []string // of events that are retracted
	traces   []*trace.SpanContext
	reloaded int
}

func (r *recorder) Offer(c outbox.Commit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	batch := slices.Concat(c.Log, c.Rows)
	for i := range batch {
		e := &batch[i].Event
		if message.Kind(batch[i].Kind) == message.Retraction {
			r.taken = append(r.taken, e.ID())
			continue
		}

		r.ids[e.Escrow] = append(r.ids[e.Escrow], e.Name+" "+e.ID())
		if !slices.Contains(r.by[e.Escrow], e.Factory) {
			r.by[e.Escrow] = append(r.by[e.Escrow], e.Factory)
		}

		r.traces = append(r.traces, batch[i].Trace)
	}
}

func (r *recorder) Reload(outbox.Right, []int16) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reloaded++
}

func (r *recorder) reloads() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reloaded
}

func (r *recorder) of(a common.Address) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.ids[a])
}

// factoriesOf are the factories that the events of an escrow have named.
func (r *recorder) factoriesOf(a common.Address) []common.Address {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.by[a])
}

func (r *recorder) retracted() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.taken)
}

type holder []int16 // empty: all slots

func (h holder) Settled() (partition.Holding, <-chan struct{}) {
	if len(h) == 0 {
		h = partition.Partition{Total: 1, Strategy: partition.Modulo}.Preferred()
	}

	return partition.Holding{Epoch: 1, Slots: h}, nil
}

func published(name string) bool { return name != "EscrowCreated" && name != "ArbiterChanged" }

func setup(t *testing.T) *world {
	ctx := t.Context()
	sim, d := testchain.NewContracts(t, testchain.Options{})
	wallet, err := testchain.OpenWallet(ctx, sim.Client(), sim.Accounts()...)
	require.NoError(t, err)
	w := &world{Fleet: testfleet.New(t, chainID), t: t, sim: sim, d: d, wallet: wallet, hints: make(chan struct{}, 1),
		out: &recorder{ids: map[common.Address][]string{},
			by: map[common.Address][]common.Address{}}}
	w.abi, err = contract.New("", "")
	require.NoError(t, err)
	w.Alone(me, int64(d.Block), d.Factory.Hex())
	w.led = ledger.New(ledger.Config{DB: w.DB, ChainID: chainID, InstanceID: me, EventNames: w.abi.EventNames(),
		Publishes: published})
	w.src = openSource(t, sim.WS())

	return w
}

// followed is the factory of this chain, as an instance knows it.
func (w *world) followed() *registry.Followed {
	return registry.NewFollowed(registry.Factory{ID: 1, Address: w.d.Factory, Start: int64(w.d.Block)})
}

func (w *world) run(mode watch.FilterMode, factory bool) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	var wg sync.WaitGroup
	log := slog.New(slog.NewTextHandler(w.t.Output(), nil))
	filters := watch.NewFilters(w.abi, w.followed(), mode, 1000)
	metrics := watch.NewMetrics(prometheus.NewRegistry(), w.abi.EventNames())
	var chain watch.Source = w.src
	if w.chain != nil {
		chain = w.chain
	}

	common := watch.Config{Source: chain, Ledger: w.led, ABI: w.abi, Filters: filters, Log: log, Metrics: metrics,
		Tracer: w.tracer}
	slots := watch.NewSlotWatch(watch.SlotConfig{
		Config: common, DB: w.DB, Holder: w.holds, Publisher: w.out, ChainID: chainID,
		Discovered: w.hints, LateAtOnce: w.page, Near: w.near,
	})
	w.slots, w.filters = slots, filters
	wg.Go(func() { require.NoError(w.t, slots.Run(ctx)) })
	if factory {
		common.Source = w.src
		if w.leads != nil {
			common.Source = w.leads
		}

		leader := watch.FactoryConfig{Config: common, BeatEvery: time.Second, ResignAfter: time.Minute, Health: w.src.Health}
		fw, past := watch.NewFactoryWatch(leader), watch.NewPastWatch(leader)
		wg.Go(func() { require.NoError(w.t, past.Run(ctx, 1)) })
		listening := make(chan struct{})
		wg.Go(func() { w.hint(ctx, listening) })
		<-listening
		wg.Go(func() {
			require.NoError(w.t, fw.Run(ctx, 1, func(context.Context) error { return nil }))
		})
	}

	stopped := sync.OnceFunc(func() { cancel(); wg.Wait() })
	w.t.Cleanup(stopped)

	return stopped
}

// hint passes on that the factory watch has committed, until ctx ends, as an instance does: on a
// busy machine the slot watch does not wait long enough for it.
func (w *world) hint(ctx context.Context, listening chan<- struct{}) {
	defer close(listening)
	conn, err := pgx.ConnectConfig(ctx, w.DB.Config().ConnConfig)
	require.NoError(w.t, err)
	defer func() { require.NoError(w.t, conn.Close(context.WithoutCancel(ctx))) }()
	_, err = conn.Exec(ctx, `listen `+registry.Channel)
	require.NoError(w.t, err)
	listening <- struct{}{}
	for {
		if _, err := conn.WaitForNotification(ctx); err != nil {
			require.ErrorIs(w.t, err, context.Canceled)
			return
		}

		select {
		case w.hints <- struct{}{}:
		default:
		}
	}
}

var factory, escrow = contracts.NewEscrowFactory(), contracts.NewEscrow()

func (w *world) create(n int) {
	var calls []testchain.Call
	for range n {
		data := factory.PackCreateEscrow(w.sim.Accounts()[1].Address, new(big.Int), 2, w.sim.Accounts()[2].Address)
		calls = append(calls, testchain.Call{To: &w.d.Factory, Data: data, Value: big.NewInt(1000)})
	}

	w.send(0, calls...)
}

func (w *world) send(account int, calls ...testchain.Call) {
	_, err := w.wallet.Send(w.t.Context(), account, calls...)
	require.NoError(w.t, err)
}

func (w *world) mine(n int) { require.NoError(w.t, w.sim.Mine(w.t.Context(), n)) }

// expect waits until exactly what the chain has up to its target was offered, in order, EscrowDeployed first.
func (w *world) expect(to uint64) *testchain.Truth {
	truth, err := testchain.ReadTruth(w.t.Context(), w.sim.Client(), 0, to, w.d.Factory)
	require.NoError(w.t, err)
	require.NotEmpty(w.t, truth.Escrows)
	for _, a := range truth.Escrows {
		var want []string
		for _, e := range truth.Events[a] {
			if e.Name == "EscrowDeployed" {
				want = append([]string{e.Name + " " + e.ID}, want...)
			} else if published(e.Name) {
				want = append(want, e.Name+" "+e.ID)
			}
		}

		require.Eventually(w.t, func() bool { return len(w.out.of(a)) >= len(want) }, patience, 5*time.Millisecond,
			"%s: %v", a, w.out.of(a))
		require.Equal(w.t, want, w.out.of(a))
	}

	return truth
}

func (w *world) head() uint64 {
	c := w.sim.Client()
	n, err := c.BlockNumber(w.t.Context())
	require.NoError(w.t, err)

	return n
}

func (w *world) approve(account int, escrows ...common.Address) {
	for _, a := range escrows {
		w.send(account, testchain.Call{To: &a, Data: escrow.PackApprove()})
	}
}

func TestFollow(t *testing.T) {
	t.Parallel()
	for _, mode := range []watch.FilterMode{watch.FilterTopics, watch.FilterAddresses, watch.FilterAuto} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.create(5)
			w.mine(30)
			w.run(mode, true)
			truth := w.expect(w.head() - confirmations)
			for i := range 5 {
				w.create(3)
				w.approve(1, truth.Escrows[i])
				w.approve(2, truth.Escrows[i]) // releases
				w.mine(1)
			}

			w.mine(confirmations)
			truth = w.expect(w.head() - confirmations)
			require.Len(t, truth.Escrows, 20)
			require.Equal(t, 10, truth.Count("Approved"))
			require.Equal(t, 5, truth.Count("EscrowReleased"))
		})
	}
}

// overlooking is a chain without the logs of a contract, as a node may hide them.
type overlooking struct {
	watch.Source

	hidden common.Address
}

func (o overlooking) Read(ctx context.Context, from, to uint64, f *chain.Filter) iter.Seq2[chain.Batch, error] {
	return func(yield func(chain.Batch, error) bool) {
		for b, err := range o.Source.Read(ctx, from, to, f) {
			b.Logs = slices.DeleteFunc(slices.Clone(b.Logs), func(l types.Log) bool { return l.Address == o.hidden })
			if !yield(b, err) {
				return
			}
		}
	}
}

// The owner of a slot needs no leader: it registers, follows and publishes what the factory deploys.
func TestNobodyLeads(t *testing.T) {
	t.Parallel()
	for _, mode := range []watch.FilterMode{watch.FilterTopics, watch.FilterAddresses, watch.FilterAuto} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.create(3)
			w.mine(40)
			w.run(mode, false)
			truth := w.expect(w.head() - confirmations)
			w.create(2)
			w.approve(1, truth.Escrows...)
			w.mine(1 + confirmations)
			require.Len(t, w.expect(w.head()-confirmations).Escrows, 5)
			require.Eventually(t, func() bool { // by addresses they are late for a moment
				return w.Column(`select count(*)::text from escrow_registry where status = 'active' and announced and caught_up`)[0] == "5"
			}, patience, 5*time.Millisecond)
		})
	}
}

// A cursor that a claim has moved back meets registered escrows again. A node that hides their deployments now takes
// none of them away.
func TestWhatIsRegisteredIsFollowed(t *testing.T) {
	t.Parallel()
	for _, mode := range []watch.FilterMode{watch.FilterTopics, watch.FilterAddresses} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.mine(3)
			before := w.head()
			w.create(3)
			w.mine(10)
			stop := w.run(mode, true)
			truth := w.expect(w.head() - confirmations)
			stop()
			w.SetCursor(me, int64(before), "")
			w.chain = overlooking{w.src, w.d.Factory}
			w.run(mode, true)
			w.approve(1, truth.Escrows...)
			w.mine(1 + confirmations)
			require.Equal(t, 3, w.expect(w.head()-confirmations).Count("Approved"))
		})
	}
}

// Escrows whose deployment the slot watch has passed without seeing it are registered by the leader, and caught up, in
// order.
func TestLateEscrows(t *testing.T) {
	t.Parallel()
	for _, mode := range []watch.FilterMode{watch.FilterTopics, watch.FilterAddresses} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.create(3)
			w.mine(1)
			early, err := testchain.ReadTruth(t.Context(), w.sim.Client(), 0, w.head(), w.d.Factory)
			require.NoError(t, err)
			w.approve(1, early.Escrows...)
			w.mine(40)
			w.chain = overlooking{w.src, w.d.Factory}
			stop := w.run(mode, false)
			require.Eventually(t, func() bool {
				at, err := w.led.SlotPosition(t.Context(), 1)
				require.NoError(t, err)
				return at.Next > int64(w.head()-confirmations)
			}, patience, 10*time.Millisecond)
			require.Empty(t, w.out.of(early.Escrows[0]))
			stop()
			w.chain, w.page = nil, 2 // fewer than there are
			w.run(mode, true)
			w.approve(2, early.Escrows[0])
			w.mine(1 + confirmations)
			w.expect(w.head() - confirmations)
		})
	}
}

// A reorganisation deeper than the confirmations: what is gone is retracted, what moved is
// published anew, what stays is not published twice.
func TestDeepReorg(t *testing.T) {
	t.Parallel()
	for _, fate := range []testchain.Fate{testchain.Drop, testchain.Keep} {
		t.Run(map[testchain.Fate]string{testchain.Drop: "drop", testchain.Keep: "keep"}[fate], func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.create(2)
			w.mine(2)
			w.run(watch.FilterTopics, true)
			w.mine(confirmations)
			truth := w.expect(w.head() - confirmations)
			w.approve(1, truth.Escrows[0])
			w.mine(1)
			w.create(1)
			w.mine(1 + confirmations)
			before := w.expect(w.head() - confirmations)
			require.Len(t, before.Escrows, 3)
			w.Publish()

			require.NoError(t, w.sim.Reorg(t.Context(), 3+confirmations, fate))
			w.mine(6 + confirmations)
			require.Eventually(t, func() bool {
				at, err := w.led.SlotPosition(t.Context(), 1)
				require.NoError(t, err)
				return at.Next > int64(w.head()-confirmations)
			}, patience, 10*time.Millisecond)
			after, err := testchain.ReadTruth(t.Context(), w.sim.Client(), 0, w.head()-confirmations, w.d.Factory)
			require.NoError(t, err)
			// Once more, a block so that both cursors have passed the old tip.
			w.mine(1)
			want := map[string]bool{}
			for _, entries := range after.Events {
				for _, e := range entries {
					want[e.ID] = true
				}
			}

			require.Eventually(t, func() bool {
				var orphans int
				require.NoError(t, w.DB.QueryRow(t.Context(),
					`select count(*) from processed_events where state = 'orphaned'`).Scan(&orphans))

				return orphans == 0
			}, patience, 10*time.Millisecond)
			stored, err := w.led.Stored(t.Context(), 0, 1<<40)
			require.NoError(t, err)
			got := map[string]bool{}
			for i := range stored {
				stored[i].Occurrence = 0 // where the log is, not how it is called
				got[stored[i].ID()] = true
			}

			require.Equal(t, want, got)
			if fate == testchain.Drop {
				require.Len(t, after.Escrows, 2)
				var retractions int
				require.NoError(t, w.DB.QueryRow(t.Context(), `select count(*) from outbox where kind = 1`).Scan(&retractions))
				require.Equal(t, 2, retractions, "an approval and a deployment")
			}
		})
	}
}
