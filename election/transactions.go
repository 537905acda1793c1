package election

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// ApplicationName is the application_name of every database connection of an instance. Instance ids
// are short enough to stay within the 63 bytes that Postgres keeps.
func ApplicationName(instanceID string) string { return applicationPrefix + instanceID }

const applicationPrefix = "escrow-relayer/"

// EndTransactions ends the connections on which dead instances have a transaction open, and returns
// their number. A process that is frozen, or cut off, in the middle of a commit keeps its row
// locks, and the instance that takes over would wait for them.
//
// Live instances are spared: one that came back, and one with the same id on another chain of the
// same database.
func EndTransactions(ctx context.Context, db *pgxpool.Pool, instanceIDs []string) (ended int, err error) {
	err = db.QueryRow(ctx, endTransactions, instanceIDs, applicationPrefix).Scan(&ended)
	if err != nil {
		return 0, fmt.Errorf("end the open transactions of dead instances: %w", err)
	}

	return ended, nil
}

const endTransactions = `
	select count(pg_terminate_backend(a.pid))
	from pg_stat_activity a
	where a.datname = current_database() and a.pid <> pg_backend_pid() and a.xact_start is not null
	  and a.application_name in (select $2 || id from unnest($1::text[]) id)
	  and not exists (
		select from relayer_instances i
		join held_locks() l on l.key = i.lock_key
		where $2 || i.instance_id = a.application_name)`

// EndFormer ends the connections on which an earlier process of this instance has a transaction
// open that began before the session got the instance's lock, and returns their number. It is
// called before the instance joins the fleet.
//
// A connection that is younger than this process is spared: it is of another chain that the process follows, in the
// same database. A read-only transaction is spared too: it blocks no write, and it may belong to this process, which
// reads the fleet for its metrics and /readyz from the start. A transaction that has changed or
// locked a row has a transaction id (Postgres manual, "Transactions and Identifiers").
func (s *Session) EndFormer(ctx context.Context, db *pgxpool.Pool) (ended int, err error) {
	err = db.QueryRow(ctx, endFormer, ApplicationName(s.cfg.InstanceID), s.since, applicationPrefix, s.pid,
		time.Since(s.cfg.Started)).Scan(&ended)
	if err != nil {
		return 0, fmt.Errorf("end the open transactions of an earlier process of %s: %w", s.cfg.InstanceID, err)
	}

	return ended, nil
}

const endFormer = `
	select count(pg_terminate_backend(a.pid))
	from pg_stat_activity a
	where a.datname = current_database() and a.pid <> pg_backend_pid()
	  and a.application_name = $1 and a.xact_start < $2 and a.backend_start < clock_timestamp() - $5::interval
	  and (a.backend_xid is not null
	       or exists (select from pg_locks l where l.pid = a.pid and l.locktype = 'advisory'))
	  and not exists (
		select from relayer_instances i
		join held_locks() l on l.key = i.lock_key and l.pid <> $4::bigint
		where $3 || i.instance_id = a.application_name)`
