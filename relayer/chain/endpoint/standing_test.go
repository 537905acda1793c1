package endpoint

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/redact"
)

// A node that fails and works by turns is told of once per minute, and so is what goes on: the last line
// of the log says how the node is.
func TestLogOfANodeThatFailsByTurns(t *testing.T) {
	var log bytes.Buffer
	now := time.Unix(1_700_000_000, 0)
	s := &standing{cfg: &Config{Name: "http://a", Log: slog.New(slog.NewTextHandler(&log, nil)), Secrets: redact.New(),
		Metrics: NewMetrics(prometheus.NewRegistry(), []string{"http://a"}), Rand: func() float64 { return 0 },
		Now: func() time.Time { return now }}, health: health{state: Healthy}}
	count := func(words string) int { return bytes.Count(log.Bytes(), []byte(words)) }
	const turns = 240
	for turn := range turns {
		s.Blame(t.Context(), fmt.Errorf("it does not know the finalized block, try %d", turn))
		now = now.Add(time.Second)
		s.worked(now, 0)
	}

	require.Equal(t, turns/60, count("endpoint not working"))
	require.Zero(t, count("endpoint is up"), "an unsteady one was in use")

	log.Reset()
	fail := func(times int) {
		for range times {
			s.Blame(t.Context(), errors.New("connection refused"))
			now = now.Add(5 * time.Second)
		}
	}
	fail(2)
	s.worked(now, 0)
	require.Equal(t, 1, count("state=down"))
	require.Equal(t, 1, count("endpoint is up"))
	fail(2)
	require.Equal(t, 1, count("state=down"), "the same within a minute")
	fail(20)
	require.Equal(t, 2, count("state=down"), "it is down, and was said to be up")
	s.worked(now, 0)
	require.Equal(t, 2, count("endpoint is up"))
}
