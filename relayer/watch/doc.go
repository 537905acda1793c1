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
// New escrows: a slot watch reads the factories' logs too. An escrow joins the book of addresses with the batch that
// has its deployment, and its owner registers it in that commit; it waits for no leader. A late escrow is caught up
// separately, from its deployment to the cursor (late.go), and joins the book with the last batch; if it is far below,
// most of it is read beside the others first (far.go). Late is
// one whose deployment the owner has passed without seeing it, which the leader registers (factory.go); one of the past
// of a factory that was added later (past.go); one that a request by addresses could not name yet; and one that is
// older than its deployment: its EscrowDeployed is published, and its events from START_BLOCK on are read, before it
// joins.
// Blocks at the head without a log bring no escrow and wait for later blocks (group.go).
package watch
