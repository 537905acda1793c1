package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// deploy/runbooks/new-factory-address.md, on a real fleet: a factory is added by a rolling restart, with its past; each
// message names its factory. Then one is retired.
func TestAddFactoryRunbook(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	load, err := testchain.OpenLoad(t.Context(), w.Chain, w.Contracts)
	require.NoError(t, err)
	past, err := load.Clone(t.Context(), 3)
	require.NoError(t, err)
	require.NoError(t, load.Emit(t.Context(), past, 2))
	w.startTwo(nil)
	w.blocks(4)

	both := fmt.Sprintf("%s@%d,%s@%d", w.Contracts.Factory, w.Contracts.Block, w.Contracts.Load, w.Contracts.Block)
	code, _ := w.operator(map[string]string{"FACTORY_ADDRESS": both}, "doctor")
	require.Zero(t, code)
	w.roll(map[string]string{"FACTORY_ADDRESS": both})
	escrows, err := load.Clone(t.Context(), 2)
	require.NoError(t, err)
	require.NoError(t, load.Emit(t.Context(), append(past, escrows...), 1))
	w.blocks(2)
	require.NoError(t, w.Chain.Mine(t.Context(), w.Confirmations))
	w.received(w.Chain.Client(), w.Chain.ChainID().Int64(), w.Contracts.Factory, w.Contracts.Load)
	ofLoad := map[string]bool{}
	for _, e := range append(past, escrows...) {
		ofLoad[strings.ToLower(e.Hex())] = true
	}

	for _, m := range w.Received.Messages() {
		want := w.Contracts.Factory
		if ofLoad[m.Attributes[message.AttrEscrow]] {
			want = w.Contracts.Load
		}

		require.Equal(t, strings.ToLower(want.Hex()), m.Attributes[message.AttrFactory], "%s", m.Attributes)
	}

	w.clean(nil, w.Contracts.Block)
	code, out := w.operator(nil, "factory", "list")
	require.Zero(t, code)
	require.Equal(t, 2, strings.Count(out, "followed"))
	require.NotContains(t, out, "past")

	code, _ = w.operator(nil, "factory", "retire", w.Contracts.Load.Hex())
	require.Zero(t, code)
	code, out = w.operator(nil, "factory", "list")
	require.Zero(t, code)
	require.Contains(t, out, "retired: deployments from block")
	code, out = w.operator(nil, "factory", "retire", "0x00000000000000000000000000000000000000aa")
	require.Equal(t, 2, code)
	require.Contains(t, out, "does not follow")
	code, out = w.operator(nil, "factory", "retire", "mine")
	require.Equal(t, 2, code)
	require.Contains(t, out, "40 hexadecimal digits")

	require.NoError(t, w.Chain.Mine(t.Context(), w.Confirmations))
	known := w.count(`select count(*) from escrows`)
	_, err = load.Clone(t.Context(), 1)
	require.NoError(t, err)
	require.NoError(t, load.Emit(t.Context(), escrows, 1))
	require.NoError(t, w.Chain.Mine(t.Context(), w.Confirmations))
	head, err := w.Head(t.Context())
	require.NoError(t, err)
	w.until("it has passed them", func(f *fleet.Fleet) bool {
		return f.Chain.LowestCursor > int64(head)-int64(w.Confirmations)
	})
	require.Equal(t, known, w.count(`select count(*) from escrows`))
	require.Eventually(t, func() bool {
		return w.count(fmt.Sprintf(`select count(*) from processed_events where event_type = 'Approved' and escrow in ('%s', '%s')`,
			strings.ToLower(escrows[0].Hex()), strings.ToLower(escrows[1].Hex()))) == 4
	}, patience, 50*time.Millisecond)

	code, out = w.operator(nil, "factory", "follow", w.Contracts.Load.Hex())
	require.Zero(t, code, out)
	require.Eventually(t, func() bool { return w.count(`select count(*) from escrows`) == known+1 }, patience,
		50*time.Millisecond)
	code, out = w.operator(nil, "factory", "retire", w.Contracts.Load.Hex(), "--at", "1")
	require.Equal(t, 2, code)
	require.Contains(t, out, "are followed already")
}
