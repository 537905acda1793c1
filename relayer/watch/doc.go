// Package watch turns blocks into commits: the factory watch of the leader, and the slot watch of every instance.
//
// Both are one loop over the same steps: read a range from the source, keep the logs that concern
// us, commit them with the cursor, go on. The three overlap: while one commit runs, what comes next
// is read and prepared, and stored together by the commit after it (overlap.go). Whatever stands in
// the way, what was prepared is thrown away, and the loop starts again from the cursor in the
// database, which is the only thing it trusts:
//
//	ErrMoved        somebody claimed, released or rolled back: read the cursor again
//	ErrFenced       the right is over: the caller has to join again
//	parent mismatch what we processed is not on the chain any more: prove it, find the fork, roll back (reorg.go)
//	anything else   wait and try again
//
// New escrows: a slot watch waits, before it commits a block that has a log, until the factory cursor
// has passed that block, at most DiscoveryWait. An escrow joins the book of addresses with the batch
// that has its deployment; one that is found below the cursor is caught up first, on its own, from its
// deployment to the cursor (late.go). One whose EscrowCreated is not there as well was created before,
// and may have emitted events since: its EscrowDeployed is announced and all that is read, from START_BLOCK
// to the cursor, before it joins. There is no other path.
// Blocks at the head without any log bring no escrow and wait for those behind them (group.go).
package watch
