package endpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
	"github.com/fusion-prime/escrow-relayer/relayer/redact"
)

var (
	states = []State{Untried, Healthy, Limited, Unsteady, Down, WrongChain}
	events = []event{answered, failed, limited, lied, foreign}
)

// The table is whole, every state can be left, and no state that is out of use is left by a failure.
func TestTransitions(t *testing.T) {
	require.Len(t, transitions, len(states))
	for _, s := range states {
		require.Len(t, transitions[s], len(events), s)
		for _, e := range events {
			next := transitions[s][e]
			require.Contains(t, states, next)
			require.False(t, !s.Up() && next.Up() && e != answered, "%s by %s becomes %s", s, e, next)
		}

		require.Equal(t, Healthy, transitions[s][answered])
		require.Equal(t, WrongChain, transitions[s][foreign])
	}

	require.Equal(t, Limited, transitions[Healthy][limited], "a limit is no fault")
}

// tried is the health of a node at a time, without jitter.
func tried(now *time.Time, log io.Writer) *Node {
	return New(Config{Name: "http://a", Log: slog.New(slog.NewTextHandler(log, nil)), Secrets: redact.New(),
		Metrics: NewMetrics(nil, []string{"http://a"}), Rand: func() float64 { return 0 },
		Now: func() time.Time { return *now }})
}

func TestHealth(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	now := start
	h := tried(&now, io.Discard)
	fails := func(err error, asked, ended float64) {
		now = at(ended)
		h.blame(t.Context(), err, at(asked))
	}
	works := func(asked, ended float64) State {
		now = at(ended)
		h.worked(at(asked), 0)
		return h.Status().State
	}
	require.Equal(t, Untried, h.Status().State)
	require.Equal(t, Healthy, works(0, 0.1))

	// Four requests that were in flight together are one failure.
	for range 4 {
		fails(rpc.ErrDisconnected, 1, 1.1)
	}

	require.Equal(t, Unsteady, h.Status().State)
	require.Equal(t, 1, h.health.failures)
	require.Equal(t, firstPause, h.health.resume.Sub(at(1.1)))
	require.Equal(t, Unsteady, works(1, 1.2), "it was sent before")
	fails(rpc.ErrDisconnected, 2, 2)
	require.Equal(t, Down, h.Status().State)
	for i := range 20 {
		fails(rpc.ErrDisconnected, float64(3+10*i), float64(3+10*i))
	}

	require.Equal(t, longestPause, h.health.resume.Sub(at(193)), "it is never left alone for longer")
	require.Equal(t, Healthy, works(202, 202))

	// A wrong answer: it is avoided until logs prove otherwise, or until its time is over, and in use where it answers.
	fails(fmt.Errorf("%w: logs", rpc.ErrInvalid), 300, 300)
	require.Equal(t, Suspect, h.Status().State)
	require.False(t, h.Status().Up)
	require.Equal(t, at(330), h.health.avoid)
	require.Equal(t, Suspect, works(302, 302))
	require.True(t, h.Status().Up)
	require.False(t, h.Serves())
	require.Positive(t, h.Pause(true))
	require.Negative(t, h.Pause(false))
	h.proves(at(299))
	require.Equal(t, Suspect, h.Status().State, "asked before it lied")
	h.Retire()
	require.False(t, h.Status().Up, "another one serves")
	h.proves(at(304))
	require.Equal(t, Healthy, h.Status().State)
	require.True(t, h.Serves())
	fails(fmt.Errorf("%w: logs", rpc.ErrInvalid), 400, 400)
	require.Equal(t, Healthy, works(431, 431), "its time is over")

	// A limit: as long as it says, else a second, twice as long each time.
	fails(&rpc.Error{Code: 429, Retry: 7 * time.Second}, 500, 500)
	require.Equal(t, Limited, h.Status().State)
	require.Equal(t, at(507), h.health.resume)
	fails(errors.Join(ErrWrongChain), 9000, 9000)
	require.Equal(t, WrongChain, h.Status().State)
}

// What a node is set aside for holds until it is taken back, whatever it answers.
func TestSetAside(t *testing.T) {
	now := time.Unix(1000, 0)
	h := tried(&now, io.Discard)
	h.worked(now, 0)
	h.Blame(t.Context(), &Forgery{What: "a receipt"})
	require.Equal(t, Lie, h.Fault().Kind)
	now = now.Add(24 * time.Hour)
	h.worked(now, 0)
	h.proves(now)
	require.Equal(t, Suspect, h.Status().State)
	require.True(t, h.Status().Up, "no other may serve")
	require.Equal(t, rememberedFor, h.Pause(true))
	h.Retire()
	require.False(t, h.Status().Up, "another serves")
	h.worked(now, 0)
	h.SetAside(nil)
	require.Equal(t, Healthy, h.Status().State)
	require.True(t, h.Serves())
}

// A node that fails and works by turns is told of once per minute, and so is what goes on: the last line
// of the log says how the node is.
func TestLogOfANodeThatFailsByTurns(t *testing.T) {
	var log bytes.Buffer
	now := time.Unix(1_700_000_000, 0)
	s := tried(&now, &log)
	s.worked(now, 0)
	log.Reset()
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
