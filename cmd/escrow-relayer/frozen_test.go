package main

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// A process is frozen in the middle of a commit, with its cursor's row locked. Its standby takes
// its slots, another instance goes on and stops cleanly meanwhile, and what the frozen one does
// when it wakes up changes nothing.
func TestFrozenInsideACommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	proxy := w.behindProxy("r0", 0, 2, nil)
	w.ready("r0")
	w.run("r1", 1, 2, nil)
	w.ready("r1")
	w.until("two share", func(f *fleet.Fleet) bool { return slotsOf("r0", 1260)(f) && slotsOf("r1", 1260)(f) })
	w.run("r2", 0, 2, nil) // r0's standby
	w.ready("r2")
	w.blocks(2)

	trap := proxy.Trap("commit")
	w.blocks(1)
	require.NoError(t, w.Chain.Mine(t.Context(), w.Confirmations))
	<-trap.Caught()
	w.fleet["r0"].Signal(syscall.SIGSTOP)
	begun := time.Now()
	w.until("the standby has them", slotsOf("r2", 1260))
	t.Logf("taken over %s after the freeze", time.Since(begun).Round(100*time.Millisecond))
	w.blocks(2)

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, w.fleet["r1"].Stop(ctx))
	var held int
	require.NoError(t, w.DB.QueryRow(t.Context(), `select count(*) from slot_ownership where owner = 'r1'`).Scan(&held))
	require.Zero(t, held, "given back")

	trap.Release()
	w.fleet["r0"].Signal(syscall.SIGCONT)
	w.until("it is back", func(f *fleet.Fleet) bool {
		i := f.Find("r0")
		return i != nil && i.Alive &&
			f.Slots.Unserved == 0
	})
	w.blocks(2)
	w.audit(true)
}
