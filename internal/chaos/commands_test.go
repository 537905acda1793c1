package chaos

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCommandsPlanIsDecidedByItsSeed(t *testing.T) {
	a, b := NewCommandsPlan(7), NewCommandsPlan(7)
	require.Equal(t, a.String(), b.String())
	other := NewCommandsPlan(8)
	require.NotEqual(t, a.String(), other.String())
}

// The code in which a mistake is made is still there: else the oracles are tried with a mistake less.
func TestMistakesCanBeMade(t *testing.T) {
	for _, b := range Breakages {
		text, err := os.ReadFile(filepath.Join("../..", b.file))
		require.NoError(t, err)
		require.Contains(t, string(text), b.old, b.Name)
	}
}
