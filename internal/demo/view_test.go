package demo

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

func TestLineOfAChain(t *testing.T) {
	l := look{head: 31, factories: 2, received: 101, fleet: fleet.Fleet{
		ChainID: 1337,
		Leader:  fleet.Leader{Instance: "relayer-1", Epoch: 2, Held: true, Valid: true},
		Instances: []fleet.Instance{{ID: "relayer-0", State: fleet.Serving, Alive: true},
			{ID: "relayer-2", State: fleet.Dead}},
		Slots:   fleet.Slots{Total: 2520, Served: 1680, Unserved: 840},
		Chain:   fleet.Chain{LowestCursor: 24},
		Escrows: fleet.Escrows{Active: 21, Released: 18, Refunded: 1},
		Outbox:  fleet.Outbox{Messages: 3},
	}}
	require.Equal(t, "chain 1337  relayers alive 1, leader relayer-1  slots served 1680 of 2520, adopted 0  "+
		"block 31, behind by 6  factories 2  escrows 40  messages published 101, waiting 3", l.String())
}
