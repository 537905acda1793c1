package web

import (
	"fmt"
	"strings"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

const (
	// mapColumns makes rows in which every number of partitions that divides 60 shows as columns.
	mapColumns = 60
	// palette is the number of colours in page.css; further owners share them.
	palette = 30
)

// slotMap is the picture of the slots' owners: a grid with mapColumns cells per row, slot 0 in the
// upper left corner.
type slotMap struct {
	Columns, Rows int
	Label         string // for screen readers
	Owners        []slotOwner
	Free          string // path of the free cells, in units of one cell
	Counts        fleet.Slots
	// Cells has, for each slot, its owner among Owners in two characters of base 36, and a letter:
	// p preferred, a adopted, d dead, f free. The script uses it to name the slot under the
	// pointer.
	Cells string
}

// slotOwner is an owner of slots, with a colour.
type slotOwner struct {
	ID     string
	Colour int // index into the palette
	Slots  int
	Adopt  int
	Alive  bool
	Path   string // its cells
	Over   string // those of them that it adopted
}

func newSlotMap(f *fleet.Fleet, colours map[string]int) slotMap {
	m := slotMap{Columns: mapColumns, Rows: f.Slots.Total / mapColumns, Counts: f.Slots}
	index := map[string]int{}
	for n := range f.Instances {
		i := &f.Instances[n]
		if i.Slots > 0 {
			index[i.ID] = len(m.Owners)
			m.Owners = append(m.Owners, slotOwner{ID: i.ID, Colour: colours[i.ID], Slots: i.Slots, Adopt: i.Adopted,
				Alive: i.Alive})
		}
	}

	paths, over := make([]strings.Builder, len(m.Owners)), make([]strings.Builder, len(m.Owners))
	var free, cells strings.Builder
	for n := range f.Slots.Each {
		s := &f.Slots.Each[n]
		owner, known := index[s.Owner]
		if !known { // an owner without a row counts as dead and has no name
			cell(&free, s.Number)
			cells.WriteString("00f")
			continue
		}

		cell(&paths[owner], s.Number)
		how := "p"
		switch {
		case !s.Served:
			how = "d"
		case s.Adopted:
			how = "a"
			cell(&over[owner], s.Number)
		}

		cells.WriteString(base36(owner) + how)
	}

	for n := range m.Owners {
		m.Owners[n].Path, m.Owners[n].Over = paths[n].String(), over[n].String()
	}

	m.Free, m.Cells = free.String(), cells.String()
	m.Label = fmt.Sprintf("Slot map: %s of %s slots served, %s of them adopted, %s unserved",
		count(f.Slots.Served), count(f.Slots.Total), count(f.Slots.Adopted),
		count(f.Slots.Unserved))

	return m
}

// cell draws a slot as a short thick line: a third of the bytes of a rectangle.
func cell(b *strings.Builder, slot int16) {
	fmt.Fprintf(b, "M%d %dh.88", slot%mapColumns, slot/mapColumns)
}

func base36(n int) string {
	const digits = "0123456789abcdefghijklmnopqrstuvwxyz"
	n %= len(digits) * len(digits)
	return string([]byte{digits[n/len(digits)], digits[n%len(digits)]})
}

// colours gives each instance that lives or owns slots a colour: that of its partition number, or a
// free one if another instance of the same number came first, as with a standby or during a
// repartition.
func colours(f *fleet.Fleet) map[string]int {
	out := map[string]int{}
	taken := map[int]bool{}
	var rest []string
	for n := range f.Instances {
		i := &f.Instances[n]
		switch c := i.Number % palette; {
		case !i.Alive && i.Slots == 0:
		case taken[c]:
			rest = append(rest, i.ID)
		default:
			out[i.ID], taken[c] = c, true
		}
	}

	c := 0
	for _, id := range rest {
		for tries := 0; taken[c] && tries < palette; tries++ {
			c = (c + 1) % palette
		}

		out[id], taken[c] = c, true
	}

	return out
}

// place is the position of a slot on the map; -1 is outside.
func place(slot int) (x, y int) {
	if slot < 0 {
		return -2, -2
	}

	return slot % mapColumns, slot / mapColumns
}
