package logging

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCatchUp(t *testing.T) {
	var c CatchUp
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

	_, ok := c.sample(begin, 0, 1_000_000, 0)
	require.False(t, ok, "it holds no slot yet")
	_, ok = c.sample(begin, 999_990, 1_000_000, 7)
	require.False(t, ok, "it is at the head")
	_, ok = c.sample(begin, 1, 100_000, 7)
	require.False(t, ok, "the beginning: nothing is known of the speed")

	p, ok := c.sample(begin.Add(10*time.Second), 25_001, 100_000, 5007)
	require.True(t, ok)
	require.Equal(t, progress{
		Done: 25_000, Left: 75_000, Percent: 25, BlocksPerSecond: 2500, EventsPerSecond: 500, TimeLeft: 30 * time.Second,
	}, p)

	p, ok = c.sample(begin.Add(20*time.Second), 25_001, 100_000, 5007)
	require.True(t, ok)
	require.Equal(t, 25.0, p.Percent, "it stands still, and says so")

	p, ok = c.sample(begin.Add(40*time.Second), 100_001, 100_010, 10_007)
	require.True(t, ok)
	require.True(t, p.Over)
	require.EqualValues(t, 100_000, p.Done)
	_, ok = c.sample(begin.Add(50*time.Second), 100_011, 100_011, 10_007)
	require.False(t, ok, "it is said once")
}
