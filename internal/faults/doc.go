// Package faults puts itself between a relayer and what it depends on, and misbehaves on command:
// Node in front of a chain's JSON-RPC interface (HTTP and WebSocket), TCP in front of Postgres.
// Faults are switched while everything runs, and counted.
//
// What is random follows from the seed and from what is asked, not from when: a log that a node
// leaves out is left out of every answer.
package faults
