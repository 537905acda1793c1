package bench

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// The chain that Backfill reads: the first fifth of its blocks create clones of the escrow,
// perBlock in each; each other block has one Approved of each clone of one such group.
const (
	backfillBlocks = 5000
	perBlock       = 20
)

// Backfill reads a chain from its start: 20,000 escrows and 100,000 events in 5,000 blocks. It
// measures as a user would: the clock runs from the start of the process to the last stored row, or
// the last message received, under the defaults of `run`, and every stored row is compared with the
// chain. The figure "stored" is the rate into the ledger while Pub/Sub holds every request,
// "drained" the rate at which the full outbox is acknowledged once Pub/Sub answers, "published" the
// rate when Pub/Sub answers from the start. Node and Pub/Sub share the machine.
//
// The floor is an indexer that does the least: logs by range, a look into a map, COPY. Its runs and the relayer's take
// turns.
func Backfill(ctx context.Context, o *Options) (figures []Figure, err error) {
	l, err := lab.Start(ctx, lab.Options{
		Bin: o.Bin, Postgres: testpg.Options{Durable: true, Settings: map[string]string{"min_wal_size": "3GB"}},
	})
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, l.Close()) }()

	if err := recycleWAL(ctx, l.DB, o.scaled(walFiles)); err != nil {
		return nil, err
	}

	blocks := o.scaled(backfillBlocks)
	o.say("backfill: making %d blocks", blocks)
	events, end, err := history(ctx, l, blocks)
	if err != nil {
		return nil, err
	}

	template, err := l.PG.Template(ctx)
	if err != nil {
		return nil, err
	}

	runs := backfillRuns{}
	for i := range o.Runs {
		if err := runs.add(ctx, o, l, i, template, events, end); err != nil {
			return nil, err
		}
	}

	return runs.figures(o), nil
}

// backfillRuns are the values of all runs, by what was measured.
type backfillRuns map[string][]float64

// add measures the floor once, and each way once.
func (runs backfillRuns) add(ctx context.Context, o *Options, l *lab.Lab, run int, template string,
	events int, end uint64) error {
	rate, chain, err := floor(ctx, l, run, events, end)
	if err != nil {
		return err
	}

	o.say("backfill: floor %.0f/s", rate)
	runs.note("floor", rate)
	ways := []way{{key: "escrow"}, {key: "escrow", held: true}, {key: "slot"}, {key: "slot", held: true}}
	if o.Base != "" {
		ways = slices.Insert(ways, 2, way{key: "escrow", base: true}, way{key: "escrow", held: true, base: true})
	}

	if run%2 == 1 { // no way is always the last
		slices.Reverse(ways)
	}

	for _, w := range ways {
		r, err := backfillBy(ctx, o, l, fmt.Sprintf("%s_%d", w.name("backfill"), run), template, w, chain, end)
		if err != nil {
			return err
		}

		o.say("backfill: %s: stored %.0f/s, %s %.0f/s, %.0f MiB, %.0f bytes of WAL per event",
			w.name("key"), r.stored, w.verb(), r.published, r.peak, r.wal)
		runs.note(w.name("published"), r.published)
		runs.note(w.of("peak"), r.peak)
		if !w.held {
			continue
		}

		runs.note(w.of("stored"), r.stored)
		runs.note(w.of("wal"), r.wal)
	}

	return nil
}

func (runs backfillRuns) note(name string, v float64) { runs[name] = append(runs[name], v) }

func (runs backfillRuns) figures(o *Options) []Figure {
	base := Quantile(runs["floor"], 0.5)
	against := func(name string, base, of float64, rates []float64) Figure {
		f := o.atLeast(name, "events/s", of*base, rates)
		f.Ratio = f.Value / base

		return f
	}
	share := func(name string, of float64, rates []float64) Figure { return against(name, base, of, rates) }
	drained := func(key string) Figure {
		return share("backfill.drained."+key, 0, runs[way{key, true, false}.name("published")])
	}

	// The binary of an earlier round, in the same runs: a figure below it is a step back, whatever the machine.
	baseline := func(name string, ours, theirs []float64) Figure {
		return against("backfill.baseline."+name, Quantile(theirs, 0.5), 1, ours)
	}
	published := way{key: "escrow"}

	figures := []Figure{
		o.atLeast("backfill.floor", "events/s", 0, runs["floor"]),
		share("backfill.stored", 0.7, runs["stored"]),
		share("backfill.published.escrow", 0.5, runs[published.name("published")]),
		share("backfill.published.slot", 0.5, runs[way{key: "slot"}.name("published")]),
		drained("escrow"), drained("slot"),
		o.atMost("backfill.peak", "MiB", 140, Quantile(runs["peak"], 0.5), runs["peak"]),
		o.atMost("backfill.wal", "bytes/event", 0, Quantile(runs["wal"], 0.5), runs["wal"]),
	}
	if o.Base == "" {
		return figures
	}

	return append(figures, baseline("stored", runs["stored"], runs[way{base: true}.of("stored")]),
		baseline("published", runs[published.name("published")],
			runs[way{key: "escrow", base: true}.name("published")]))
}

