package election

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"
)

// Purpose is what an advisory lock is for.
type Purpose string

// The purposes of all advisory locks.
const (
	Leader   Purpose = "leader"   // of a chain, no name: held by the session of the leader
	Instance Purpose = "instance" // named by the instance: held by its session while it lives
	Sender   Purpose = "sender"   // named by the account: held by the session of its owner
	Follow   Purpose = "follow"   // of a chain, no name: held by the session that follows senders without an owner
	Replies  Purpose = "replies"  // of a chain, no name: held by the session that publishes its answers
	Heights  Purpose = "heights"  // of a chain, no name: the upper half of the locks for the heights of its blocks
)

// Lock names an advisory lock. Its key is derived by the schema's function lock_key, which statements
// call. A login that cannot read the schema's secret cannot predict the key. It can see the key of a
// held lock, since pg_locks is open to every login, and take it next; then the lock gets another key
// (Lock.try).
type Lock struct {
	Purpose Purpose
	ChainID int64
	Name    string // empty: there is one of this purpose per chain
}

func (l Lock) String() string { return fmt.Sprintf("%s %d %s", l.Purpose, l.ChainID, l.Name) }

// stranger is a session that holds one of our locks with a login that may not change our tables.
type stranger struct {
	pid                *int32 // nil: there is none
	login, application string
}

// try takes the lock for the session of conn if it is free, and returns its key; 0 while another
// session of ours holds it. If a stranger holds it, try logs the stranger, gives the lock another
// key and takes that one.
//
// Two instances that meet the same stranger at once arrive at the same key. A session that gets the
// old key between the stranger's end and the new key holds a void lock: the epochs decide between
// the two, as after every change of owner.
func (l Lock) try(ctx context.Context, conn *pgx.Conn, log *slog.Logger) (int64, error) {
	for {
		var key int64
		var taken bool
		var by stranger
		err := conn.QueryRow(ctx, tryLock, l.Purpose, l.ChainID, l.Name).
			Scan(&key, &taken, &by.pid, &by.login, &by.application)
		switch {
		case err != nil:
			return 0, fmt.Errorf("take the lock %s: %w", l, err)
		case taken:
			return key, nil
		case by.pid == nil:
			return 0, nil
		}

		log.ErrorContext(ctx, "a login without rights holds one of our locks, which gets another key: end its session, "+
			"and revoke connect on the database from public", slog.String("lock", l.String()), slog.Int64("pid", int64(*by.pid)),
			slog.String("login", by.login), slog.String("application", by.application))
		if _, err := conn.Exec(ctx, turnLock, l.Purpose, l.ChainID, l.Name, key); err != nil {
			return 0, fmt.Errorf("give the lock %s another key: %w", l, err)
		}
	}
}

const tryLock = `
	select k.key, t.taken, s.pid, coalesce(s.login::text, ''), coalesce(s.application, '')
	from (select lock_key($1, $2, $3) as key offset 0) k
	cross join lateral (select pg_try_advisory_lock(k.key) as taken offset 0) t
	left join lateral (select * from all_locks() a where a.key = k.key and not a.ours and not t.taken limit 1) s on true`

// turnLock gives a lock another key while a stranger has that key.
const turnLock = `
	insert into lock_turns (purpose, chain_id, name, turn, passed)
	select $1, $2, $3, 1 + coalesce((select turn from lock_turns where purpose = $1 and chain_id = $2 and name = $3), 0), $4
	where lock_key($1, $2, $3) = $4 and exists (select from all_locks() where key = $4 and not ours)
	on conflict (chain_id, purpose, name) do update set turn = excluded.turn, passed = excluded.passed`
