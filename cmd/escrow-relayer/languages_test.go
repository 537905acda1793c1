//go:build languages

package main

import "testing"

// What TestConsumer says of the one in Go.
func TestConsumersInEveryLanguage(t *testing.T) {
	const root = "../../relayer/message/"
	t.Run("python", func(t *testing.T) {
		t.Parallel()
		testConsumer(t, root+"python", "/usr/bin/python3", "examples/balances.py")
	})
	t.Run("typescript", func(t *testing.T) {
		t.Parallel()
		testConsumer(t, root+"typescript", "node", "dist/examples/balances.js")
	})
}
