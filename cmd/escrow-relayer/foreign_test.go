package main

import (
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// The factory of another project, whose events have other names, is followed by configuration alone: each event is
// published once, in order, under the name that it means with its own arguments; `doctor` and `audit` agree.
func TestForeignFactory(t *testing.T) {
	t.Parallel()
	l, err := lab.Start(t.Context(), lab.Options{Bin: bin, Seed: 9, Server: testpg.Shared(t)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	wallet, err := testchain.OpenWallet(t.Context(), l.Chain.Client(), l.Chain.Accounts()[1])
	require.NoError(t, err)
	send := func(call testchain.Call) common.Address {
		receipts, err := wallet.Transact(t.Context(), l.Chain, 0, call)
		require.NoError(t, err)
		if logs := receipts[0].Logs; len(logs) > 0 && len(logs[0].Topics) == 3 {
			return common.BytesToAddress(logs[0].Topics[2][:]) // of Opened
		}

		return receipts[0].ContractAddress
	}
	factory := send(testchain.Call{Data: common.FromHex(contracts.DealsMetaData.Bin), Gas: 2_000_000})
	start, err := l.Head(t.Context())
	require.NoError(t, err)
	const other = "other-events"
	l.PubSub.CreateTopic(lab.Project, other)
	started := l.PubSub.Tap(testpubsub.TopicName(lab.Project, other))
	t.Cleanup(func() { require.NoError(t, started.Stop()) })

	env := map[string]string{"FACTORY_ADDRESS": factory.Hex(), "START_BLOCK": fmt.Sprint(start),
		"FACTORY_ABI": contracts.DealsMetaData.ABI, "ESCROW_ABI": contracts.DealMetaData.ABI, "EVENT_NAMES": "Started",
		"OTHER_EVENTS_TOPIC_ID": other, "EVENT_ALIASES": "Opened(deal)=EscrowDeployed, Settled=EscrowReleased," +
			"Cancelled=EscrowRefunded,Expired=EscrowRefunded"}
	p, err := l.Run("a", 0, 1, env)
	require.NoError(t, err)
	require.NoError(t, p.Ready(t.Context()))
	code, said := call(t, l.Environ("doctor", 0, 1, env), "doctor")
	require.Zero(t, code, said)

	deals, deal := contracts.NewDeals(), contracts.NewDeal()
	var opened []common.Address
	for range 3 {
		opened = append(opened, send(testchain.Call{To: &factory, Data: deals.PackOpen(l.Chain.Accounts()[2].Address),
			Value: big.NewInt(7)}))
	}

	for i, end := range [][]byte{deal.PackSettle(), deal.PackCancel(`sold "elsewhere"`), deal.PackExpire()} {
		send(testchain.Call{To: &opened[i], Data: end})
	}

	require.NoError(t, l.Chain.Mine(t.Context(), l.Confirmations))
	received := func() (all []string) {
		for _, m := range slices.Concat(l.Received.Messages(), started.Messages()) {
			var e struct {
				Type string          `json:"event_type"`
				Args json.RawMessage `json:"args"`
			}
			require.NoError(t, json.Unmarshal(m.Data, &e), "%s", m.Data)
			of := slices.IndexFunc(opened, func(a common.Address) bool {
				return strings.EqualFold(a.Hex(), m.Attributes[message.AttrEscrow])
			})
			all = append(all, fmt.Sprintf("%d %s %s", of, e.Type, e.Args))
		}

		slices.Sort(all)

		return all
	}
	want := []string{`1 EscrowRefunded {"reason":"sold \"elsewhere\""}`, `2 EscrowRefunded {}`,
		fmt.Sprintf(`0 EscrowReleased {"to":%q,"price":"7"}`, l.Chain.Accounts()[2].Address)}
	for i, a := range opened {
		want = append(want, fmt.Sprintf(`%d EscrowDeployed {"id":"%d","deal":%q,"buyer":%q,"price":"7"}`, i, i+1, a,
			l.Chain.Accounts()[1].Address), fmt.Sprintf(`%d Started {"price":"7"}`, i))
	}

	slices.Sort(want)
	require.Eventually(t, func() bool { return len(received()) >= len(want) }, patience, 50*time.Millisecond)
	require.Equal(t, want, received())
	var ended int
	require.NoError(t, l.DB.QueryRow(t.Context(), `select count(*) from escrows where ended_block is not null`).
		Scan(&ended))
	require.Equal(t, 3, ended)
	code, said = call(t, l.Environ("audit", 0, 1, env), "audit", "--prove")
	require.Zero(t, code, said)
	require.Contains(t, said, "0 missing, 0 extra")
}
