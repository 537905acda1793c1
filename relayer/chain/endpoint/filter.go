package endpoint

import (
	"encoding/json"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
)

// Filter says which logs are wanted. It must not be changed after its first use, and its address is
// what results are remembered by: share a Filter to share its requests.
type Filter struct {
	Topics    []common.Hash    // topic0 is one of these; nil: any
	Addresses []common.Address // nil: any; empty: none

	once     sync.Once
	emitters map[common.Address]struct{}
	mu       sync.Mutex
	chunk    int
	queries  []string // the fixed part of eth_getLogs' parameter, one for every chunk of addresses
}

// Matches reports whether a log is one that was asked for.
func (f *Filter) Matches(l *types.Log) bool {
	topic := len(f.Topics) == 0 || len(l.Topics) > 0 && slices.Contains(f.Topics, l.Topics[0])
	return topic && f.Names(l.Address)
}

// orOneStray keeps the logs that match, and the first that does not: it shows that the node is broken,
// and more of them would only take memory.
func (f *Filter) orOneStray() func(*types.Log) bool {
	var strays atomic.Bool
	return func(l *types.Log) bool { return f.Matches(l) || !strays.Swap(true) }
}

// Names reports whether the logs of a contract are asked for, by the addresses alone.
func (f *Filter) Names(a common.Address) bool {
	f.once.Do(func() {
		f.emitters = make(map[common.Address]struct{}, len(f.Addresses))
		for _, a := range f.Addresses {
			f.emitters[a] = struct{}{}
		}
	})
	_, named := f.emitters[a]

	return named || f.Addresses == nil
}

// Telling reports whether a bloom filter says something of its block: some chains give one without any
// bits for every block, and some one with all of them.
func Telling(b *types.Bloom) bool {
	set := 0
	for _, x := range b {
		set += bits.OnesCount8(x)
	}

	return set > 0 && set < types.BloomBitLength
}

// AllowedBy reports whether a block's bloom filter allows for logs that match. Bloom filters have no false negatives.
func (f *Filter) AllowedBy(b *types.Bloom) bool {
	match := len(f.Topics) == 0 || slices.ContainsFunc(f.Topics, func(t common.Hash) bool { return b.Test(t.Bytes()) })
	if !match || f.Addresses == nil {
		return match
	}

	return slices.ContainsFunc(f.Addresses, func(a common.Address) bool { return b.Test(a.Bytes()) })
}

// parts are the queries that together ask for everything, at most chunk addresses each.
func (f *Filter) parts(chunk int) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.queries != nil && f.chunk == chunk {
		return f.queries
	}

	topics := ""
	if len(f.Topics) > 0 {
		topics = `,"topics":[` + quoted(f.Topics) + `]`
	}

	queries := []string{}
	if f.Addresses == nil {
		queries = append(queries, topics)
	}

	for some := range slices.Chunk(f.Addresses, chunk) {
		queries = append(queries, topics+`,"address":`+quoted(some))
	}

	f.chunk, f.queries = chunk, queries

	return queries
}

func quoted(list any) string {
	b, _ := json.Marshal(list) // of hashes or addresses: it cannot fail
	return string(b)
}
