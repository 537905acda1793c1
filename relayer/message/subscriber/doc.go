// Package subscriber is an example of a consumer, and nothing else: see the package's example. It stands
// apart from package message because `go mod tidy` counts what the tests of an imported package import:
// beside message it would ask each consumer for the sums of Pub/Sub, pgx and all below them (84 lines of
// go.sum instead of 8).
package subscriber
