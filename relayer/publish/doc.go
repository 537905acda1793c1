// Package publish moves messages from the log of events, and from the outbox, to Pub/Sub: those of
// one ordering key in their order, each at least once, and twice only if the outcome of an attempt is
// unknown: a process died, or an answer was lost, between the storing of a message and the note of it
// in the database. Those are counted in relayer_republished_total. The window bounds what a crash can
// repeat: messages in memory, waiting or in flight, and acknowledged ones that are not noted yet.
//
// One goroutine owns all state, the loop. Its decisions come from parts without I/O and without a
// clock, so that each can be understood, and tested, alone: places (how far the log is sent), lanes
// (what is sent next), reader (what is read next), deleter (which finished rows of the outbox are
// deleted next) and rest (which slots must be quiet). They share the window: the messages that this
// process is responsible for. Network calls run in other goroutines and report to the loop:
//
//	Offer ───► ┌──────┐ ─ request of one lane ─► Pub/Sub ─ acknowledged ─► ┌──────┐ ─► places ──► sent moves on
//	log ─────► │ loop │                                                    │ loop │ ─► deleter ─► row gone
//	outbox ──► └──────┘ ◄─ reader: the next page, of the log or the outbox   └──────┘
//
// A lane is an ordering key on a topic. It has at most one request in flight, so its order survives
// any failure; new rows wait for the next request. Hence a lone message is sent at once, and a
// backlog goes out in larger batches, without a delay to tune. (A request carries one ordering key:
// the service refuses mixed keys with FailedPrecondition.)
//
//	         its turn           acknowledged, nothing waits
//	ready ────────────► sending ────────────────────────────► gone (forgotten)
//	  ▲                    │
//	  │ after a delay      │ request fails
//	  └──────────────── blocked ──► moving ──► gone: its events of the log have rows
//
// A blocked lane keeps its events of the log, until they have rows (settle.go), and of the outbox one row.
// Later rows are left there, and read again from the first of them once the lane is free. With
// more than maxBlocked blocked lanes on a topic the topic is at fault rather than the lanes: rows of
// other lanes are left, too. So memory is bounded by the window.
//
// The database is authoritative. Events and rows of this instance's slots are written by this
// instance, one commit after the other, so reading on from the last one finds them all. When slots
// were taken, and every rereadEvery, they are read again from the start (Reload), past what is in
// flight.
//
// Slots come to rest (Quiesce) whatever Pub/Sub does: requests are cancelled after a while, and are
// in doubt then.
//
// The publisher calls Config.Valid before each request and stops when it returns false. A frozen
// process may still send a message later: the time between the check and the system call is
// unbounded.
package publish
