package relayer

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSince(t *testing.T) {
	t.Parallel()
	var s since
	at := time.Unix(1_700_000_000, 0)
	gone := errors.New("gone")
	require.Zero(t, s.of(nil, at))
	require.Equal(t, at, s.of(gone, at))
	require.Equal(t, at, s.of(gone, at.Add(time.Minute)), "since it began")
	require.Zero(t, s.of(nil, at.Add(2*time.Minute)))
	require.Equal(t, at.Add(3*time.Minute), s.of(gone, at.Add(3*time.Minute)), "anew")
}
