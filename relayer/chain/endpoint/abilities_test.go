package endpoint

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// That old blocks are gone for good says nothing of newer ones that the node has given: what it says of those is in
// passing, until it has said it for as long. What lies between is as old as what is asked for next.
func TestWhatWasGivenIsNotGoneForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLack(nullsBelieved, lostFirst, time.Now)
		said := func(block uint64, times int) {
			for range times {
				for believed := false; !believed; {
					believed = l.note(block)
				}

				<-time.After(time.Minute)
			}
		}
		l.gave(900)
		said(100, 5)
		require.True(t, l.forGood(100))
		said(200, 1)
		require.True(t, l.forGood(200), "the next of old blocks")
		require.False(t, l.note(950))
		require.False(t, l.holds(950))
		said(950, 1)
		require.False(t, l.forGood(950))
		said(950, 4)
		require.True(t, l.forGood(950), "it has thrown more away")
		l.gave(800)
		require.False(t, l.forGood(700))
		require.False(t, l.note(700))
	})
}