// way is how a backfill is run: the ordering key, whether Pub/Sub holds its answers until
// everything is stored, and by which binary.
type way struct {
	key        string
	held, base bool
}

func (w way) name(of string) string { return fmt.Sprintf("%s_%s_%t", w.of(of), w.key, w.held) }

func (w way) of(figure string) string {
	if w.base {
		return figure + "_base"
	}

	return figure
}

func (w way) verb() string {
	if w.held {
		return "then drained"
	}

	return "published"
}

// walFiles is how many files of the write-ahead log are recycled: more than a run fills.
const walFiles = 150

// recycleWAL leaves files of the write-ahead log behind that Postgres uses again, as on any server
// that has run for a while. On a fresh server, filling new ones with zeros is an eighth of its
// work.
func recycleWAL(ctx context.Context, db *pgxpool.Pool, files int) error {
	for range files {
		if _, err := db.Exec(ctx, `select pg_logical_emit_message(false, 'bench', 'x'), pg_switch_wal()`); err != nil {
			return fmt.Errorf("fill the write-ahead log: %w", err)
		}
	}

	if _, err := db.Exec(ctx, `checkpoint`); err != nil {
		return fmt.Errorf("recycle the write-ahead log: %w", err)
	}

	return nil
}

// history makes blocks of perBlock events, and enough blocks on top that they are final.
func history(ctx context.Context, l *lab.Lab, blocks int) (events int, end uint64, err error) {
	load, err := testchain.OpenLoad(ctx, l.Chain, l.Contracts)
	if err != nil {
		return 0, 0, err
	}
	defer load.Close()
	var groups [][]common.Address
	for b := range blocks {
		if b < max(1, blocks/5) {
			clones, err := load.Clone(ctx, perBlock)
			if err != nil {
				return 0, 0, err
			}

			groups = append(groups, clones)

			continue
		}

		if err := load.Emit(ctx, groups[b%len(groups)], 1); err != nil {
			return 0, 0, err
		}
	}

	if end, err = l.Head(ctx); err != nil {
		return 0, 0, err
	}

	return blocks * perBlock, end, l.Chain.Mine(ctx, 40)
}

// measured is the result of one run of an instance.
type measured struct {
	stored, published float64 // events per second
	peak              float64 // largest resident memory of the process, MiB
	wal               float64 // bytes per event, while Pub/Sub held its answers
}

// backfillBy is backfillOnce of the binary that is measured, or of the baseline, which makes its own tables.
func backfillBy(ctx context.Context, o *Options, l *lab.Lab, name, template string, w way, chain truth,
	end uint64) (r measured, err error) {
	if w.base {
		defer func(bin string) { l.Bin = bin }(l.Bin)
		l.Bin, template = o.Base, ""
	}

	return backfillOnce(ctx, l, name, template, w, chain, end)
}

// backfillOnce runs one instance on an empty database until everything is published, and compares
// what it stored with the chain.
func backfillOnce(ctx context.Context, l *lab.Lab, name, template string, w way, chain truth,
	end uint64) (r measured, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	if err := l.PG.CreateDatabase(ctx, name, template); err != nil {
		return r, err
	}

	defer func() { // the next run must not pay for what this one left to write back and to vacuum
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(err, l.PG.DropDatabase(ctx, name))
		if _, failed := l.DB.Exec(ctx, `checkpoint`); failed != nil {
			err = errors.Join(err, fmt.Errorf("write back what a run left: %w", failed))
		}
	}()
	db, err := pgxpool.New(ctx, l.PG.URL(name))
	if err != nil {
		return r, err
	}
	defer db.Close()
	sink, err := sinkOf(ctx)
	if err != nil {
		return r, err
	}

	defer func() { err = errors.Join(err, sink.Stop()) }()

	return measureBackfill(ctx, l, db, sink, name, w, chain, end)
}

