// Package publish moves messages from the outbox to Pub/Sub: those of one ordering key in the order
// of their seq, each at least once, and twice only where the outcome of an attempt is unknown: a
// process died, or an answer was lost, between the storing of a message and the deletion of its
// row. Those are counted in relayer_republished_total. What a crash can repeat is bounded by the
// window: rows in memory, waiting or under way, together with those that are acknowledged and not
// deleted yet.
//
// One goroutine owns all state, the loop. What it decides is decided by four parts that do no input
// or output and keep no time, so that each can be reasoned about, and tested, alone: lanes (what is
// sent next), reader (what of the outbox is read next), deleter (what is written down of what became
// of rows) and rest (which slots are to be quiet). They share the window: the rows that this process
// answers for. What waits for a network waits elsewhere and reports to the loop:
//
//	Offer ───► ┌──────┐ ─ request of one lane ─► Pub/Sub ─ acknowledged ─► ┌──────┐ ─► deleter ─► row gone
//	outbox ──► │ loop │                                                    │ loop │
//	Reload ──► └──────┘ ◄─ reader: the next page, or the rows of some lanes └──────┘
//
// A lane is an ordering key on a topic. It has one request under way at most, so that its order
// holds whatever fails; what comes meanwhile waits for the next request. Hence a lone message goes
// out at once, and the more there is to send the larger the batches: there is no delay to tune. (A
// request carries one ordering key only: the service refuses any other with FailedPrecondition.)
//
//	          its turn           acknowledged, nothing left
//	 ready ────────────► sending ──────────────────────────► gone (forgotten)
//	   ▲                    │
//	   │ rows came          │ request fails
//	   │                    ▼
//	reading ◄── wanted ◄── blocked: no row of it is in memory; after a delay its oldest row is read and tried
//
// After a failure the rest of a lane's rows is read by key, page by page, until there is none that
// was passed over. Where more than maxBlocked lanes of a topic are blocked it is not the lanes that
// are at fault: no new lane of that topic is begun, and what was passed over is read again when
// they recover. So memory is bounded: by the window, and by the names of blocked lanes, which are
// at most maxBlocked per topic and those that were in the window when that was reached.
//
// The outbox is authoritative. The rows of this instance's slots are written by this instance, one
// commit after the other, so reading on from the last one misses none. When slots were taken the
// outbox is read again from the start (Reload), past what is under way. Every rereadEvery that
// happens by itself.
//
// Slots come to rest (Quiesce) whatever Pub/Sub does: requests are given up after a while, and are
// in doubt then.
//
// The publisher asks Config.Valid before each request and sends nothing once it says no. It does
// not promise that nothing of a frozen process leaves later: the moment between the question and
// the system call is not bounded by anything.
package publish
