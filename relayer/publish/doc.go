// Package publish moves messages from the outbox to Pub/Sub: those of one ordering key in the order
// of their seq, each at least once, and twice only if the outcome of an attempt is unknown: a
// process died, or an answer was lost, between the storing of a message and the deletion of its
// row. Those are counted in relayer_republished_total. The window bounds what a crash can repeat:
// rows in memory, waiting or in flight, and acknowledged rows that wait for their deletion.
//
// One goroutine owns all state, the loop. Its decisions come from four parts without I/O and
// without a clock, so that each can be understood, and tested, alone: lanes (what is sent next),
// reader (what of the outbox is read next), deleter (which finished rows are deleted next) and rest
// (which slots must be quiet). They share the window: the rows that this process is responsible
// for. Network calls run in other goroutines and report to the loop:
//
//	Offer ───► ┌──────┐ ─ request of one lane ─► Pub/Sub ─ acknowledged ─► ┌──────┐ ─► deleter ─► row gone
//	outbox ──► │ loop │                                                    │ loop │
//	Reload ──► └──────┘ ◄─ reader: the next page, or the rows of some lanes └──────┘
//
// A lane is an ordering key on a topic. It has at most one request in flight, so its order survives
// any failure; new rows wait for the next request. Hence a lone message is sent at once, and a
// backlog goes out in larger batches, without a delay to tune. (A request carries one ordering key:
// the service refuses mixed keys with FailedPrecondition.)
//
//	          its turn           acknowledged, queue empty
//	 ready ────────────► sending ──────────────────────────► gone (forgotten)
//	   ▲                    │
//	   │ rows came          │ request fails
//	   │                    ▼
//	reading ◄── wanted ◄── blocked: its rows leave memory; after a delay the oldest is read and tried
//
// After a failure the rest of a lane's rows is read by key, page by page, until all skipped rows
// are read. With more than maxBlocked blocked lanes on a topic the topic is at fault rather than
// the lanes: rows of new lanes are skipped, and read again when the blocked lanes recover. So
// memory is bounded: by the window, and by the names of blocked lanes, which are at most maxBlocked
// per topic plus those in the window when that was reached.
//
// The outbox is authoritative. The rows of this instance's slots are written by this instance, one
// commit after the other, so reading on from the last one finds them all. When slots were taken,
// and every rereadEvery, the outbox is read again from the start (Reload), past what is in flight.
//
// Slots come to rest (Quiesce) whatever Pub/Sub does: requests are cancelled after a while, and are
// in doubt then.
//
// The publisher calls Config.Valid before each request and stops when it returns false. A frozen
// process may still send a message later: the time between the check and the system call is
// unbounded.
package publish
