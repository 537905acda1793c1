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
	now, shown := time.Unix(0, 0), 0
	laws := func(endpoints int) *Laws {
		return NewLaws(endpoints, func() time.Time { return now }, slog.New(slog.DiscardHandler), func() { shown++ })
	}
	two := laws(2)
	two.Headers.Kept()
	two.Headers.Kept()
	require.Equal(t, 1, shown)
	require.Equal(t, []string{"headers hash"}, two.Shown())

	one := laws(1)
	require.False(t, one.Headers.Broken(t.Context(), "a"), "it is the chain's law for all that is known")
	one.Demand(two.Shown())
	require.Equal(t, two.Shown(), one.Shown())
	for range 3 {
		require.True(t, one.Headers.Broken(t.Context(), "a"))
		require.True(t, two.Headers.Broken(t.Context(), "a"))
		now = now.Add(time.Hour)
	}

	require.True(t, two.Headers.Broken(t.Context(), "b"))
	now = now.Add(upgradeAfter)
	require.False(t, two.Headers.Broken(t.Context(), "b"))
	two.Demand([]string{"headers hash"})
	require.False(t, two.Headers.Holds())
	two.Headers.Kept()
	require.True(t, two.Headers.Holds())

	none := NewLaws(1, time.Now, slog.New(slog.DiscardHandler), nil) // PROOF=none
	none.Headers.Kept()
	none.Demand(two.Shown())
	require.Empty(t, none.Shown())
}
