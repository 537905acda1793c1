//go:build pgbouncer

package main

import (
	"testing"

	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

// Two instances whose pools go through a pooler of transactions, as the documents say, publish everything.
func TestPoolsOfTransactionsPublish(t *testing.T) {
	w := newWorld(t, ownServer)
	w.DatabaseURL = testpg.Bouncer(t, w.URL, "transaction")
	w.startTwo(map[string]string{"SESSION_DATABASE_URL": w.URL})
	w.blocks(5)
	w.audit(false)
}
