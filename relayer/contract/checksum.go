package contract

import (
	"sync/atomic"

	"github.com/ethereum/go-ethereum/common"
)

// checksums caches addresses in mixed case: the case follows from a hash that takes as long as the
// rest of decoding, and the same few thousand parties recur. Each cell holds the last address that
// hashed to it, in 128 bytes at most.
var checksums [4096]atomic.Pointer[checksummed]

type checksummed struct {
	address common.Address
	text    [42]byte
}

// AppendChecksum appends an address in EIP-55 mixed case, 0x first. It may be called concurrently.
func AppendChecksum(out []byte, a common.Address) []byte {
	// The last bytes of an address come from a hash; those of the few hand-made addresses differ
	// too.
	cell := &checksums[(uint(a[18])<<8|uint(a[19]))%uint(len(checksums))]
	c := cell.Load()
	if c == nil || c.address != a {
		c = &checksummed{address: a, text: [42]byte([]byte(a.Hex()))}
		cell.Store(c)
	}

	return append(out, c.text[:]...)
}

func appendAddress(out []byte, a common.Address) []byte {
	return append(AppendChecksum(append(out, '"'), a), '"')
}
