package ledger

import (
	"context"
	"fmt"
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

// addFinding remembers a finding in the transaction that acts on it.
func addFinding(ctx context.Context, t *transaction, kind string, block int64, events int) error {
	if _, err := t.Exec(ctx, insertFinding, t.cfg.ChainID, kind, block, events); err != nil {
		return fmt.Errorf("remember a finding (%s): %w", kind, err)
	}

	return nil
}
