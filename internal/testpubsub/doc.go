// Package testpubsub is a Pub/Sub server on a TCP address, with faults on demand, and a recorder of what it was given.
//
// The server keeps topics and subscriptions as Google documents them, with what decides whether a
// consumer is right: leases that end with their deadline or the client's stream, order per key, also
// of what is delivered again, counted attempts, pauses between them, dead letters. It has no filters,
// no push and no retention. Google's own fake, pstest, keeps the leases of streams that have ended,
// counts the attempts of all subscriptions together, and drops what is ten minutes old.
//
// Faults are injected before a request is stored, so that a slow answer slows only its own request.
//
// Processes reach it through PUBSUB_EMULATOR_HOST. Server.Tap sees what was stored, in that order, at no cost to
// delivery.
package testpubsub