// measureBackfill runs one instance with a database and a Pub/Sub server of its own.
func measureBackfill(ctx context.Context, l *lab.Lab, db *pgxpool.Pool, sink *testpubsub.Server, name string, w way,
	chain truth, end uint64) (r measured, err error) {
	hold := sink.Inject(testpubsub.Fault{Delay: time.Hour})
	if !w.held {
		hold.Remove()
	}

	tap := sink.TapRaw()
	defer func() { err = errors.Join(err, tap.Stop()) }()

	before, err := writtenWAL(ctx, l.DB)
	if err != nil {
		return r, err
	}

	start := time.Now()
	p, err := l.Run(name, 0, 1, backfillEnviron(l, name, sink, w))
	if err != nil {
		return r, err
	}

	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		err = errors.Join(err, p.Stop(ctx))
	}()

	if err := lab.Until(ctx, 10*time.Millisecond, "the last block",
		func() bool { return storedUpTo(ctx, db, end) || !p.Running() }); err != nil {
		return r, err
	}

	r.stored = perSecond(len(chain), time.Since(start))
	after, err := writtenWAL(ctx, l.DB)
	if err != nil {
		return r, err
	}

	r.wal = float64(after-before) / float64(len(chain))

	if w.held {
		start = time.Now()
		hold.Remove()
	}

	if !p.Running() {
		return r, fmt.Errorf("the relayer ended, see %s", p.LogFile)
	}

	if err := tap.Wait(ctx, len(chain)); err != nil {
		return r, fmt.Errorf("received %d of %d messages: %w", tap.Len(), len(chain), err)
	}

	r.published = perSecond(len(chain), time.Since(start))
	if r.peak, err = peakMemory(p.PID()); err != nil {
		return r, err
	}

	return r, chain.compare(ctx, db)
}

// sinkOf is a Pub/Sub server with the lab's topics, which forgets what it was sent.
func sinkOf(ctx context.Context) (*testpubsub.Server, error) {
	sink, err := testpubsub.Start(ctx, testpubsub.Options{Forget: true})
	if err != nil {
		return nil, err
	}

	for _, topic := range []string{lab.Topic, lab.Retractions} {
		if err := testpubsub.CreateTopic(ctx, sink.Addr(), lab.Project, topic); err != nil {
			return nil, errors.Join(err, sink.Stop())
		}
	}

	return sink, nil
}

// backfillEnviron is the environment of the instance: the defaults, but for what the lab needs and
// what w says.
func backfillEnviron(l *lab.Lab, name string, sink *testpubsub.Server, w way) map[string]string {
	return map[string]string{
		"DATABASE_URL": l.PG.URL(name), "PUBSUB_EMULATOR_HOST": sink.Addr(), "FACTORY_ADDRESS": l.Contracts.Load.Hex(),
		"ESCROW_ABI":      contracts.NoiseMetaData.ABI,
		"ORDERING_KEY":    w.key,
		"VERIFY_INTERVAL": "30s", "HEARTBEAT_INTERVAL": "30s", "CONFIRMATIONS": "12", "RPC_URLS": l.Chain.HTTP(),
	}
}

// storedUpTo reports whether everything up to a block is stored. The tables are not there at first.
func storedUpTo(ctx context.Context, db *pgxpool.Pool, end uint64) bool {
	var done bool
	err := db.QueryRow(ctx, `select min(c.next_block) > $1 and min(l.next_block) > $1
			and not exists (select from escrow_registry where not caught_up)
		from leadership l join cursors c using (chain_id) where c.next_block is not null`, int64(end)).Scan(&done)

	return err == nil && done
}

// writtenWAL is the position of the write-ahead log, in bytes.
func writtenWAL(ctx context.Context, db *pgxpool.Pool) (bytes int64, err error) {
	err = db.QueryRow(ctx, `select (pg_current_wal_lsn() - '0/0')::bigint`).Scan(&bytes)
	return bytes, err
}

// truth is what the chain has, by event_id.
type truth map[string]stored

type stored struct {
	emitter string // lower case
	block   int64
}

