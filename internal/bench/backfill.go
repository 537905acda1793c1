package bench

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"slices"
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
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// A block of the chain that is read again: clones of the first fifth of the blocks, one Approved
// each of a group of them in the others.
const (
	backfillBlocks = 5000
	perBlock       = 20
)

// Backfill reads a chain from its start: 20,000 escrows and 100,000 events in 5,000 blocks. It
// measures as a stranger would: the clock runs from the start of the process to the last stored
// row, or the last message received, under the defaults of `run`, and every stored row is compared
// with the chain. Stored is the rate into the ledger while Pub/Sub holds every request, drained the
// rate at which the full outbox is acknowledged once it lets go; published is the rate of both at
// once. Node and Pub/Sub share the machine.
//
// The floor is an indexer that does the least: logs by range, a look into a map, COPY. The runs of all take turns.
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

	runs := map[string][]float64{}
	note := func(name string, v float64) { runs[name] = append(runs[name], v) }
	for i := range o.Runs {
		rate, chain, err := floor(ctx, l, i, events, end)
		if err != nil {
			return nil, err
		}

		o.say("backfill: floor %.0f/s", rate)
		note("floor", rate)
		ways := []way{{"escrow", false}, {"escrow", true}, {"slot", false}, {"slot", true}}
		if i%2 == 1 { // so that none is always the last
			slices.Reverse(ways)
		}

		for _, w := range ways {
			r, err := again(ctx, l, fmt.Sprintf("%s_%d", w.name("backfill"), i), template, w, chain, end)
			if err != nil {
				return nil, err
			}

			o.say("backfill: key %s: stored %.0f/s, %s %.0f/s, %.0f MiB, %.0f bytes of WAL per event",
				w.key, r.stored, w.verb(), r.published, r.peak, r.wal)
			note(w.name("published"), r.published)
			note("peak", r.peak)
			if w.held {
				note("stored", r.stored)
				note("wal", r.wal)
			}
		}
	}

	base := Quantile(runs["floor"], 0.5)
	share := func(name string, of float64, rates []float64) Figure {
		f := o.atLeast(name, "events/s", of*base, rates)
		f.Ratio = f.Value / base
		return f
	}

	return []Figure{
		o.atLeast("backfill.floor", "events/s", 0, runs["floor"]),
		share("backfill.stored", 0.8, runs["stored"]),
		share("backfill.published.escrow", 0.5, runs[way{"escrow", false}.name("published")]),
		share("backfill.published.slot", 0.5, runs[way{"slot", false}.name("published")]),
		share("backfill.drained.escrow", 0, runs[way{"escrow", true}.name("published")]),
		share("backfill.drained.slot", 0, runs[way{"slot", true}.name("published")]),
		o.atMost("backfill.peak", "MiB", 120, Quantile(runs["peak"], 0.5), runs["peak"]),
		o.atMost("backfill.wal", "bytes/event", 0, Quantile(runs["wal"], 0.5), runs["wal"]),
	}, nil
}

// way is how a backfill is run: the ordering key, and whether Pub/Sub holds its answers until everything is stored.
type way struct {
	key  string
	held bool
}

func (w way) name(of string) string { return fmt.Sprintf("%s_%s_%t", of, w.key, w.held) }

func (w way) verb() string {
	if w.held {
		return "then drained"
	}

	return "published"
}

// walFiles are more than a run fills.
const walFiles = 150

// recycleWAL leaves files of the write-ahead log behind that are used again, as on any server that
// has run for a while. To fill a new one with zeros is an eighth of a fresh server's work.
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

// history makes blocks of perBlock events, and so many on top that they are final.
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

// measured is what one run of an instance gave.
type measured struct {
	stored, published float64 // events per second
	peak              float64 // largest resident memory of the process, MiB
	wal               float64 // bytes per event, while Pub/Sub held its answers
}

