package watch

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"
)

// The set is held against a map: few addresses, so that they meet, are added and removed again and again.
func FuzzAddressSet(f *testing.F) {
	f.Add([]byte{1, 2, 3, 129, 1, 130, 2}, uint8(0))
	f.Add([]byte{0, 128, 5, 133, 5}, uint8(3))
	f.Fuzz(func(t *testing.T, steps []byte, hint uint8) {
		set, model := newAddressSet(int(hint)), map[common.Address]struct{}{}
		for _, step := range steps {
			a := common.Address{19: step & 127}
			_, had := model[a]
			switch {
			case step&128 != 0:
				set.remove(a)
				delete(model, a)
			case a == common.Address{}:
				require.False(t, set.add(a, a[19]%3), "the zero address marks a free place")
			default:
				require.Equal(t, !had, set.add(a, a[19]%3))
				model[a] = struct{}{}
			}

			require.Equal(t, len(model), set.len())
		}

		equal(t, model, set)
	})
}

func equal(t *testing.T, model map[common.Address]struct{}, set *addressSet) {
	t.Helper()
	for n := range 128 {
		a := common.Address{19: byte(n)}
		_, has := model[a]
		require.Equal(t, has, set.has(a), a)
		if has {
			require.Equal(t, a[19]%3, set.mark(a), a)
		}
	}

	var all []common.Address
	for a := range set.all() {
		require.Contains(t, model, a)
		all = append(all, a)
	}

	require.Len(t, all, len(model))
	slices.SortFunc(all, common.Address.Cmp)
	require.Len(t, slices.Compact(all), len(model), "none twice")
}

// Long histories in a table that stays nearly full, where removing moves many, around its end too.
func TestAddressSetHoldsThroughChanges(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		set, model := newAddressSet(0), map[common.Address]struct{}{}
		for range 2_000 {
			a := common.Address{19: byte(1 + random.IntN(127))}
			if random.IntN(2) == 0 {
				set.remove(a)
				delete(model, a)
			} else {
				set.add(a, a[19]%3)
				model[a] = struct{}{}
			}

			require.Equal(t, len(model), set.len())
		}

		equal(t, model, set)
	}
}

// It takes what its documentation says: 30 bytes for each address that it was made for, and at most 45 after growing.
func TestAddressSetIsSmall(t *testing.T) {
	t.Parallel()
	const n = 100_000
	made, grown := newAddressSet(n), newAddressSet(0)
	for i := range n {
		a := common.Address{byte(i), byte(i >> 8), byte(i >> 16), 19: 1}
		made.add(a, 0)
		grown.add(a, 0)
		require.LessOrEqual(t, cap(grown.places)*common.AddressLength, 46*grown.len()+400)
	}

	require.LessOrEqual(t, cap(made.places)*common.AddressLength, 31*n)
}
