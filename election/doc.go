// Package election owns the database session of an instance and the advisory locks held through it:
// the lock of the instance, which shows the others that it is alive, and, for one instance per
// chain, the leader lock.
//
// A session is one dedicated connection. Advisory locks belong to it (PostgreSQL manual, 13.3.5)
// and end with it. It is probed; server-side it carries idle_session_timeout (three probes: a
// frozen holder loses its locks), client_connection_check_interval (a holder killed inside a query
// loses them) and TCP keepalives (a holder that vanished loses them).
//
// On the client's side a right ends before the server would give it to another instance: the lease
// lasts LeaseProbes probe intervals, counted from the start of the last answered probe, which is
// less than idle_session_timeout. A process that wakes up after a freeze sees by its clock that its
// lease has expired, before it hears from the server.
//
// Time alone cannot protect a write: a replaced instance may have a commit in flight. So each
// change of leader raises the epoch in the leadership row, each commit of the factory watch names
// the epoch that it acts under, and the database refuses any other epoch.
//
// Any login to the database may take any advisory lock, without a grant. So the keys derive from a
// secret of the schema (lock_key), a lock counts only if its holder's login may change our tables
// (held_locks), and a lock gets another key when an unprivileged login holds its key. Such a login can
// still use what Postgres leaves to every login: connections, CPU and the server's lock table.
//
// To see the locks by hand: select * from all_locks(), with keys as lock_key computes them. To free
// one: select pg_terminate_backend(pid); an instance rejoins.
package election
