//go:build long

package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDemoCleansUpWhenInterrupted(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "--instances", "2")
	url := d.url()
	require.NoError(t, d.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, exitInterrupted, d.end(url))
	require.Contains(t, d.said.String(), "nothing was audited")
}

// An interruption is how a demo that keeps going ends: its audit follows.
func TestDemoKeepsGoingUntilInterrupted(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "--instances", "1", "--keep", "--duration", "10s")
	url := d.url()
	for range 3 {
		d.until("alive 1") // lines that come every five seconds: longer than --duration
	}

	require.NoError(t, d.cmd.Process.Signal(os.Interrupt))
	require.Zero(t, d.end(url), d.said.String())
	require.Contains(t, d.said.String(), "result    every event was published")
	d.judged()
}
