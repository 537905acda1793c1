package bench

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"slices"
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

// A block of the chain that is read again: clones of the first fifth of the blocks, one Approved each of a group of them in the others.
const (
	backfillBlocks = 5000
	perBlock       = 20
)

// Backfill reads a chain from its start: 20,000 escrows and 100,000 events in 5,000 blocks. The clock runs from the moment at which the
// instance has its cursor. Stored is the rate into the ledger while Pub/Sub holds every request, drained the rate at which the full outbox is
// acknowledged once it lets go; published is the rate of both at once, and everything, node and Pub/Sub too, shares the machine.
// The floor is an indexer that does the least: logs by range, a look into a map, COPY.
func Backfill(ctx context.Context, o *Options) (figures []Figure, err error) {
	l, err := lab.Start(ctx, lab.Options{Bin: o.Bin, Postgres: testpg.Options{Durable: true, Settings: map[string]string{"min_wal_size": "3GB"}}})
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
	for i := range o.Runs {
		rate, err := floor(ctx, l, i, events, end)
		if err != nil {
			return nil, err
		}
		o.say("backfill: floor %.0f/s", rate)
		runs["floor"] = append(runs["floor"], rate)
		ways := []way{{"escrow", false}, {"escrow", true}, {"slot", false}, {"slot", true}}
		if i%2 == 1 { // so that none is always the last
			slices.Reverse(ways)
		}
		for _, w := range ways {
			stored, published, err := again(ctx, l, fmt.Sprintf("%s_%d", w.name("backfill"), i), template, w, events, end)
			if err != nil {
				return nil, err
			}
			o.say("backfill: key %s: stored %.0f/s, %s %.0f/s", w.key, stored, w.verb(), published)
			runs[w.name("stored")] = append(runs[w.name("stored")], stored)
			runs[w.name("published")] = append(runs[w.name("published")], published)
		}
	}
	base := Quantile(runs["floor"], 0.5)
	figures = []Figure{
		o.atLeast("backfill.floor", "events/s", 0, runs["floor"]),
		o.atLeast("backfill.stored", "events/s", 30_000, slices.Concat(runs[way{"escrow", true}.name("stored")], runs[way{"slot", true}.name("stored")])),
		o.atLeast("backfill.published.escrow", "events/s", 12_000, runs[way{"escrow", false}.name("published")]),
		o.atLeast("backfill.published.slot", "events/s", 25_000, runs[way{"slot", false}.name("published")]),
		o.atLeast("backfill.drained.escrow", "events/s", 12_000, runs[way{"escrow", true}.name("published")]),
		o.atLeast("backfill.drained.slot", "events/s", 25_000, runs[way{"slot", true}.name("published")]),
	}
	for i := range figures[1:] {
		figures[i+1].Ratio = figures[i+1].Value / base
	}
	return figures, nil
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

// recycleWAL leaves files of the write-ahead log behind that are used again, as on any server that has run for a while. To fill a new one with zeros is an
// eighth of a fresh server's work.
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

// again runs one instance on an empty database until everything is published.
func again(ctx context.Context, l *lab.Lab, name, template string, w way, events int, end uint64) (stored, published float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	if err := l.PG.CreateDatabase(ctx, name, template); err != nil {
		return 0, 0, err
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
		return 0, 0, err
	}
	defer db.Close()
	sink, err := testpubsub.Start(ctx, testpubsub.Options{Forget: true})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, sink.Stop()) }()
	for _, topic := range []string{lab.Topic, lab.Retractions} {
		if err := testpubsub.CreateTopic(ctx, sink.Addr(), lab.Project, topic); err != nil {
			return 0, 0, err
		}
	}
	hold := sink.Inject(testpubsub.Fault{Delay: time.Hour})
	if !w.held {
		hold.Remove()
	}
	tap := sink.Tap()
	defer func() { err = errors.Join(err, tap.Stop()) }()
	p, err := l.Run(name, 0, 1, map[string]string{
		"DATABASE_URL": l.PG.URL(name), "PUBSUB_EMULATOR_HOST": sink.Addr(), "FACTORY_ADDRESS": l.Contracts.Load.Hex(), "ORDERING_KEY": w.key,
		"VERIFY_INTERVAL": "30s", "RPC_URLS": l.Chain.HTTP(), "LOG_LEVEL": "warn",
	})
	if err != nil {
		return 0, 0, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		err = errors.Join(err, p.Stop(ctx))
	}()
	next := func() (n int64) { // zero before there is a cursor
		if db.QueryRow(ctx, `select next_block from cursors where next_block is not null`).Scan(&n) != nil {
			return 0
		}
		return n
	}
	if err := poll(ctx, 5*time.Millisecond, "a cursor", func() bool { return next() > 0 || !p.Running() }); err != nil {
		return 0, 0, err
	}
	start := time.Now()
	late := func() (n int) {
		if db.QueryRow(ctx, `select count(*) from escrow_registry where not caught_up`).Scan(&n) != nil {
			return 1
		}
		return n
	}
	if err := poll(ctx, 20*time.Millisecond, "the last block", func() bool { return !p.Running() || next() > int64(end) && late() == 0 }); err != nil {
		return 0, 0, err
	}
	stored = perSecond(events, time.Since(start))
	if w.held {
		start = time.Now()
		hold.Remove()
	}
	if !p.Running() {
		return 0, 0, fmt.Errorf("the relayer ended, see %s", p.LogFile)
	}
	if err := tap.Wait(ctx, events); err != nil {
		return 0, 0, fmt.Errorf("received %d of %d messages: %w", tap.Len(), events, err)
	}
	published = perSecond(events, time.Since(start))
	var n int
	if err := db.QueryRow(ctx, `select count(*) from processed_events`).Scan(&n); err != nil {
		return 0, 0, err
	}
	if n != events {
		return 0, 0, fmt.Errorf("stored %d events, the chain has %d", n, events)
	}
	return stored, published, nil
}

// floorRange is the blocks of a request of the floor.
const floorRange = 1000

// floor is the rate of reading, matching and storing alone: no dedupe, no records, no outbox.
func floor(ctx context.Context, l *lab.Lab, run, events int, end uint64) (float64, error) {
	client, err := ethclient.DialContext(ctx, l.Chain.HTTP())
	if err != nil {
		return 0, err
	}
	defer client.Close()
	abi, err := contract.New("", "")
	if err != nil {
		return 0, err
	}
	table := fmt.Sprintf("floor_%d", run)
	if _, err := l.DB.Exec(ctx, `create table `+table+` (tx bytea, log_index int, address bytea, block bigint, topic bytea, data bytea)`); err != nil {
		return 0, err
	}
	known, stored := map[common.Address]bool{}, 0
	start := time.Now()
	for from := l.Contracts.Block; from <= end; from += floorRange {
		logs, err := client.FilterLogs(ctx, ethereum.FilterQuery{
			FromBlock: new(big.Int).SetUint64(from), ToBlock: new(big.Int).SetUint64(min(end, from+floorRange-1)), Topics: [][]common.Hash{abi.Topics()},
		})
		if err != nil {
			return 0, fmt.Errorf("read logs for the floor: %w", err)
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
			return 0, fmt.Errorf("store logs for the floor: %w", err)
		}
		stored += len(ours)
	}
	took := time.Since(start)
	if stored != events {
		return 0, fmt.Errorf("the floor stored %d events, the chain has %d", stored, events)
	}
	return perSecond(stored, took), nil
}
