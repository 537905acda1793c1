// Package partition decides who serves which slot, and hands slots over without losing or doubling a block.
//
// An address hashes to one of 2520 slots; a Partition (number, total, strategy) says which slots an
// instance prefers. The rows of slot_ownership are authoritative for who serves a slot, the rows of
// cursors for who may commit and from which block. Nothing else is: notifications are hints, and an
// instance that believes it owns a slot finds out in its next commit.
//
//	            claim (I prefer it)                   owner dies: claim by who prefers it, at once
//	   ┌──────────────────────────────────► owned ──────────────────────────────┐
//	free                                      │ ▲                               ▼
//	   ▲   adopt (nobody alive prefers it     │ └──────────── adopted by whoever lives, evenly,
//	   │   for AdoptAfter)                    │                after AdoptAfter
//	   └──────────────────────────────────────┘
//	       release: stop, or yield to a live instance that prefers it
//
// The one rule, judged by each instance's own partition: a holder that prefers a slot keeps it
// while it lives; a free slot goes at once to a live instance that prefers it; where none lives, it
// is adopted after AdoptAfter; an adopter yields it, cleanly, to a live instance that prefers it.
// Instances with different totals therefore coexist, and a repartition is a rolling restart.
//
// Alive means that the instance's session holds its advisory lock (pg_locks). An instance that is
// frozen or cut off may believe otherwise. That is harmless: a claim from the dead raises the epoch
// of the dead owner's cursor row in the transaction that takes its slots, so that whatever the
// zombie commits afterwards fails. A claim also raises the epoch of the claimer's own row, because
// a commit in flight was computed without the slots just claimed. The claimer goes on from the
// lowest cursor of all: that reads some blocks again, whose events are deduplicated; it never skips
// one.
package partition
