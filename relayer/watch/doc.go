// Package watch turns blocks into commits: the factory watch of the leader, and the slot watch of every instance.
//
// Both are one loop over the same steps: read a range from the source, keep our logs, commit them
// with the cursor, continue. The three overlap: while one commit runs, the next batches are read
// and prepared, and the following commit stores them together (overlap.go). After any obstacle the
// prepared batches are dropped, and the loop restarts from the cursor in the database, the only
// state that it trusts:
//
//	ErrMoved        another instance claimed, released or rolled back: read the cursor again
//	ErrFenced       the right is over: the caller must join again
//	parent mismatch a processed block was orphaned: prove it, find the fork, roll back (reorg.go)
//	anything else   wait and retry
//
// New escrows: before it commits a block with a log, a slot watch waits until the factory cursor
// has passed that block, at most DiscoveryWait. An escrow joins the book of addresses with the
// batch that has its deployment; one found below the cursor is first caught up separately, from its
// deployment to the cursor (late.go), and if it is far below beside the others (far.go). So come
// the escrows of a factory that was added later: the leader reads its past (past.go). One whose
// EscrowCreated is missing there was created earlier, and may have emitted events since: its
// EscrowDeployed is announced, and its events from START_BLOCK to the cursor are read, before it
// joins. Every escrow takes one of these paths.
// Blocks at the head without a log bring no escrow and wait for later blocks (group.go).
package watch
