package watch_test

import (
	"bytes"
	"context"
	"log/slog"
	"math/big"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

// lines is a log that may be read while it is written.
type lines struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(b)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Count(l.all.Bytes(), []byte(text))
}

// A block whose content the database refuses is named as what it is, once its commit has failed three
// times: in the log, in the metric, and to whoever asks the watch. The leader stays, since no node is at
// fault, and goes on as soon as the database takes it.
func TestACommitThatIsRefusedAgainAndAgainHasAName(t *testing.T) {
	t.Parallel()
	for name, writes := range map[string]string{"factory": "update on leadership", "slots": "insert on events"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.create(1)
			w.mine(1 + confirmations)
			w.Exec(`create function refuse() returns trigger language plpgsql as $$ begin raise exception 'poison'; end $$`)
			w.Exec(`create trigger refuse before ` + writes + ` for each row execute function refuse()`)

			said := &lines{}
			cfg := watch.Config{
				Source: w.src, Ledger: w.led, ABI: w.abi, Log: slog.New(slog.NewTextHandler(said, nil)),
				Filters: watch.NewFilters(w.abi, w.followed(), watch.FilterTopics, 1000),
				Metrics: watch.NewMetrics(prometheus.NewRegistry(), w.abi.EventNames()),
			}
			leader := watch.NewFactoryWatch(watch.FactoryConfig{Config: cfg, BeatEvery: time.Second,
				ResignAfter: time.Second, Health: w.src.Health})
			slots := watch.NewSlotWatch(watch.SlotConfig{Config: cfg, DB: w.DB, Holder: holder{}, Publisher: w.out,
				ChainID: chainID, Discovered: w.hints})
			stuck := map[string]func() *watch.StuckError{"factory": leader.Stuck, "slots": slots.Stuck}[name]
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			beats := make(chan struct{}, 100)
			wg.Go(func() {
				require.NoError(t, leader.Run(ctx, 1, func(context.Context) error { beats <- struct{}{}; return nil }))
			})
			wg.Go(func() { require.NoError(t, slots.Run(ctx)) })
			defer wg.Wait()
			defer cancel()

			require.Eventually(t, func() bool { return stuck() != nil }, patience, 5*time.Millisecond)
			e := stuck()
			require.ErrorContains(t, e, "poison")
			require.GreaterOrEqual(t, e.Times, 3)
			require.Eventually(t, func() bool { return said.count("commit refused again and again") == 1 },
				patience, 5*time.Millisecond)
			for range 4 { // a leader that may not go on for ResignAfter would be gone by then
				<-beats
			}

			require.NotNil(t, stuck())
			w.Exec(`drop trigger refuse on ` + strings.Fields(writes)[2])
			require.Eventually(t, func() bool { return stuck() == nil }, patience, 5*time.Millisecond)
			w.hints <- struct{}{}
			w.expect(w.head() - confirmations)
			require.Zero(t, said.count("the node"), "no node is at fault")
		})
	}
}

// moving is a holder whose slots go.
type moving struct {
	mu      sync.Mutex
	holding partition.Holding
	changed chan struct{}
}

func (m *moving) Settled() (partition.Holding, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.holding, m.changed
}

// What a commit met is over once there is none to make: without slots, and where it was stored in spite of its error.
func TestWithoutACommitToMakeNoneIsRefused(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*world, *moving){
		"slots": func(_ *world, m *moving) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.holding.Slots = nil
			close(m.changed)
			m.changed = nil
		},
		"factory": func(w *world, _ *moving) {
			c := w.sim.Client()
			last, err := c.HeaderByNumber(w.t.Context(), new(big.Int).SetUint64(w.head()-confirmations))
			require.NoError(w.t, err)
			require.NoError(w.t, pgx.BeginFunc(w.t.Context(), w.DB, func(tx pgx.Tx) error {
				_, err := tx.Exec(w.t.Context(), `alter table leadership disable trigger refuse`)
				require.NoError(w.t, err)
				_, err = tx.Exec(w.t.Context(), `update leadership set next_block = $1, block_hash = $2`,
					last.Number.Int64()+1, last.Hash().Hex())
				require.NoError(w.t, err)
				_, err = tx.Exec(w.t.Context(), `alter table leadership enable trigger refuse`)

				return err
			}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.create(1)
			w.mine(1 + confirmations)
			w.Exec(`create function refuse() returns trigger language plpgsql as $$ begin raise exception 'poison'; end $$`)
			table := map[string]string{"slots": "cursors", "factory": "leadership"}[name]
			w.Exec(`create trigger refuse before update on ` + table + ` for each row execute function refuse()`)
			held, _ := holder{}.Settled()
			m := &moving{holding: held, changed: make(chan struct{})}
			var told atomic.Pointer[error]
			cfg := watch.Config{
				Source: w.src, Ledger: w.led, ABI: w.abi, Log: slog.New(slog.DiscardHandler),
				Filters: watch.NewFilters(w.abi, w.followed(), watch.FilterTopics, 1000),
				Metrics: watch.NewMetrics(prometheus.NewRegistry(), w.abi.EventNames()),
				Stored:  func(err error) { told.Store(&err) },
			}
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer cancel()
			if name == "slots" {
				slots := watch.NewSlotWatch(watch.SlotConfig{Config: cfg, DB: w.DB, Holder: m, Publisher: w.out,
					ChainID: chainID, Discovered: w.hints})
				wg.Go(func() { require.NoError(t, slots.Run(ctx)) })
			} else {
				leader := watch.NewFactoryWatch(watch.FactoryConfig{Config: cfg, BeatEvery: time.Second,
					ResignAfter: time.Minute, Health: w.src.Health})
				wg.Go(func() { require.NoError(t, leader.Run(ctx, 1, func(context.Context) error { return nil })) })
			}

			refused := func() bool { return told.Load() != nil && *told.Load() != nil }
			require.Eventually(t, refused, patience, 5*time.Millisecond)
			end(w, m)
			require.Eventually(t, func() bool { return !refused() }, patience, 5*time.Millisecond)
		})
	}
}
