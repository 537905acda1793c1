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

func TestGapIsCountedFromTheBlow(t *testing.T) {
	s := &scene{}
	var leading, other role
	_, struck := s.parry(&leading, "relayer-0", 1)
	require.False(t, struck, "nothing was done to a leader")
	s.blow("SIGKILL to relayer-0", &leading)
	_, struck = s.parry(&other, "relayer-1", 2)
	require.False(t, struck, "nothing was done to who has the other role")
	g, struck := s.parry(&leading, "relayer-1", 2)
	require.True(t, struck)
	require.Equal(t, "relayer-1", g.next)
	require.Equal(t, "SIGKILL to relayer-0", g.cause)
	_, struck = s.parry(&leading, "relayer-2", 3)
	require.False(t, struck, "one blow, one gap")
	require.Equal(t, []gap{g}, s.gaps(&leading))
}