// compare is an error unless the stored events are exactly those of the chain.
func (t truth) compare(ctx context.Context, db *pgxpool.Pool) error {
	rows, err := db.Query(ctx, `select event_id, contract_address, block_number from processed_events`)
	if err != nil {
		return err
	}

	seen := make(map[string]bool, len(t))
	var id string
	var s stored
	_, err = pgx.ForEachRow(rows, []any{&id, &s.emitter, &s.block}, func() error {
		if t[id] != s || seen[id] {
			return fmt.Errorf("stored %s of %s in block %d, the chain has %+v", id, s.emitter, s.block, t[id])
		}

		seen[id] = true

		return nil
	})
	if err == nil && len(seen) != len(t) {
		err = fmt.Errorf("stored %d events, the chain has %d", len(seen), len(t))
	}

	return err
}

// floorRange is how many blocks a request of the floor asks for.
const floorRange = 1000

// floor is the rate of reading, matching and storing alone: no deduplication, no records, no
// outbox. It also returns what it has read.
func floor(ctx context.Context, l *lab.Lab, run, events int, end uint64) (rate float64, chain truth, err error) {
	client, err := ethclient.DialContext(ctx, l.Chain.HTTP())
	if err != nil {
		return 0, nil, err
	}
	defer client.Close()
	abi, err := contract.New("", "")
	if err != nil {
		return 0, nil, err
	}

	table := fmt.Sprintf("floor_%d", run)
	create := `create table ` + table + ` (tx bytea, log_index int, address bytea, block bigint, topic bytea, data bytea)`
	if _, err := l.DB.Exec(ctx, create); err != nil {
		return 0, nil, err
	}

	known := map[common.Address]bool{}
	var all [][]types.Log
	start := time.Now()
	for from := l.Contracts.Block; from <= end; from += floorRange {
		logs, err := client.FilterLogs(ctx, ethereum.FilterQuery{
			FromBlock: new(big.Int).SetUint64(from), ToBlock: new(big.Int).SetUint64(min(end, from+floorRange-1)),
			Topics: [][]common.Hash{abi.Topics()},
		})
		if err != nil {
			return 0, nil, fmt.Errorf("read logs for the floor: %w", err)
		}

		var ours []types.Log
		for _, x := range logs {
			if x.Address == l.Contracts.Load {
				known[common.BytesToAddress(x.Topics[1][:])] = true
				ours = append(ours, x)
			} else if known[x.Address] {
				ours = append(ours, x)
			}
		}

		if err := copyLogs(ctx, l.DB, table, ours); err != nil {
			return 0, nil, err
		}

		all = append(all, ours)
	}

	took := time.Since(start)

	if chain = truthOf(slices.Concat(all...)); len(chain) != events {
		return 0, nil, fmt.Errorf("the floor stored %d events, the chain has %d", len(chain), events)
	}

	return perSecond(events, took), chain, nil
}

// copyLogs stores the logs of one request of the floor.
func copyLogs(ctx context.Context, db *pgxpool.Pool, table string, logs []types.Log) error {
	_, err := db.CopyFrom(ctx, pgx.Identifier{table}, []string{"tx", "log_index", "address", "block", "topic", "data"},
		pgx.CopyFromSlice(len(logs), func(i int) ([]any, error) {
			x := &logs[i]
			return []any{x.TxHash[:], int32(x.Index), x.Address[:], int64(x.BlockNumber), x.Topics[0][:], x.Data}, nil
		}))
	if err != nil {
		return fmt.Errorf("store logs for the floor: %w", err)
	}

	return nil
}

// truthOf is what the chain has, by the logs that the floor has read.
func truthOf(logs []types.Log) truth {
	chain := truth{}
	for _, x := range logs {
		id := fmt.Sprintf("%s:%d", x.TxHash.Hex(), x.Index)
		chain[id] = stored{strings.ToLower(x.Address.Hex()), int64(x.BlockNumber)}
	}

	return chain
}

// peakMemory is the most that a process had resident at once, in MiB (VmHWM of proc(5)).
func peakMemory(pid int) (float64, error) {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}

	for line := range strings.Lines(string(status)) {
		var kib float64
		if n, _ := fmt.Sscanf(line, "VmHWM: %f kB", &kib); n == 1 {
			return kib / 1024, nil
		}
	}

	return 0, fmt.Errorf("read the memory of process %d: no VmHWM in its status", pid)
}
