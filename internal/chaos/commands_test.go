package chaos

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCommandsPlanIsDecidedByItsSeed(t *testing.T) {
	a, b := NewCommandsPlan(7), NewCommandsPlan(7)
	require.Equal(t, a.String(), b.String())
	other := NewCommandsPlan(8)
	require.NotEqual(t, a.String(), other.String())
}
