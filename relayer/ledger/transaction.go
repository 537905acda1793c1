package ledger

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// transaction is one transaction on events: the inputs of its steps, and what they have changed so
// far.
type transaction struct {
	pgx.Tx

	cfg    *Config
	known  *names // nil in a transaction that stores no event
	token  int64  // of its outbox rows: see outbox.ID
	result Result
}

// Result is what a transaction changed.
type Result struct {
	Log        []outbox.Pending // the new events of the log, in the order of their messages
	Pending    []outbox.Pending // the new outbox rows, in seq order
	New        int              // events stored
	Duplicates int              // events that had been stored before
	Retracted  int              // lost orphans whose retraction was queued
	Revived    int              // published orphans that reappeared
	// Served: requests were served. Late escrows wait for that.
	Served bool
	// More: requests wait beyond those that one commit serves.
	More bool
	// Open: the chain has requests, or open orphans. Without a new block, the owners handle them in
	// commits that leave the cursor in place.
	Open bool
}

// commitTimeout bounds a commit after its caller has been told to stop: half of the 10 s that Cloud Run
// leaves after SIGTERM.
const commitTimeout = 5 * time.Second

// transact runs f in a transaction. Cancellation rolls it back until the commit is sent; the answer
// to a sent commit is awaited, under a separate deadline, since its outcome matters more than a
// quick end.
func transact(ctx context.Context, cfg *Config, known *names, f func(*transaction) error) (Result, error) {
	tx, err := cfg.DB.Begin(ctx)
	if err != nil {
		return Result{}, err
	}

	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
		defer cancel()
		// A no-op after a commit; if it fails after an error, the connection is closed.
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

// The kinds of findings: what a person must see, whichever process found it and however soon it
// ended.
const (
	DeepReorg    = "deep_reorg"    // stored events were rolled back: the chain reorganised below the configured finality
	MissingEvent = "missing_event" // the second reading found events that the first had not stored
	ExtraEvent   = "extra_event"   // the second reading lacked stored events, or found them changed

	// the factory announced escrows that are already registered: the EscrowDeployed is stored but
	// not published
	AnnouncedAgain = "announced_again"
	// followed contracts have emitted logs under our topics that the ABI does not decode
	UndecodableEvent = "undecodable_event"
	// factories have created contracts that no event of the ABI announces
	UnannouncedContract = "unannounced_contract"
)

// Finding is a row of the table findings.
type Finding struct {
	Kind   string
	Block  int64
	Events int
	Detail string // where it takes more than a block to find it
}

const insertFinding = `
	insert into findings (chain_id, kind, block_number, events, detail) values ($1, $2, $3, $4, nullif($5, ''))`

// addFinding records a finding in the transaction that acts on it.
func addFinding(ctx context.Context, t *transaction, f Finding) error {
	if _, err := t.Exec(ctx, insertFinding, t.cfg.ChainID, f.Kind, f.Block, f.Events, f.Detail); err != nil {
		return fmt.Errorf("remember a finding (%s): %w", f.Kind, err)
	}

	return nil
}
