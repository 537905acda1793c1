// Package partition decides which instance serves a slot, and hands slots over without losing or
// doubling a block.
//
// An address hashes to one of 2520 slots; a Partition (number, total, strategy) prefers some of
// them. The rows of slot_ownership alone decide which instance serves a slot, and the rows of
// cursors alone decide which instance may commit, and from which block. Notifications are hints,
// and an instance with a stale belief is corrected by its next commit.
//
//	            claim (I prefer it)                   owner dies: claimed at once by one that prefers it
//	   ┌──────────────────────────────────► owned ──────────────────────────────┐
//	free                                      │ ▲                               ▼
//	   ▲   adopt (no live instance prefers    │ └──────────── adopted by the live instances, evenly,
//	   │   it for AdoptAfter)                 │                after AdoptAfter
//	   └──────────────────────────────────────┘
//	       release: stop, or yield to a live instance that prefers it
//
// The one rule, by which each instance decides from its partition: an owner that prefers a slot
// keeps it while it lives; a free slot goes at once to a live instance that prefers it; without
// such an instance, the slot is adopted after AdoptAfter; an adopter yields it, cleanly, to a live
// instance that prefers it. Instances with different totals therefore coexist, and a repartition is
// a rolling restart.
//
// Alive means that the instance's session holds its advisory lock (pg_locks) and that its last slot
// check is within StaleAfter. A frozen or disconnected instance may still believe that it is alive.
// That is harmless: a claim from a dead owner raises the epoch of that owner's cursor row in the
// transaction that takes the slots, so every later commit of the old owner fails. A claim also
// raises the epoch of the claimer's row, because a commit in flight was computed without the slots
// just claimed. The claimer continues from the lowest of all these cursors: some blocks are read
// again, their events are deduplicated, and every block is covered.
package partition
