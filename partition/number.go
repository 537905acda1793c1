package partition

import (
	"slices"
)

// firstNumber is the number with which an instance joins under PARTITION_NUMBER=auto: its last one,
// unless another live instance has taken it, else a free one. Without a free number the instance
// stands by with one that a hash of its id chooses.
func firstNumber(me string, p Partition, fleet []Member) int {
	i := slices.IndexFunc(fleet, func(m Member) bool { return m.ID == me && m.Partition.Total == p.Total })
	if i >= 0 && !taken(me, p.Total, fleet)[fleet[i].Partition.Number] {
		return fleet[i].Partition.Number
	}

	if n := slices.Index(taken(me, p.Total, fleet), false); n >= 0 {
		return n
	}

	h := uint64(0)
	for _, b := range []byte(me) {
		h = mix(h ^ uint64(b))
	}

	return int(h % uint64(p.Total))
}

// freeNumber is the number that an instance of the fleet should have: the one it has, unless an
// instance with precedence has the same and another number is free. An instance that serves slots
// of the number has precedence, so a newcomer cannot displace it; else the one with the lower id.
func freeNumber(me string, mine Partition, fleet []Member) int {
	serves := slices.ContainsFunc(fleet, func(m Member) bool { return m.ID == me && m.Serves })
	second := slices.ContainsFunc(fleet, func(m Member) bool {
		if m.ID == me || !m.works() || m.Partition.Total != mine.Total || m.Partition.Number != mine.Number {
			return false
		}

		if m.Serves != serves {
			return m.Serves
		}

		return m.ID < me
	})
	if second {
		if n := slices.Index(taken(me, mine.Total, fleet), false); n >= 0 {
			return n
		}
	}

	return mine.Number
}

// taken marks the numbers of the other live instances.
func taken(me string, total int, fleet []Member) []bool {
	numbers := make([]bool, total)
	for _, m := range fleet {
		if m.ID != me && m.works() && m.Partition.Total == total {
			numbers[m.Partition.Number] = true
		}
	}

	return numbers
}
