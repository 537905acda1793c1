package testchain

import (
	"errors"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/rpc"
	"github.com/stretchr/testify/require"
)

type echo struct{}

func (echo) Repeat(n int) (string, error) {
	if n < 0 {
		return "", errors.New("negative")
	}

	return strings.Repeat("x", n), nil
}

func TestCallSplitsWhatIsTooLargeForOneAnswer(t *testing.T) {
	t.Parallel()
	server := rpc.NewServer()
	t.Cleanup(server.Stop)
	server.SetBatchLimits(batchSize, 1000)
	require.NoError(t, server.RegisterName("test", echo{}))
	c := rpc.DialInProc(server)
	t.Cleanup(c.Close)

	sizes := []int{10, 900, 900, 10, 10, 900, 1}
	for len(sizes) < 3*batchSize {
		sizes = append(sizes, 100)
	}

	batch, got := make([]rpc.BatchElem, len(sizes)), make([]string, len(sizes))
	for i, n := range sizes {
		batch[i] = rpc.BatchElem{Method: "test_repeat", Args: []any{n}, Result: &got[i]}
	}

	require.NoError(t, call(t.Context(), c, batch))
	for i, n := range sizes {
		require.Len(t, got[i], n)
	}

	batch[3].Args = []any{-1}
	require.ErrorContains(t, call(t.Context(), c, batch), "test_repeat: negative")
}