// again runs one instance on an empty database until everything is published, and compares what it
// stored with the chain.
func again(ctx context.Context, l *lab.Lab, name, template string, w way, chain truth,
	end uint64) (r measured, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	if err := l.PG.CreateDatabase(ctx, name, template); err != nil {
		return r, err
	}

	defer func() { // the next run does not pay for what this one left to be written and vacuumed
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
	sink, err := testpubsub.Start(ctx, testpubsub.Options{Forget: true})
	if err != nil {
		return r, err
	}

	defer func() { err = errors.Join(err, sink.Stop()) }()
	for _, topic := range []string{lab.Topic, lab.Retractions} {
		if err := testpubsub.CreateTopic(ctx, sink.Addr(), lab.Project, topic); err != nil {
			return r, err
		}
	}

	hold := sink.Inject(testpubsub.Fault{Delay: time.Hour})
	if !w.held {
		hold.Remove()
	}

	tap := sink.Tap()
	defer func() { err = errors.Join(err, tap.Stop()) }()

	before, err := writtenWAL(ctx, l.DB)
	if err != nil {
		return r, err
	}

	start := time.Now()
	p, err := l.Run(name, 0, 1, map[string]string{
		"DATABASE_URL": l.PG.URL(name), "PUBSUB_EMULATOR_HOST": sink.Addr(), "FACTORY_ADDRESS": l.Contracts.Load.Hex(),
		"ORDERING_KEY":    w.key,
		"VERIFY_INTERVAL": "30s", "HEARTBEAT_INTERVAL": "30s", "CONFIRMATIONS": "12", "RPC_URLS": l.Chain.HTTP(),
	})
	if err != nil {
		return r, err
	}

	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		err = errors.Join(err, p.Stop(ctx))
	}()

	stored := func() bool { // the tables are not there at first
		var done bool
		err := db.QueryRow(ctx, `select min(c.next_block) > $1 and min(l.next_block) > $1
				and not exists (select from escrow_registry where not caught_up)
			from leadership l join cursors c using (chain_id) where c.next_block is not null`, int64(end)).Scan(&done)

		return err == nil && done
	}
	if err := poll(ctx, 10*time.Millisecond, "the last block",
		func() bool { return stored() || !p.Running() }); err != nil {
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

// writtenWAL is the position of the write-ahead log, in bytes.
func writtenWAL(ctx context.Context, db *pgxpool.Pool) (bytes int64, err error) {
	err = db.QueryRow(ctx, `select (pg_current_wal_lsn() - '0/0')::bigint`).Scan(&bytes)
	return bytes, err
}

// truth is what the chain has: event_id to emitter and block.
type truth map[string]stored

type stored struct {
	emitter string // lower case
	block   int64
}

// compare demands that the stored events are those of the chain.
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

// floorRange is the blocks of a request of the floor.
const floorRange = 1000

// floor is the rate of reading, matching and storing alone: no dedupe, no records, no outbox. It
// returns what it read, too.
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

		_, err = l.DB.CopyFrom(ctx, pgx.Identifier{table}, []string{"tx", "log_index", "address", "block", "topic", "data"},
			pgx.CopyFromSlice(len(ours), func(i int) ([]any, error) {
				x := &ours[i]
				return []any{x.TxHash[:], int32(x.Index), x.Address[:], int64(x.BlockNumber), x.Topics[0][:], x.Data}, nil
			}))
		if err != nil {
			return 0, nil, fmt.Errorf("store logs for the floor: %w", err)
		}

		all = append(all, ours)
	}

	took := time.Since(start)

	chain = truth{}
	for _, x := range slices.Concat(all...) {
		id := fmt.Sprintf("%s:%d", x.TxHash.Hex(), x.Index)
		chain[id] = stored{strings.ToLower(x.Address.Hex()), int64(x.BlockNumber)}
	}

	if len(chain) != events {
		return 0, nil, fmt.Errorf("the floor stored %d events, the chain has %d", len(chain), events)
	}

	return perSecond(events, took), chain, nil
}
