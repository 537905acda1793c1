package watch_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

// idle is a world whose watches have read all blocks that there are.
func idle(t *testing.T) (w *world, other testchain.Deployment) {
	w = setup(t)
	other, err := testchain.Deploy(t.Context(), w.sim)
	require.NoError(t, err)
	w.create(1)
	w.mine(confirmations + 1)
	w.run(watch.FilterTopics, true)
	w.expect(w.head() - confirmations)
	w.passed()
	w.Publish()

	return w, other
}

// What is read under another generation is void, and the publisher notes nothing until the owner says under which one
// it goes on. A chain may have no block for hours.
func TestAnOwnerLearnsOfAnotherGenerationWithoutABlock(t *testing.T) {
	t.Parallel()
	w, other := idle(t)
	before := w.out.reloads()
	w.follow(other)
	require.Eventually(t, func() bool { return w.out.reloads() > before }, patience, 10*time.Millisecond)
}

// An event that the second reading refutes is retracted without a block.
func TestAnEventIsRetractedWithoutABlock(t *testing.T) {
	t.Parallel()
	w, _ := idle(t)
	events, err := w.led.Stored(t.Context(), 0, 1<<40)
	require.NoError(t, err)
	v, err := w.led.Verifiable(t.Context())
	require.NoError(t, err)
	wrong := events[len(events)-1]
	require.Equal(t, contract.Deployed, wrong.Name)
	_, err = w.led.Repair(t.Context(), 1, v, v.From-1, nil, []contract.Event{wrong})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(w.out.retracted()) == 1 }, patience, 10*time.Millisecond)
}
