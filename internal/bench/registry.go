package bench

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/partition"
)

// firstFactory is the number of a chain's first factory in the table factories.
const firstFactory = 1

// register fills the registry up to n escrows, as if they had been discovered and caught up long
// ago: first the active ones that are not there yet, then idle ones, which are not on the chain.
func register(ctx context.Context, db *pgxpool.Pool, l *lab.Lab, active []common.Address, n int) error {
	there := map[common.Address]bool{}
	rows, _ := db.Query(ctx, `select address from escrows where chain_id = $1`, l.Chain.ChainID().Int64())
	var known common.Address
	if _, err := pgx.ForEachRow(rows, []any{&known},
		func() error { there[known] = true; return nil }); err != nil {
		return fmt.Errorf("read the registry: %w", err)
	}

	var fresh []common.Address
	add := func(a common.Address) {
		if !there[a] {
			there[a] = true
			fresh = append(fresh, a)
		}
	}
	for _, a := range active {
		add(a)
	}

	for i := uint64(1); len(there) < n; i++ {
		add(idle(i))
	}

	block := int64(l.Contracts.Block)
	_, err := db.CopyFrom(ctx, pgx.Identifier{"escrows"},
		[]string{"chain_id", "address", "slot", "discovered_block_number", "log_index", "tx_hash", "factory"},
		pgx.CopyFromSlice(len(fresh), func(i int) ([]any, error) {
			a := fresh[i]
			return []any{l.Chain.ChainID().Int64(), a[:], partition.Slot(a), block, 0, common.BytesToHash(a[:]).Bytes(),
				firstFactory}, nil
		}))
	if err != nil {
		return fmt.Errorf("register %d escrows: %w", len(fresh), err)
	}

	_, err = db.Exec(ctx, `analyze escrows`)

	return err
}

// idle is the i-th of the addresses at which nothing was ever deployed.
func idle(i uint64) (a common.Address) {
	// odd factors: the addresses are all different, and spread evenly as real ones are
	binary.BigEndian.PutUint64(a[:], i*0x9e3779b97f4a7c15)
	binary.BigEndian.PutUint64(a[12:], i*0xbf58476d1ce4e5b9)
	return a
}
