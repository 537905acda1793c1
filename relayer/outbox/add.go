package outbox

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/relayer/column"
)

// Add adds rows for stored events in the caller's transaction, in their order, and sets their ID.
func Add(ctx context.Context, tx pgx.Tx, chainID, token int64, rows []Pending) error {
	if len(rows) == 0 {
		return nil
	}

	for i := range rows {
		rows[i].Token = token
	}

	if err := insert(ctx, tx, chainID, rows); err != nil {
		return fmt.Errorf("add %d rows to the outbox: %w", len(rows), err)
	}

	return nil
}

// insertRows adds rows in the order of the arrays, and returns their numbers in that order.
const insertRows = `
	insert into outbox (chain_id, token, block_number, log_index, slot, kind, escrow, event_type)
	select $1, t.* from unnest($2::bigint[], $3::bigint[], $4::integer[], $5::smallint[], $6::smallint[], $7::bytea[], $8::text[]) as t
	returning seq`

func insert(ctx context.Context, tx pgx.Tx, chainID int64, rows []Pending) error {
	found, _ := tx.Query(ctx, insertRows, chainID,
		column.Of(rows, func(p *Pending) int64 { return p.Token }),
		column.Of(rows, func(p *Pending) int64 { return int64(p.Event.BlockNumber) }),
		column.Of(rows, func(p *Pending) int32 { return int32(p.Event.LogIndex) }),
		column.Of(rows, func(p *Pending) int16 { return p.Slot }),
		column.Of(rows, func(p *Pending) int16 { return p.Kind }),
		column.Of(rows, func(p *Pending) []byte { return p.Event.Escrow[:] }),
		column.Of(rows, func(p *Pending) string { return p.Event.Name }))

	return number(found, rows)
}

// number assigns the returned numbers to the rows.
func number(found pgx.Rows, rows []Pending) error {
	seqs, err := pgx.CollectRows(found, pgx.RowTo[int64])
	if err != nil {
		return err
	}

	if len(seqs) != len(rows) {
		return fmt.Errorf("the database returned %d numbers", len(seqs))
	}

	for i := range rows {
		if rows[i].Seq = seqs[i]; i > 0 && seqs[i] <= seqs[i-1] {
			return fmt.Errorf("the database returned number %d after %d", seqs[i], seqs[i-1])
		}
	}

	return nil
}
