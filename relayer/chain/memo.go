package chain

import (
	"context"
	"sync"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/lru"
	"github.com/ethereum/go-ethereum/core/types"
	"golang.org/x/sync/semaphore"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
)

// reading is what an endpoint said of a block.
type reading struct {
	logs   []types.Log
	by     *endpoint.Node
	proved bool
}

// memo shares the logs of the newest blocks among readers.
type memo struct {
	mu      sync.Mutex
	entries lru.BasicLRU[memoKey, *memoEntry]
}

type memoKey struct {
	hash   common.Hash
	filter *Filter
}

// memoEntry is one reading, by whoever has the turn.
type memoEntry struct {
	turn *semaphore.Weighted
	what *reading // nil: it was not read yet
}

func newMemo() *memo { return &memo{entries: lru.NewBasicLRU[memoKey, *memoEntry](memoSize)} }

// memoSize is enough for two watches that are a few blocks apart. A reading of more than memoBytes is shared by those
// who wait for it, and not remembered: blocks can be made that have 20 MB of logs each.
const memoSize, memoBytes = 128, 128 << 10

// get returns what is remembered, or reads it. Others wait meanwhile, and read it themselves if that fails.
func (m *memo) get(ctx context.Context, key memoKey, read func() (reading, error)) (reading, error) {
	m.mu.Lock()
	entry, known := m.entries.Get(key)
	if !known {
		entry = &memoEntry{turn: semaphore.NewWeighted(1)}
		m.entries.Add(key, entry)
	}

	m.mu.Unlock()
	if entry.turn.Acquire(ctx, 1) != nil {
		return reading{}, context.Cause(ctx)
	}

	defer entry.turn.Release(1)

	if entry.what == nil {
		what, err := read()
		if err != nil {
			return reading{}, err
		}

		if entry.what = &what; endpoint.SizeOf(what.logs) > memoBytes {
			m.mu.Lock()
			m.entries.Remove(key)
			m.mu.Unlock()
		}
	}

	return *entry.what, nil
}
