package watch_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain"
)

const confirmations = 3

// openSource reads the chain from nodes until the test ends.
func openSource(t *testing.T, urls ...string) *chain.Source {
	return openSourceAt(t, time.Now, urls...)
}

// openSourceAt is openSource by a clock.
func openSourceAt(t *testing.T, now func() time.Time, urls ...string) *chain.Source {
	return openSourceWith(t, chain.Config{URLs: urls, Now: now})
}

// openSourceWith is openSource with settings of its own.
func openSourceWith(t *testing.T, cfg chain.Config) *chain.Source {
	cfg.ChainID, cfg.Confirmations, cfg.PollInterval = chainID, confirmations, 50*time.Millisecond
	cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	s := chain.New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(t, s.Run(ctx)) })
	t.Cleanup(func() { cancel(); wg.Wait() })

	return s
}
