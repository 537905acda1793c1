// Package election owns the database session of an instance, and what is held through it: the
// instance's own advisory lock, by which the others see that it lives, and, for one instance per
// chain, the leader lock.
//
// A session is one dedicated connection. Advisory locks belong to it (PostgreSQL manual, 13.3.5),
// so everything held through it is void the moment it is lost. It is probed; server-side it carries
// idle_session_timeout (three probes: a frozen holder loses its locks),
// client_connection_check_interval (a holder killed inside a query loses them) and TCP keepalives
// (a holder that vanished does).
//
// On the client's side a right ends before the server would give it to another instance: the lease
// lasts LeaseProbes probe intervals, counted from the start of the last probe that was answered.
// That is less than idle_session_timeout. A process that wakes up after a freeze sees by its own
// clock that its lease is over, before it hears anything from the server.
//
// None of this is exact enough to protect a write: an instance that was replaced may have a commit
// in flight. So each change of leader raises the epoch in the leadership row, each commit of the
// factory watch names the epoch that it acts under, and the database refuses any other epoch.
//
// Any login to the database may take any advisory lock, without a single grant. So the keys follow
// from a secret of the schema (LockKey), a lock counts only in the hands of a login that may change
// our tables (held_locks), and one that a stranger holds gets another key. What remains to a stranger
// is what Postgres leaves to every login: connections, CPU and the server's lock table.
//
// To see the locks by hand: select * from all_locks(), with keys as lock_key computes them (the first
// version of the relayer had 999999 as its only key, which anybody can foresee). To free one:
// select pg_terminate_backend(pid), or `escrow-relayer locks --end` for those of strangers; an instance
// rejoins.
package election
