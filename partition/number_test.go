package partition

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

// Whoever joins a full fleet, in whatever order of ids, displaces nobody.
func TestAutoDisplacesNobody(t *testing.T) {
	t.Parallel()
	const total = 2
	ids := []string{"a", "b", "c", "d", "e", "f", "g"}
	mine := Partition{0, total, Modulo}
	for _, z := range ids {
		for _, x := range ids {
			for _, y := range ids {
				if z == x || z == y || x == y {
					continue
				}

				member := func(id string, number int, serves bool) Member {
					return Member{ID: id, Partition: Partition{number, total, Modulo}, Alive: true, Active: true, Serves: serves}
				}
				fleet := []Member{member(x, 0, true), member(y, 1, true)}
				fleet = append(fleet, member(z, firstNumber(z, mine, fleet), false))
				for range 3 {
					for i, m := range fleet {
						fleet[i].Partition.Number = freeNumber(m.ID, m.Partition, fleet)
					}
				}

				require.Equal(t, []int{0, 1}, []int{fleet[0].Partition.Number, fleet[1].Partition.Number},
					"%s joined %s and %s", z, x, y)

				// The standby takes over from whichever goes, and keeps the number when that one comes back.
				for gone := range 2 {
					after := append([]Member(nil), fleet...)
					after[gone].Alive, after[gone].Serves = false, false
					after[2].Partition.Number = freeNumber(z, after[2].Partition, after)
					require.Equal(t, gone, after[2].Partition.Number)
					after[2].Serves = true
					after[gone].Alive = true
					after[gone].Partition.Number = firstNumber(after[gone].ID, mine, after)
					for i, m := range after {
						after[i].Partition.Number = freeNumber(m.ID, m.Partition, after)
					}

					require.Equal(t, gone, after[2].Partition.Number)
					require.Equal(t, 1-gone, after[1-gone].Partition.Number)
				}
			}
		}
	}
}

// The same through the database, with a standby whose id is lower than those of all that serve.
func TestAutoStandbyWithALowerId(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	auto := func(c *Config) { c.Auto, c.AdoptAfter = true, time.Hour }
	x, y := born(t, url, pool, "m", 0, 2, auto), born(t, url, pool, "n", 0, 2, auto)
	steps(t, x, y)
	before := []int64{epoch(t, pool, "m"), epoch(t, pool, "n")}
	for i := range 3 {
		z := born(t, url, pool, fmt.Sprint("a", i), 0, 2, auto)
		steps(t, z, x, y, z)
	}

	require.Equal(t, map[string]int{"m": 1260, "n": 1260}, owners(t, pool, x, y))
	require.Equal(t, []int64{epoch(t, pool, "m"), epoch(t, pool, "n")}, before, "nothing moved")
}

// One that crashed takes up the number that it had.
func TestAutoKeepsItsNumberOverACrash(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	pool := testpg.Open(t, url)
	auto := func(c *Config) { c.Auto, c.AdoptAfter = true, time.Hour }
	x, y := born(t, url, pool, "x", 0, 2, auto), born(t, url, pool, "y", 0, 2, auto)
	steps(t, x, y)
	y.die(t)
	x.die(t)
	y = born(t, url, pool, "y", 0, 2, auto)
	h, _ := y.Holding()
	require.Equal(t, 1, h.Partition.Number)
	require.Len(t, h.Slots, 1260)
}
