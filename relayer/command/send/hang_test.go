package send_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
)

// An endpoint that hangs holds up nobody: a broadcast is over when one has taken the transaction or refused it, before
// the other one is given up.
func TestAHangingEndpointDelaysNoBroadcast(t *testing.T) {
	t.Parallel()
	for name, refused := range map[string]bool{"another one takes it": false, "another one refuses it": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorldWithout(t, startSim(t))
			other, _ := w.faulty()
			if refused {
				other.Inject(faults.Fault{Mode: faults.SendRefused, Words: "no room here"})
			}

			inTime := false
			for range 3 { // the machine may be so busy that the hanging one is given up before the other one answers
				hanging, source := w.faulty(other.HTTP())
				hanging.Inject(faults.Fault{Mode: faults.SendHangs})
				require.Eventually(t, func() bool { return source.View().Ready }, patience, patience/1000)
				_ = evm.NewNodes(source).Broadcast(t.Context(), [][]byte{w.raw(0, 21000, big.NewInt(5e11))})
				inTime = inTime || source.Endpoints()[0].LastError == ""
			}

			require.True(t, inTime)
		})
	}
}

// What one endpoint refuses while the other hangs is sent again: nothing is lost.
func TestWhatIsRefusedBesideAHangingEndpointIsSentAgain(t *testing.T) {
	t.Parallel()
	w, other := newFaultyWorld(t, false)
	refusal := other.Inject(faults.Fault{Mode: faults.SendRefused, Words: "no room here"})
	hanging, source := w.faulty(other.HTTP())
	hanging.Inject(faults.Fault{Mode: faults.SendHangs})
	w.start(func(c *send.Config) { c.Chain, c.ResendEvery = evm.NewNodes(source), 100*time.Millisecond })
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	require.Eventually(t, func() bool { return refusal.Hits() >= 3 }, patience, 10*time.Millisecond)
	refusal.Remove()
	w.await(id, true, command.Done)
	require.Len(t, w.sent(), 1)
}
