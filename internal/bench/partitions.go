package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/ethereum/go-ethereum/crypto"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/migrations"
	"github.com/fusion-prime/escrow-relayer/partition"
)

const (
	partitionedEvents = 1_000_000
	partitionParts    = 8
	// events per COPY: as many as a commit of a backfill stores
	partitionBatch = 5000
)

// Partitions is what it costs to store events where their table is cut into parts, by the hash of
// the escrow or by ranges of blocks: the same events, by the same COPY, into a copy of the table
// and its indexes. A firm that outgrows one table would do this first.
func Partitions(ctx context.Context, o *Options) (figures []Figure, err error) {
	l, err := lab.Start(ctx, lab.Options{Bin: o.Bin, Postgres: testpg.Options{Durable: true}})
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, l.Close()) }()
	if _, err := migrations.Up(ctx, l.DB.Config().ConnConfig); err != nil {
		return nil, err
	}

	n := max(partitionBatch, o.scaled(partitionedEvents))
	ways := partitionWays(n/perBlock + 1)
	rates, wal := map[string][]float64{}, map[string][]float64{}
	for run := range o.Runs {
		for _, name := range []string{"none", "hash", "range"} {
			table := fmt.Sprintf("parts_%s_%d", name, run)
			for _, sql := range ways[name] {
				if _, err := l.DB.Exec(ctx, fmt.Sprintf(sql, table)); err != nil {
					return nil, fmt.Errorf("make the table %s: %w", table, err)
				}
			}

			rate, bytes, err := fill(ctx, l.DB, table, n)
			if err != nil {
				return nil, err
			}

			o.say("partitions: %s: %.0f events/s, %.0f bytes of WAL per event", name, rate, bytes)
			rates[name], wal[name] = append(rates[name], rate), append(wal[name], bytes)
			if _, err := l.DB.Exec(ctx, `drop table `+table); err != nil {
				return nil, fmt.Errorf("drop the table %s: %w", table, err)
			}
		}
	}

	base := Quantile(rates["none"], 0.5)
	for _, name := range []string{"none", "hash", "range"} {
		rate := o.atLeast("partitions."+name, "events/s", 0, rates[name])
		rate.Ratio = rate.Value / base
		figures = append(figures, rate,
			o.atMost("partitions."+name+".wal", "bytes/event", 0, Quantile(wal[name], 0.5), wal[name]))
	}

	return figures, nil
}

// partitionWays are the statements that make each kind of table; %[1]s is its name.
func partitionWays(blocks int) map[string][]string {
	ways := map[string][]string{"none": {`create table %[1]s (like events including all)`}}
	ways["hash"] = []string{
		`create table %[1]s (like events including defaults) partition by hash (escrow)`,
		`create index on %[1]s (chain_id, block_number, log_index)`, // it cannot be unique without the escrow
		`create index on %[1]s (chain_id, escrow)`,
		`create index on %[1]s using brin (tx_hash bytea_bloom_ops) with (pages_per_range = 128)`,
		`create index on %[1]s (chain_id, processed_at) where type in (5, 6)`,
	}
	ways["range"] = []string{`create table %[1]s (like events including all) partition by range (block_number)`}
	for i := range partitionParts {
		ways["hash"] = append(ways["hash"], fmt.Sprintf(
			`create table %%[1]s_%d partition of %%[1]s for values with (modulus %d, remainder %d)`, i, partitionParts, i))
		ways["range"] = append(ways["range"], fmt.Sprintf(
			`create table %%[1]s_%d partition of %%[1]s for values from (%d) to (%d)`,
			i, i*blocks/partitionParts, (i+1)*blocks/partitionParts))
	}

	return ways
}

// fill stores n events in the order of the chain, of n/5 escrows. The events of an escrow are far
// apart.
func fill(ctx context.Context, db *pgxpool.Pool, table string, n int) (rate, wal float64, err error) {
	before, err := writtenWAL(ctx, db)
	if err != nil {
		return 0, 0, err
	}

	start := time.Now()
	for at := 0; at < n; at += partitionBatch {
		_, err := db.CopyFrom(ctx, pgx.Identifier{table}, []string{"chain_id", "block_number", "block_time", "log_index",
			"writer", "type", "slot", "told", "block_hash", "tx_hash", "escrow", "args"},
			pgx.CopyFromSlice(min(partitionBatch, n-at), func(i int) ([]any, error) {
				i += at
				block := i / perBlock
				escrow := idle(uint64(i%(n/5+1)) + 1)
				var text [8]byte
				binary.BigEndian.PutUint64(text[:], uint64(i))

				return []any{1, block, block * 12, i % perBlock, 1, 3, partition.Slot(escrow), true,
					crypto.Keccak256(text[:4]), crypto.Keccak256(text[:]), escrow[:],
					`{"approver":"0x70997970C51812dc3A010C7d01b50e0d17dc79C8"}`}, nil
			}))
		if err != nil {
			return 0, 0, fmt.Errorf("fill %s: %w", table, err)
		}
	}

	took := time.Since(start)
	after, err := writtenWAL(ctx, db)

	return perSecond(n, took), float64(after-before) / float64(n), err
}
