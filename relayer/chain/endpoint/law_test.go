package endpoint

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A chain that hashes otherwise than it did shows it at every endpoint: at several that is believed after a minute, at
// one that is configured alone never. What was given up is not demanded again before a restart, or before it is kept.
func TestLawThatIsBroken(t *testing.T) {
	now, shown, accused := time.Unix(0, 0), 0, ""
	laws := func(endpoints int) *Laws {
		return NewLaws(endpoints, func() time.Time { return now }, slog.New(slog.DiscardHandler), func() { shown++ })
	}
	broken := func(l *Law, endpoint string, block uint64) bool {
		return l.Broken(t.Context(), endpoint, block, func() { accused += endpoint })
	}
	two := laws(2)
	two.Headers.Kept("a", 5)
	two.Headers.Kept("a", 6)
	require.Equal(t, 1, shown)
	require.Equal(t, []string{"headers hash"}, two.Shown())

	one := laws(1)
	require.False(t, broken(one.Headers, "a", 9), "it is the chain's law for all that is known")
	one.Demand(two.Shown())
	require.Equal(t, two.Shown(), one.Shown())
	for range 3 {
		require.True(t, broken(one.Headers, "a", 9))
		require.False(t, broken(two.Headers, "a", 9))
		require.True(t, two.Headers.Holds())
		now = now.Add(time.Hour)
	}

	require.False(t, broken(two.Headers, "b", 9), "the same answer of two")
	require.True(t, two.Headers.Holds())
	now = now.Add(upgradeAfter)
	require.False(t, broken(two.Headers, "b", 9))
	require.Empty(t, accused)
	two.Demand([]string{"headers hash"})
	require.False(t, two.Headers.Holds())
	two.Headers.Kept("a", 9)
	require.True(t, two.Headers.Holds())
	require.Equal(t, "b", accused, "another keeps it at that height")
	require.True(t, broken(two.Headers, "b", 9))
	require.False(t, broken(two.Headers, "b", 10))
	two.Headers.Seen("b")
	two.Headers.Kept("a", 11)
	require.Equal(t, "b", accused, "it has kept it since")

	none := NewLaws(1, time.Now, slog.New(slog.DiscardHandler), nil) // PROOF=none
	none.Headers.Kept("a", 1)
	none.Demand(two.Shown())
	require.Empty(t, none.Shown())
}
