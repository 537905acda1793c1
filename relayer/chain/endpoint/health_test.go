package endpoint

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

var (
	states = []State{Untried, Healthy, Limited, Unsteady, Down, Suspect, OnProbation, WrongChain, Unfit}
	events = []event{answered, proved, failed, limited, lied, foreign, refused}
)

// The table is whole, every state can be left, and no state that is out of use is left by a failure.
func TestTransitions(t *testing.T) {
	require.Len(t, transitions, len(states))
	for _, s := range states {
		require.Len(t, transitions[s], len(events), s)
		for _, e := range events {
			next := transitions[s][e]
			require.Contains(t, states, next)
			require.False(t, !s.Up() && next.Up() && e != answered && e != proved, "%s by %s becomes %s", s, e, next)
		}

		require.Equal(t, Healthy, transitions[s][proved], "logs that stand all tests end everything")
		require.Equal(t, WrongChain, transitions[s][foreign])
	}

	require.Equal(t, Limited, transitions[Healthy][limited], "a limit is no fault")
	require.Equal(t, OnProbation, transitions[Suspect][answered], "an answer is no proof")
}

func none(time.Duration) time.Duration { return 0 }

func TestHealth(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	h := health{state: Untried}
	require.True(t, h.works(at(0), at(0.1)))
	require.Equal(t, Healthy, h.state)

	// Four requests that were in flight together are one failure.
	for range 4 {
		h.fails(rpc.ErrDisconnected, at(1), at(1.1), none)
	}

	require.Equal(t, Unsteady, h.state)
	require.Equal(t, 1, h.failures)
	require.Equal(t, firstPause, h.resume.Sub(at(1.1)))
	require.False(t, h.works(at(1), at(1.2)), "it was sent before")
	h.fails(rpc.ErrDisconnected, at(2), at(2), none)
	require.Equal(t, Down, h.state)
	for i := range 20 {
		h.fails(rpc.ErrDisconnected, at(float64(3+10*i)), at(float64(3+10*i)), none)
	}

	require.Equal(t, longestPause, h.resume.Sub(at(193)), "it is never left alone for longer")
	require.True(t, h.works(at(202), at(202)))
	require.Equal(t, Healthy, h.state)

	// A wrong answer: on probation until logs prove otherwise, or until its time is over.
	h.fails(fmt.Errorf("%w: logs", rpc.ErrInvalid), at(300), at(300), none)
	require.Equal(t, Suspect, h.state)
	require.Equal(t, at(330), h.avoid)
	require.True(t, h.works(at(302), at(302)))
	require.Equal(t, OnProbation, h.state)
	require.False(t, h.proves(at(299)), "asked before it lied")
	require.True(t, h.retire(at(303)))
	require.Equal(t, Suspect, h.state)
	require.True(t, h.proves(at(304)))
	require.Equal(t, Healthy, h.state)
	h.fails(fmt.Errorf("%w: logs", rpc.ErrInvalid), at(400), at(400), none)
	require.True(t, h.works(at(431), at(431)))
	require.Equal(t, Healthy, h.state, "its time is over")

	// A limit: as long as it says, else a second, twice as long each time.
	h.fails(&rpc.Error{Code: 429, Retry: 7 * time.Second}, at(500), at(500), none)
	require.Equal(t, Limited, h.state)
	require.Equal(t, at(507), h.resume)
	h.fails(errUnfit, at(600), at(600), none)
	require.Equal(t, Unfit, h.state)
	require.False(t, h.works(at(600+2*3600), at(600+2*3600)))
	require.Equal(t, Unfit, h.state, "that it tells its head does not help")
	h.fails(errors.Join(ErrWrongChain), at(9000), at(9000), none)
	require.Equal(t, WrongChain, h.state)
}
