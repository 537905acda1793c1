package lab

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// factories of the story: each escrow has its own.
var factories = []common.Address{{7}, {8}}

// story is a chain with two escrows, and the messages that a perfect relayer publishes of it.
func story(t *testing.T) (*testchain.Truth, []testpubsub.Message) {
	truth := &testchain.Truth{Events: map[common.Address][]testchain.Entry{}}
	var messages []testpubsub.Message
	for n := range 2 {
		escrow := common.BytesToAddress([]byte{1, byte(n)})
		truth.Escrows = append(truth.Escrows, escrow)
		var deployed, later []testpubsub.Message
		for i, name := range []string{"EscrowCreated", "EscrowDeployed", "Approved", "ArbiterChanged", "EscrowReleased"} {
			e := message.Event{Name: name, Escrow: escrow.Hex(), BlockNumber: uint64(10 + i),
				TransactionHash: common.Hash{byte(n), byte(i)}, LogIndex: uint(i), Factory: factories[n].Hex()}
			emitter := escrow
			if name == "EscrowDeployed" {
				emitter = factories[n]
			}

			e.ContractAddress = emitter.Hex()
			truth.Events[escrow] = append(truth.Events[escrow],
				testchain.Entry{ID: fmt.Sprintf("%s:%d", common.Hash(e.TransactionHash), i), Name: name, Escrow: escrow,
					Args: map[string]string{"escrow": escrow.Hex()}, Log: &types.Log{Address: emitter}})
			switch {
			case name == "EscrowDeployed":
				deployed = append(deployed, published(t, e))
			case Published(name):
				later = append(later, published(t, e))
			}
		}

		messages = append(messages, append(deployed, later...)...)
	}

	return truth, messages
}

func TestCompare(t *testing.T) {
	truth, _ := story(t)
	approved := message.Event{Name: "Approved", Escrow: truth.Escrows[0].Hex(), BlockNumber: 12,
		TransactionHash: common.Hash{0, 2}, LogIndex: 2, Factory: factories[0].Hex()}
	for name, c := range map[string]struct {
		change func([]testpubsub.Message) []testpubsub.Message
		want   Audit
		exact  bool
	}{
		"perfect": {func(m []testpubsub.Message) []testpubsub.Message { return m }, Audit{Received: 6}, true},
		"escrows interleaved": {func(m []testpubsub.Message) []testpubsub.Message {
			return []testpubsub.Message{m[3], m[0], m[1], m[4], m[5], m[2]}
		}, Audit{Received: 6}, true},
		"missing": {func(m []testpubsub.Message) []testpubsub.Message { return slices.Delete(m, 1, 2) },
			Audit{Received: 5, Missing: make([]string, 1)}, false},
		"duplicated": {func(m []testpubsub.Message) []testpubsub.Message { return append(m, m[1], m[1]) },
			Audit{Received: 8, Duplicated: make([]string, 1)}, true},
		"out of order": {func(m []testpubsub.Message) []testpubsub.Message { m[1], m[2] = m[2], m[1]; return m },
			Audit{Received: 6, Disordered: make([]string, 1)}, false},
		"announced late": {func(m []testpubsub.Message) []testpubsub.Message { m[0], m[1] = m[1], m[0]; return m },
			Audit{Received: 6, Disordered: make([]string, 1)}, false},
		"of another escrow": {func(m []testpubsub.Message) []testpubsub.Message {
			m[1].Attributes[message.AttrEscrow] = m[4].Attributes[message.AttrEscrow]
			return m
		}, Audit{Received: 6, Missing: make([]string, 1), Malformed: make([]string, 1)}, false},
		"unknown": {func(m []testpubsub.Message) []testpubsub.Message {
			return append(m, published(t, message.Event{Name: "Approved", TransactionHash: common.Hash{9}}))
		}, Audit{Received: 7, Unknown: make([]string, 1)}, false},
		"of another factory": {func(m []testpubsub.Message) []testpubsub.Message {
			other := approved
			other.Factory = factories[1].Hex()
			m[1] = published(t, other)
			return m
		}, Audit{Received: 6, Malformed: make([]string, 1)}, false},
		"of another content": {func(m []testpubsub.Message) []testpubsub.Message {
			other := approved
			other.Args = []byte(`{"escrow":"0x1"}`)
			m[1] = published(t, other)
			return m
		}, Audit{Received: 6, Malformed: make([]string, 1)}, false},
		"malformed": {func(m []testpubsub.Message) []testpubsub.Message { m[1].Data = []byte("{"); return m },
			Audit{Received: 6, Missing: make([]string, 1), Malformed: make([]string, 1)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			truth, messages := story(t)
			a := Compare(truth, c.change(messages), nil)
			require.Equal(t, []int{2, 2}, []int{a.Factories, a.Escrows})
			require.Equal(t, 6, a.Emitted, "EscrowCreated and ArbiterChanged are not published")
			require.Equal(t, c.want.Received, a.Received)
			for what, lists := range map[string][2][]string{
				"missing": {c.want.Missing, a.Missing}, "duplicated": {c.want.Duplicated, a.Duplicated},
				"unknown":      {c.want.Unknown, a.Unknown},
				"out of order": {c.want.Disordered, a.Disordered}, "malformed": {c.want.Malformed, a.Malformed},
			} {
				require.Len(t, lists[1], len(lists[0]), "%s: %s", what, a)
				require.Contains(t, a.String(), fmt.Sprintf("%s %d", what, len(lists[0])))
			}

			require.Equal(t, c.exact, a.Exact())
			require.Equal(t, c.exact && len(c.want.Duplicated) == 0, a.Clean())
		})
	}
}

// published is the message of an event.
func published(t *testing.T, e message.Event) testpubsub.Message {
	e.Escrow = cmp.Or(e.Escrow, common.Address{}.Hex())
	e.ContractAddress = cmp.Or(e.ContractAddress, e.Escrow)
	if e.Args == nil {
		e.Args = []byte(`{"escrow":"` + e.Escrow + `"}`)
	}

	body, attributes, err := message.Encode(message.Original, &e, 1337, time.Unix(1795238400, 0))
	require.NoError(t, err)

	return testpubsub.Message{Data: body, Attributes: attributes}
}
