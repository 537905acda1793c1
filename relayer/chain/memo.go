package chain

import (
	"context"
	"errors"
	"sync"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/lru"
	"github.com/ethereum/go-ethereum/core/types"

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
	bytes   int // of all logs
}

type memoKey struct {
	hash   common.Hash
	filter *Filter
}

type memoEntry struct {
	done chan struct{}
	what reading
	err  error
	size int // of the logs in bytes, once they are counted
}

func newMemo() *memo { return &memo{entries: lru.NewBasicLRU[memoKey, *memoEntry](memoSize)} }

// memoSize is enough for two watches that are a few blocks apart. What is remembered has memoBytes at
// most: blocks can be made that have 20 MB of logs each.
const memoSize, memoBytes = 128, 16 << 20

// get returns what is remembered, waits for the reading under way, or reads it.
func (m *memo) get(ctx context.Context, key memoKey, read func() (reading, error)) (reading, error) {
	for {
		m.mu.Lock()
		entry, known := m.entries.Get(key)
		if !known {
			entry = &memoEntry{done: make(chan struct{})}
			if _, oldest, full := m.entries.Add3(key, entry); full {
				m.bytes -= oldest.size
			}

			m.mu.Unlock()
			entry.what, entry.err = read()
			m.settle(key, entry)
			close(entry.done)

			return entry.what, entry.err
		}

		m.mu.Unlock()
		select {
		case <-entry.done:
		case <-ctx.Done():
			return reading{}, context.Cause(ctx)
		}

		if entry.err == nil {
			return entry.what, nil
		}

		if !errors.Is(entry.err, context.Canceled) && !errors.Is(entry.err, context.DeadlineExceeded) {
			return reading{}, entry.err
		}

		// Its reader was called off; that is no answer for this one.
		if ctx.Err() != nil {
			return reading{}, context.Cause(ctx)
		}
	}
}

// settle forgets an entry that is an error, and notes how large another one has turned out to be,
// unless it was dropped meanwhile.
func (m *memo) settle(key memoKey, entry *memoEntry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch there, _ := m.entries.Peek(key); {
	case there != entry:
	case entry.err != nil:
		m.entries.Remove(key)
	default:
		entry.size = endpoint.SizeOf(entry.what.logs)
		for m.bytes += entry.size; m.bytes > memoBytes; { // whoever waits for a dropped one gets it yet
			_, oldest, _ := m.entries.RemoveOldest()
			m.bytes -= oldest.size
		}
	}
}
