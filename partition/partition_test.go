package partition

import (
	"encoding/hex"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func address(t *testing.T, s string) (a [20]byte) {
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	require.Len(t, b, 20)

	return [20]byte(b)
}

// The two addresses of the first design's worked example, with the partitions they really have.
func TestSlotOfTheSeedsAddresses(t *testing.T) {
	t.Parallel()
	for hexAddress, want := range map[string]int{
		"E3d2980084b291fBA9684208EbDB5A4cb03bBD29": 0,
		"D0275E28f9e9C3D261db60e8e1204aA2f16f1Ca2": 1,
	} {
		slot := Slot(address(t, hexAddress))
		require.Equal(t, want, Of(slot, 3, Modulo), hexAddress)
	}
}

func TestModuloEqualsTheAddressModuloEveryDivisorOfSlots(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	divisors := 0
	for n := 1; n <= Slots; n++ {
		if Slots%n != 0 {
			continue
		}

		divisors++
		for range 50 {
			var a [20]byte
			for i := range a {
				a[i] = byte(rnd.Uint32())
			}

			number := new(big.Int).SetBytes(a[:])
			want := new(big.Int).Mod(number, big.NewInt(int64(n))).Int64()
			require.EqualValues(t, want, Of(Slot(a), n, Modulo))
		}
	}

	require.Equal(t, 48, divisors)
}

func TestEverySlotHasOnePartition(t *testing.T) {
	t.Parallel()
	for _, s := range []Strategy{Modulo, Consistent} {
		for total := 1; total <= 20; total++ {
			seen := make(map[int16]int)
			for number := range total {
				for _, slot := range (Partition{Number: number, Total: total, Strategy: s}).Preferred() {
					seen[slot]++
				}
			}

			require.Len(t, seen, Slots)
			for slot, n := range seen {
				require.Equal(t, 1, n, "slot %d, %d partitions, %s", slot, total, s)
			}
		}
	}
}

func TestConsistentMovesLittleAndOnlyToTheNewPartition(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 20; n++ {
		ideal := float64(Slots) / float64(n+1)
		require.InDelta(t, ideal, Moves(n, n+1, Consistent), Slots*0.03, "%d to %d", n, n+1)
		for slot := range int16(Slots) {
			before, after := Of(slot, n, Consistent), Of(slot, n+1, Consistent)
			require.True(t, before == after || after == n, "slot %d went from %d to %d", slot, before, after)
		}
	}

	require.Greater(t, Moves(3, 4, Modulo), Slots*7/10, "modulo moves most")
}

func TestBalance(t *testing.T) {
	t.Parallel()
	for total := 2; total <= 10; total++ {
		for number := range total {
			require.Len(t, Partition{number, total, Modulo}.Preferred(), Slots/total)
			ideal := float64(Slots) / float64(total)
			require.InEpsilon(t, ideal, len(Partition{number, total, Consistent}.Preferred()), 0.2)
		}
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	require.NoError(t, Partition{0, 1, Modulo}.Validate())
	require.Error(t, Partition{1, 1, Modulo}.Validate())
	require.Error(t, Partition{-1, 1, Modulo}.Validate())
	require.Error(t, Partition{0, 0, Modulo}.Validate())
	require.Error(t, Partition{0, Slots + 1, Modulo}.Validate())
	require.Error(t, Partition{0, 1, "other"}.Validate())
	require.False(t, Partition{}.Prefers(0))
}

func TestDecideSaysWhenSlotsMayBeAdopted(t *testing.T) {
	t.Parallel()
	me := Member{ID: "a", Partition: Partition{0, 2, Modulo}, Alive: true, Active: true}
	dead := Member{ID: "b", Partition: Partition{1, 2, Modulo}, DeadFor: 2 * time.Second}
	groups := []Group{{"a", time.Hour, []int16{0, 2}}, {"", 4 * time.Second, []int16{1}}, {"b", time.Hour, []int16{3}}}
	plan := Decide("a", []Member{me, dead}, groups, 5*time.Second)
	require.Empty(t, plan.Take)
	require.Equal(t, time.Second, plan.Wait, "the slot that has been free for longest")
	groups[1].Since = 5 * time.Second
	plan = Decide("a", []Member{me, dead}, groups, 5*time.Second)
	require.Equal(t, []int16{1}, plan.Take)
	require.Equal(t, 3*time.Second, plan.Wait, "the dead one's")
	require.Zero(t, Decide("a", []Member{me}, groups[:1], 5*time.Second).Wait)
}
