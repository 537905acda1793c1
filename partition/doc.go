// Package partition decides who serves which slot, and hands slots over without losing or doubling a block.
//
// An address hashes to one of 2520 slots; a Partition (number, total, strategy) says which slots an
// instance prefers. The rows of slot_ownership alone decide who serves a slot, and the rows of
// cursors alone decide who may commit, and from which block. Notifications are only hints, and an
// instance that wrongly believes that it owns a slot learns so from its next commit.
//
//	            claim (I prefer it)                   owner dies: claimed by who prefers it, at once
//	   ┌──────────────────────────────────► owned ──────────────────────────────┐
//	free                                      │ ▲                               ▼
//	   ▲   adopt (nobody alive prefers it     │ └──────────── adopted by whoever lives, evenly,
//	   │   for AdoptAfter)                    │                after AdoptAfter
//	   └──────────────────────────────────────┘
//	       release: stop, or yield to a live instance that prefers it
//
// The one rule, by which each instance decides from its own partition: an owner that prefers a slot
// keeps it while it lives; a free slot goes at once to a live instance that prefers it; where no such
// instance lives, the slot is adopted after AdoptAfter; an adopter yields it, cleanly, to a live
// instance that prefers it. Instances with different totals therefore coexist, and a repartition is
// a rolling restart.
//
// Alive means that the instance's session holds its advisory lock (pg_locks) and that the instance
// has checked its slots within StaleAfter. An instance that is frozen or cut off may believe that it
// is alive. That is harmless: a claim from a dead owner raises the epoch of that owner's cursor row
// in the transaction that takes the slots, so whatever the old owner commits afterwards fails. A
// claim also raises the epoch of the claimer's own row, because a commit in flight was computed
// without the slots just claimed. The claimer goes on from the lowest of all these cursors: some
// blocks are read again, and their events are deduplicated; no block is skipped.
package partition
