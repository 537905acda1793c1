package logging

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRepeats(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	var r Repeats
	require.False(t, r.Lately(errors.New("no block 17"), now, time.Minute))
	require.True(t, r.Lately(errors.New("no block 18"), now.Add(59*time.Second), time.Minute))
	require.False(t, r.Lately(errors.New("no block 19"), now.Add(time.Minute), time.Minute))
	require.False(t, r.Lately(errors.New("no answer"), now.Add(time.Minute), time.Minute))
	require.True(t, r.Lately(errors.New("no answer"), now.Add(time.Minute), time.Minute))
}
