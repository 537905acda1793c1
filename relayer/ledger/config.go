package ledger

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// RequestsChannel is the notification channel that announces new requests to the owners of slots.
const RequestsChannel = "relayer_requests"

// Config of a Ledger. All fields but Reopen are required.
type Config struct {
	DB         *pgxpool.Pool
	ChainID    int64
	InstanceID string
	EventNames []string                    // of the ABIs
	Publishes  func(eventName string) bool // whether events of this name go to Pub/Sub
	// Reopen withdraws what others have derived from blocks from..to, in the transaction that rolls
	// their events back and holds the row of leadership. Nil: there is nothing to withdraw.
	Reopen func(ctx context.Context, tx pgx.Tx, chainID, from, to int64) error
}

// names are the numbers of event names, and of this instance, in the tables.
type names struct {
	types  map[string]int16
	last   int16 // of the types
	writer int32
}

// nameCache keeps the numbers once read. It is safe for concurrent use.
type nameCache struct {
	mu    sync.Mutex
	known *names // nil until first needed
}

// forget discards the numbers: a failover or a crash may have lost those added last.
func (c *nameCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known = nil
}

// get returns the numbers, and adds the missing ones to the tables. It uses a separate connection:
// call it before a transaction begins.
func (c *nameCache) get(ctx context.Context, cfg *Config) (*names, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.known == nil {
		n, missing, err := readNames(ctx, cfg)
		if err != nil {
			return nil, fmt.Errorf("read the numbers of events and instances: %w", err)
		}

		if len(missing) == 0 && n.writer != 0 {
			c.known = n
			break
		}

		// Another instance may add the same names at the same time: the later one adds nothing, and both read again.
		if _, err := cfg.DB.Exec(ctx, addTypes, missing); err != nil {
			return nil, fmt.Errorf("number the events %v: %w", missing, err)
		}

		if _, err := cfg.DB.Exec(ctx, addWriter, cfg.InstanceID); err != nil {
			return nil, fmt.Errorf("number the instance %s: %w", cfg.InstanceID, err)
		}
	}

	return c.known, nil
}

const (
	addTypes = `
	insert into event_types (id, name)
	select (select max(id) from event_types) + ord, name from unnest($1::text[]) with ordinality as t(name, ord)
	on conflict do nothing`
	addWriter = `insert into writers (name) values ($1) on conflict do nothing`
)

// readNames returns the known numbers, and the events without one.
func readNames(ctx context.Context, cfg *Config) (n *names, missing []string, err error) {
	n = &names{types: map[string]int16{}}
	rows, _ := cfg.DB.Query(ctx, `select id, name from event_types`)
	var id int16
	var name string
	if _, err := pgx.ForEachRow(rows, []any{&id, &name}, func() error {
		n.types[name], n.last = id, max(id, n.last)
		return nil
	}); err != nil {
		return nil, nil, err
	}

	err = cfg.DB.QueryRow(ctx, `select coalesce((select id from writers where name = $1), 0)`,
		cfg.InstanceID).Scan(&n.writer)
	for _, name := range cfg.EventNames {
		if n.types[name] == 0 {
			missing = append(missing, name)
		}
	}

	return n, missing, err
}

// reopen is Config.Reopen.
func (t *transaction) reopen(ctx context.Context, from, to int64) error {
	if t.cfg.Reopen == nil {
		return nil
	}

	if err := t.cfg.Reopen(ctx, t, t.cfg.ChainID, from, to); err != nil {
		return fmt.Errorf("withdraw what depends on blocks %d to %d: %w", from, to, err)
	}

	return nil
}
