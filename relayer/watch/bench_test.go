package watch

import (
	"fmt"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// BenchmarkMatch measures what the slot watch does with the logs of a range read by topics: look up
// each emitter in the book, decode what is ours. A tenth is, as next to other contracts that emit
// the same events.
func BenchmarkMatch(b *testing.B) {
	const logs, ours = 10_000, 10
	abi, err := contract.New("", "")
	require.NoError(b, err)
	for _, escrows := range []int{1000, 1_000_000} {
		b.Run(fmt.Sprintf("escrows=%d", escrows), func(b *testing.B) {
			book := newBook()
			address := func(i int) common.Address { return common.BytesToAddress(crypto.Keccak256(fmt.Append(nil, i))) }
			for i := range escrows {
				book.add(registry.Late{Address: address(i)})
			}

			batch := make([]types.Log, logs)
			for i := range batch {
				batch[i] = types.Log{
					Address: address(escrows + i), Topics: []common.Hash{crypto.Keccak256Hash([]byte("Approved(address)")),
						common.BigToHash(common.Big1)},
					BlockNumber: uint64(i / 20), Index: uint(i % 20), TxHash: common.Hash{1, byte(i), byte(i >> 8)},
				}
				if i%ours == 0 {
					batch[i].Address = address(i % escrows)
				}
			}

			m := NewMetrics(nil, nil)
			b.ReportAllocs()
			for b.Loop() {
				events, err := decode(abi, batch, false, func(l *types.Log) (common.Address, bool) {
					return common.Address{}, book.has(l.Address)
				}, m)
				if err != nil || len(events) != logs/ours {
					b.Fatalf("matched %d of %d logs: %v", len(events), logs, err)
				}
			}

			b.ReportMetric(float64(logs*b.N)/b.Elapsed().Seconds(), "logs/s")
		})
	}
}
