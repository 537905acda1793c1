// Package fleet reads the whole fleet of a chain from the database alone: which instances are alive,
// which one leads, which serves which slot, how far each has come, and what needs a person.
//
// The rows come from one read-only snapshot, so they fit together; every age is by the database's
// clock. The one exception is pg_locks, which has no snapshots: a session that ends while the rows
// are read is seen as gone although its rows do not say so yet.
//
// Alive means that the instance's session holds its advisory lock, and that the instance has checked
// its slots within partition.StaleAfter. A row that says active proves nothing, nor does a heartbeat.
package fleet
