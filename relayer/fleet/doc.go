// Package fleet reads the whole fleet of a chain from the database alone: which instances are
// alive, which one leads, which serves which slot, how far each has come, and what needs a person.
//
// The rows come from one read-only snapshot, so they are consistent; every age is by the database's
// clock. Only pg_locks has no snapshots: a session that ends during the reading is seen as gone
// while its rows still show it.
//
// Alive means that the instance's session holds its advisory lock, and that its last slot check is
// within partition.StaleAfter. The row's status and heartbeat prove nothing.
package fleet
