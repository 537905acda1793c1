// Package contracts holds the contracts that the relayer watches, written again from the interface
// and the events of the deployed system, and what tests need beside them: an older factory, a
// contract that emits foreign logs, and one that does much in one transaction.
//
// The .sol files are the source; contracts.json (ABI and code) and contracts.go (bindings) are generated and committed.
package contracts

//go:generate ./generate.sh
