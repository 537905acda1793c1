package ledger

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// transaction is one transaction on events: what its steps need, and what they have changed so far.
type transaction struct {
	pgx.Tx

	cfg    *Config
	known  *names // nil in a transaction that stores no event
	token  int64  // of its outbox rows: see outbox.ID
	result Result
}

// Result is what a transaction changed.
type Result struct {
	Pending    []outbox.Pending // all of the new outbox rows, in seq order
	New        int              // events stored
	Duplicates int              // events that were stored already
	Retracted  int              // orphans that did not reappear
	Revived    int              // orphans that reappeared: they were told of
	// More: as many requests were served as a commit serves, and others wait.
	More bool
	// Open: the chain has requests, or orphans whose fate is open. Where no block comes, the owners look
	// after them in commits that move no cursor.
	Open bool
}

// commitTimeout bounds a commit whose caller has been told to stop: half of the 10 s that Cloud Run
// leaves after SIGTERM.
const commitTimeout = 5 * time.Second

// transact runs f in a transaction. Cancellation in the middle rolls back; a commit that was sent
// is waited for, under a deadline of its own: its outcome matters more than a quick end.
func transact(ctx context.Context, cfg *Config, known *names, f func(*transaction) error) (Result, error) {
	tx, err := cfg.DB.Begin(ctx)
	if err != nil {
		return Result{}, err
	}

	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
		defer cancel()
		// after a commit it does nothing; after a failure the connection is thrown away if this fails too
		_ = tx.Rollback(ctx)
	}()
	t := &transaction{Tx: tx, cfg: cfg, known: known, token: rand.Int64()}
	if err := f(t); err != nil {
		return Result{}, err
	}

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()

	if err := tx.Commit(ctx); err != nil {
		return Result{}, err
	}

	return t.result, nil
}

// notify tells the listeners of some channels.
func (t *transaction) notify(ctx context.Context, channels ...string) error {
	for _, channel := range channels {
		if _, err := t.Exec(ctx, `select pg_notify($1, $2::bigint::text)`, channel, t.cfg.ChainID); err != nil {
			return fmt.Errorf("notify %s: %w", channel, err)
		}
	}

	return nil
}

// The kinds of findings: what a person must hear of, whichever process found it and however soon that process ended.
const (
	DeepReorg    = "deep_reorg"    // stored events were rolled back: the chain reorganised below the configured finality
	MissingEvent = "missing_event" // the second reading found events that the first had not stored
	ExtraEvent   = "extra_event"   // the second reading did not find stored events, or found them otherwise

	// the factory announced escrows that are registered already: the EscrowDeployed is stored and not published
	AnnouncedAgain = "announced_again"
	// events have numbers that the columns of escrow_records cannot hold: the args have them, the records do not
	OversizedValue = "oversized_value"
	// an endpoint is set aside; its row is in endpoint_faults
	EndpointFault = "endpoint_fault"
	// events are stored and larger than a message may be: they are not published
	OversizedMessage = "oversized_message"
)

// FindingKinds lists them.
var FindingKinds = []string{DeepReorg, MissingEvent, ExtraEvent, AnnouncedAgain, OversizedValue,
	OversizedMessage, EndpointFault}

const insertFinding = `insert into findings (chain_id, kind, block_number, events) values ($1, $2, $3, $4)`

// addFinding remembers a finding in the transaction that acts on it.
func addFinding(ctx context.Context, t *transaction, kind string, block int64, events int) error {
	if _, err := t.Exec(ctx, insertFinding, t.cfg.ChainID, kind, block, events); err != nil {
		return fmt.Errorf("remember a finding (%s): %w", kind, err)
	}

	return nil
}
