// Package testpubsub is a Pub/Sub server on a TCP address, with faults on demand, and a recorder of what it was given.
//
// The server is Google's pstest behind a gRPC server of ours, which adds what pstest lacks: it
// refuses what the real service refuses (two ordering keys in one request, too large a request), it
// injects faults outside of pstest's one mutex, so that a slow answer slows only its own request,
// and it shows every stored message in the order of storage.
//
// Processes reach it through PUBSUB_EMULATOR_HOST. CreateTopic, CreateSubscription and Record take
// an address, and so they work with Google's own emulator too.
//
// There are two ways to record. Server.Tap sees what was stored, in that order, at no cost to
// delivery; it is the ground truth. Record subscribes: it sees what a consumer with message
// ordering sees, which is ordered per key only.
package testpubsub
