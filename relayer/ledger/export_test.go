package ledger

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Remember is the part of a commit that other instances may meet.
func Remember(ctx context.Context, l *Ledger, tx pgx.Tx, from, to Position) error {
	return l.remember(ctx, tx, step{from: from, to: to})
}
