package partition

import (
	"fmt"
	"strconv"
)

// Slots is the number of slots that addresses hash to: the least number that 1 to 10 all divide.
// For every N that divides it, `slot mod N` equals `int(address, 16) mod N`.
const Slots = 2520

// Strategy decides which slots a partition prefers.
type Strategy string

const (
	// Modulo prefers the slots with slot mod Total == Number. A change of Total moves most slots.
	Modulo Strategy = "modulo"
	// Consistent prefers by jump consistent hash: a change from N to N+1 moves about 1/(N+1) of the
	// slots, all of them to the new partition (Lamping and Veach, "A Fast, Minimal Memory, Consistent
	// Hash Algorithm").
	Consistent Strategy = "consistent"
)

// Slot is the slot of an address: the 160-bit number modulo Slots.
func Slot(address [20]byte) int16 {
	r := 0
	for _, b := range address {
		r = (r<<8 | int(b)) % Slots
	}

	return int16(r)
}

// Partition is the share of an instance: the slots that it prefers. The zero value prefers nothing.
type Partition struct {
	Number, Total int
	Strategy      Strategy
}

// Validate reports a partition that cannot exist.
func (p Partition) Validate() error {
	switch {
	case p.Total < 1 || p.Total > Slots:
		return fmt.Errorf("total of %d partitions: must be 1 to %d", p.Total, Slots)
	case p.Number < 0 || p.Number >= p.Total:
		return fmt.Errorf("partition %d of %d: must be 0 to %d", p.Number, p.Total, p.Total-1)
	case p.Strategy != Modulo && p.Strategy != Consistent:
		return fmt.Errorf("strategy %q: must be %s or %s", p.Strategy, Modulo, Consistent)
	}

	return nil
}

func (p Partition) String() string {
	return strconv.Itoa(p.Number) + "/" + strconv.Itoa(p.Total) + " " + string(p.Strategy)
}

// Prefers reports whether the slot belongs to this partition.
func (p Partition) Prefers(slot int16) bool {
	return p.Total > 0 && Of(slot, p.Total, p.Strategy) == p.Number
}

// Preferred lists the slots of this partition in ascending order.
func (p Partition) Preferred() []int16 {
	var slots []int16
	for s := range int16(Slots) {
		if p.Prefers(s) {
			slots = append(slots, s)
		}
	}

	return slots
}

// Of is the partition, 0 to total-1, that a slot belongs to.
func Of(slot int16, total int, s Strategy) int {
	if s == Consistent {
		return jump(mix(uint64(slot)), total)
	}

	return int(slot) % total
}

// Moves counts the slots that change their partition when the total changes.
func Moves(from, to int, s Strategy) (moved int) {
	for slot := range int16(Slots) {
		if Of(slot, from, s) != Of(slot, to, s) {
			moved++
		}
	}

	return moved
}

// mix spreads small consecutive numbers over 64 bits (the finalizer of SplitMix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb

	return x ^ x>>31
}

// jump is jump consistent hash: the bucket, 0 to n-1, of a key.
func jump(key uint64, n int) int {
	b, j := int64(-1), int64(0)
	for j < int64(n) {
		b = j
		key = key*2862933555777941757 + 1
		j = int64(float64(b+1) * (float64(int64(1)<<31) / float64(key>>33+1)))
	}

	return int(b)
}
