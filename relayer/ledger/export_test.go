package ledger

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Remember is the part of a commit that other instances may meet.
func Remember(ctx context.Context, l *Ledger, tx pgx.Tx, from, to Position) error {
	return remember(ctx, &transaction{Tx: tx, cfg: &l.cfg}, step{from: from, to: to})
}
