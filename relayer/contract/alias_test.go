package contract_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// Names of others mean ours. What an alias says wrong, or of an event that is not there, is refused with a remedy.
func TestAliases(t *testing.T) {
	t.Parallel()
	abi, err := contract.New(contracts.DealsMetaData.ABI, contracts.DealMetaData.ABI, "Opened(deal)=EscrowDeployed",
		"Settled=EscrowReleased", " Cancelled=EscrowRefunded ", "Expired=EscrowRefunded", "")
	require.NoError(t, err)
	require.True(t, abi.Aliased())
	require.ElementsMatch(t, []string{contract.Deployed, contract.Released, contract.Refunded, "Started"},
		abi.EventNames())
	require.Len(t, abi.FactoryTopics(), 1)
	require.Len(t, abi.EscrowTopics(), 4)
	require.Contains(t, abi.Definitions(), "event Settled(address indexed to, uint256 price) as EscrowReleased()")

	other, err := contract.New(contracts.DealsMetaData.ABI, contracts.DealMetaData.ABI, "Opened(deal)=EscrowDeployed",
		"Settled=EscrowRefunded")
	require.NoError(t, err)
	require.NotEqual(t, abi.Definitions(), other.Definitions(), "instances that differ in a meaning are told apart")

	for alias, want := range map[string]string{
		"Opened=EscrowDeployed":         "nor THEIRS(ARGUMENT)=EscrowDeployed",
		"Opened(buyer)=EscrowReleased":  "neither THEIRS=OURS",
		"Opened(id)=EscrowDeployed":     `no address argument "id"`,
		"Opened(nobody)=EscrowDeployed": `no address argument "nobody"`,
		"Settled=Paid":                  "Paid of \"Settled=Paid\" is not one of EscrowDeployed",
		"Settled":                       "neither THEIRS=OURS",
		"Setled=EscrowReleased":         "no event Setled",
	} {
		aliases := []string{alias}
		if !strings.HasPrefix(alias, "Opened") {
			aliases = append(aliases, "Opened(deal)=EscrowDeployed")
		}

		_, err := contract.New(contracts.DealsMetaData.ABI, contracts.DealMetaData.ABI, aliases...)
		require.ErrorContains(t, err, want, alias)
	}

	_, err = contract.New("", "", "Approved=EscrowReleased", "Approved=EscrowRefunded")
	require.ErrorContains(t, err, "Approved has two meanings")
	_, err = contract.New(contracts.DealsMetaData.ABI, contracts.DealMetaData.ABI)
	require.ErrorContains(t, err, "EVENT_ALIASES", "the remedy for an ABI without our names")
	const hidden = `[{"type":"event","name":"Opened","anonymous":true,"inputs":[{"name":"deal","type":"address"}]}]`
	_, err = contract.New(hidden, "", "Openned(deal)=EscrowDeployed")
	require.ErrorContains(t, err, "the ABI has no event Openned", "beside what follows from it")
	require.ErrorContains(t, err, "anonymous events are in no log by name: Opened")
}
