package watch

import (
	"encoding/binary"
	"hash/maphash"
	"iter"
	"math/bits"

	"github.com/ethereum/go-ethereum/common"
)

// addressSet is a set of addresses in 30 to 45 bytes of memory each; a Go map takes 24 to 48, the
// most for a million. It is a hash table with linear probing: an address is at the place of its
// hash, or at the first free one after it. At most two thirds of the places are taken. The hash is
// seeded, so that collisions cannot be chosen.
//
// Each address has a mark, a small number. While all marks are 0 they take no memory; then they
// take 1.5 to 2.3 bytes per address.
//
// The zero address marks a free place and cannot be in the set: no contract has it. A set belongs
// to one goroutine.
type addressSet struct {
	seed   maphash.Seed
	places []common.Address
	marks  []uint8 // of each place; nil: all are 0
	n      int
}

// newAddressSet creates a set with room for n addresses.
func newAddressSet(n int) *addressSet {
	return &addressSet{seed: maphash.MakeSeed(), places: make([]common.Address, placesFor(n))}
}

// placesFor is how many places n addresses need.
func placesFor(n int) int { return max(8, n+n/2+1) }

func (s *addressSet) len() int { return s.n }

func (s *addressSet) has(a common.Address) bool {
	_, found := s.find(a)
	return found && a != common.Address{}
}

// find returns the place of an address, or the free one where it belongs. It compares eight bytes
// first, which nearly always decides, because a comparison of all twenty is a call.
func (s *addressSet) find(a common.Address) (place int, found bool) {
	first := binary.NativeEndian.Uint64(a[:])
	for at := s.home(a); ; at = s.next(at) {
		there := &s.places[at]
		start := binary.NativeEndian.Uint64(there[:])
		if start == first && *there == a {
			return at, true
		}

		if start == 0 && *there == (common.Address{}) {
			return at, false
		}
	}
}

// home is the place of an address's hash (Lemire, "Fast Random Integer Generation in an Interval":
// the upper half of a product instead of a division).
func (s *addressSet) home(a common.Address) int {
	place, _ := bits.Mul64(maphash.Bytes(s.seed, a[:]), uint64(len(s.places)))
	return int(place)
}

// mark is the mark of an address; 0 if the address is not in the set.
func (s *addressSet) mark(a common.Address) uint8 {
	if place, found := s.find(a); found && s.marks != nil {
		return s.marks[place]
	}

	return 0
}

func (s *addressSet) next(place int) int {
	if place++; place < len(s.places) {
		return place
	}

	return 0
}

// add reports whether the address is new; a known one keeps its mark.
func (s *addressSet) add(a common.Address, mark uint8) bool {
	if a == (common.Address{}) {
		return false
	}

	place, found := s.find(a)
	if found {
		return false
	}

	if placesFor(s.n+1) > len(s.places) {
		s.grow()
		place, _ = s.find(a)
	}

	s.places[place], s.n = a, s.n+1
	if mark > 0 && s.marks == nil {
		s.marks = make([]uint8, len(s.places))
	}

	if s.marks != nil {
		s.marks[place] = mark
	}

	return true
}

func (s *addressSet) grow() {
	old, marks := s.places, s.marks
	s.places = make([]common.Address, len(old)+len(old)/2)
	if marks != nil {
		s.marks = make([]uint8, len(s.places))
	}

	for i, a := range old {
		if a == (common.Address{}) {
			continue
		}

		place, _ := s.find(a)
		s.places[place] = a
		if marks != nil {
			s.marks[place] = marks[i]
		}
	}
}

// remove removes an address, and moves up those after it that would be unreachable across the gap.
func (s *addressSet) remove(a common.Address) {
	gap, found := s.find(a)
	if !found || a == (common.Address{}) {
		return
	}

	s.n--
	for at := s.next(gap); s.places[at] != (common.Address{}); at = s.next(at) {
		if s.behind(s.home(s.places[at]), at) >= s.behind(gap, at) {
			s.places[gap] = s.places[at]
			if s.marks != nil {
				s.marks[gap] = s.marks[at]
			}

			gap = at
		}
	}

	s.places[gap] = common.Address{}
}

// behind is the distance from one place to another, around the end of the table.
func (s *addressSet) behind(from, at int) int {
	if at < from {
		at += len(s.places)
	}

	return at - from
}

// all yields every address, unordered.
func (s *addressSet) all() iter.Seq[common.Address] {
	return func(yield func(common.Address) bool) {
		for _, a := range s.places {
			if a != (common.Address{}) && !yield(a) {
				return
			}
		}
	}
}
