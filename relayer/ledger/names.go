package ledger

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// names are the numbers that the tables have for the names of events, and for this instance.
type names struct {
	types  map[string]int16
	writer int32
}

// names reads the numbers, once per Ledger, and adds what is not there yet. It takes a connection
// of its own: ask before a transaction begins.
func (l *Ledger) names(ctx context.Context) (*names, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known != nil {
		return l.known, nil
	}

	for {
		n, missing, err := l.readNames(ctx)
		if err != nil {
			return nil, fmt.Errorf("read the numbers of events and instances: %w", err)
		}

		if len(missing) == 0 && n.writer != 0 {
			l.known = n
			return n, nil
		}

		// Another instance may add the same names at the same time: whoever comes second adds nothing, and both read again.
		if _, err := l.cfg.DB.Exec(ctx, addTypes, missing); err != nil {
			return nil, fmt.Errorf("number the events %v: %w", missing, err)
		}

		if _, err := l.cfg.DB.Exec(ctx, addWriter, l.cfg.InstanceID); err != nil {
			return nil, fmt.Errorf("number the instance %s: %w", l.cfg.InstanceID, err)
		}
	}
}

const (
	addTypes = `
	insert into event_types (id, name)
	select (select max(id) from event_types) + ord, name from unnest($1::text[]) with ordinality as t(name, ord)
	on conflict do nothing`
	addWriter = `insert into writers (name) values ($1) on conflict do nothing`
)

// readNames returns the numbers that there are, and the events without one.
func (l *Ledger) readNames(ctx context.Context) (n *names, missing []string, err error) {
	n = &names{types: map[string]int16{}}
	rows, _ := l.cfg.DB.Query(ctx, `select id, name from event_types`)
	var id int16
	var name string
	if _, err := pgx.ForEachRow(rows, []any{&id, &name}, func() error { n.types[name] = id; return nil }); err != nil {
		return nil, nil, err
	}

	err = l.cfg.DB.QueryRow(ctx, `select coalesce((select id from writers where name = $1), 0)`,
		l.cfg.InstanceID).Scan(&n.writer)
	for _, name := range l.cfg.EventNames {
		if n.types[name] == 0 {
			missing = append(missing, name)
		}
	}

	return n, missing, err
}
