package watch

import (
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// Under LOG_FILTER=addresses every question names addresses, before the first escrow too: providers
// exist that refuse any other.
func TestAddressesAreNamedWithoutEscrows(t *testing.T) {
	abi, err := contract.New("", "")
	require.NoError(t, err)
	factory := common.Address{1}
	f := NewFilters(abi, registry.NewFollowed(registry.Factory{Address: factory}), FilterAddresses, 1000)
	require.Equal(t, []common.Address{factory}, f.Head().Addresses, "before the escrows are loaded")
	b := newBook()
	f.update(b)
	require.Equal(t, []common.Address{factory}, f.Head().Addresses)
	require.Equal(t, []common.Address{factory}, f.ranged.Addresses)
	b.add(registry.Late{Address: common.Address{2}})
	f.update(b)
	require.ElementsMatch(t, []common.Address{factory, {2}}, f.Head().Addresses)
	require.ElementsMatch(t, []common.Address{factory, {2}}, f.ranged.Addresses)
}
