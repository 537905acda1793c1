package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// The kinds of findings: what a person must hear of, whichever process found it and however soon that process ended.
const (
	DeepReorg    = "deep_reorg"    // stored events were rolled back: the chain reorganised below the configured finality
	MissingEvent = "missing_event" // the second reading found events that the first had not stored
	ExtraEvent   = "extra_event"   // the second reading did not find stored events, or found them otherwise
)

// FindingKinds lists them.
var FindingKinds = []string{DeepReorg, MissingEvent, ExtraEvent}

const insertFinding = `insert into findings (chain_id, kind, block_number, events) values ($1, $2, $3, $4)`

// find remembers a finding in the transaction that acts on it.
func (l *Ledger) find(ctx context.Context, tx pgx.Tx, kind string, block int64, events int) error {
	if _, err := tx.Exec(ctx, insertFinding, l.cfg.ChainID, kind, block, events); err != nil {
		return fmt.Errorf("remember a finding (%s): %w", kind, err)
	}

	return nil
}

// FoundExtra remembers that stored events up to a block are not on the chain, or are there
// otherwise. Nothing else is changed.
func (l *Ledger) FoundExtra(ctx context.Context, block int64, events int) error {
	return l.tx(ctx, func(tx pgx.Tx) error { return l.find(ctx, tx, ExtraEvent, block, events) })
}

// LastFindings returns when each kind was found last, by the database's clock; kinds that were
// never found are left out.
func (l *Ledger) LastFindings(ctx context.Context) (map[string]time.Time, error) {
	last := map[string]time.Time{}
	rows, _ := l.cfg.DB.Query(ctx, `select kind, max(found_at) from findings where chain_id = $1 group by kind`,
		l.cfg.ChainID)
	var kind string
	var at time.Time
	_, err := pgx.ForEachRow(rows, []any{&kind, &at}, func() error { last[kind] = at; return nil })
	if err != nil {
		return nil, fmt.Errorf("read the last findings of chain %d: %w", l.cfg.ChainID, err)
	}

	return last, nil
}
