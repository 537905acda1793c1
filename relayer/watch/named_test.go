package watch

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// Where no endpoint gives logs by topics, LOG_FILTER=auto names addresses, says so once, and tries by
// topics again after a while. The other two do as they are told.
func TestAutoNamesAddressesWhereItMust(t *testing.T) {
	abi, err := contract.New("", "")
	require.NoError(t, err)
	factory := common.Address{1}
	refusal := fmt.Errorf("read block 7: %w", chain.ErrAddressRequired)
	for _, mode := range []FilterMode{FilterTopics, FilterAddresses} {
		f := NewFilters(abi, registry.NewFollowed(registry.Factory{Address: factory}), mode, 1000)
		require.False(t, f.Refused(t.Context(), &chain.Filter{}, refusal, slog.New(slog.DiscardHandler)), mode)
		require.Equal(t, mode == FilterAddresses, f.FactoryHead().Addresses != nil)
	}

	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	f := NewFilters(abi, registry.NewFollowed(registry.Factory{Address: factory}), FilterAuto, 1000)
	now := time.Now()
	f.now = func() time.Time { return now }
	again := f.Again()
	topics, b := f.Head(), newBook()
	require.Nil(t, topics.Addresses)
	require.False(t, f.Refused(t.Context(), topics, errors.New("another reason"), logger))
	require.Same(t, topics, f.FactoryHead())
	require.True(t, f.Refused(t.Context(), topics, refusal, logger))
	require.Equal(t, []common.Address{factory}, f.FactoryHead().Addresses, "before the slot watch has chosen")
	require.Equal(t, math.MaxInt32, again.Most())

	f.update(b)
	require.Equal(t, []common.Address{factory}, f.Head().Addresses)
	require.Equal(t, []common.Address{factory}, f.ranged.Addresses)
	b.add(registry.Late{Address: common.Address{2}})
	f.update(b)
	require.ElementsMatch(t, []common.Address{factory, {2}}, f.Head().Addresses)
	require.ElementsMatch(t, []common.Address{factory, {2}}, f.ranged.Addresses)
	require.Same(t, f.Head(), f.FactoryHead(), "both watches share a reading")
	require.Zero(t, f.limit(&f.heads), "there is nothing to learn")
	require.False(t, f.turned(&f.heads, f.Head()))
	require.True(t, f.turned(&f.heads, topics))
	require.False(t, f.Refused(t.Context(), f.Head(), refusal, logger), "they are named already")

	now = now.Add(namedFor)
	f.update(b)
	require.Nil(t, f.Head().Addresses)
	require.True(t, f.Refused(t.Context(), f.Head(), refusal, logger))
	require.Equal(t, 1, strings.Count(log.String(), "LOG_FILTER=auto names them now"))
}
