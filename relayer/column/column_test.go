package column_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/column"
)

func TestOf(t *testing.T) {
	type event struct {
		block int64
		name  string
	}
	events := []event{{7, "a"}, {9, "b"}}
	require.Equal(t, []int64{7, 9}, column.Of(events, func(e *event) int64 { return e.block }))
	require.Equal(t, []string{"a", "b"}, column.Of(events, func(e *event) string { return e.name }))

	none := column.Of(nil, func(e *event) int64 { return e.block })
	require.NotNil(t, none, "an empty list is an empty array, not null")
	require.Empty(t, none)
}
