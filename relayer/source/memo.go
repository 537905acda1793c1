package source

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/fusion-prime/escrow-relayer/relayer/node"
)

// reading is what an endpoint said of a block.
type reading struct {
	logs []types.Log
	by   *node.Node
}

// memo shares the logs of the newest blocks among readers.
type memo struct {
	mu      sync.Mutex
	entries map[memoKey]*memoEntry
	order   []memoKey // oldest first
	bytes   int       // of all logs
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

func newMemo() *memo { return &memo{entries: map[memoKey]*memoEntry{}} }

// memoSize is enough for two watches that are a few blocks apart. What is remembered has memoBytes at
// most: blocks can be made that have 20 MB of logs each.
const memoSize, memoBytes = 128, 16 << 20

// get returns what is remembered, waits for whoever is reading it, or reads it.
func (m *memo) get(ctx context.Context, key memoKey, read func() (reading, error)) (reading, error) {
	for {
		m.mu.Lock()
		entry := m.entries[key]
		if entry == nil {
			entry = &memoEntry{done: make(chan struct{})}
			m.entries[key] = entry
			m.order = append(m.order, key)
			m.trim()
			m.mu.Unlock()
			entry.what, entry.err = read()
			if entry.err != nil {
				m.forget(key, entry)
			} else {
				m.count(key, entry)
			}

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

// count takes in how large an entry has turned out to be, unless it was dropped meanwhile.
func (m *memo) count(key memoKey, entry *memoEntry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.entries[key] != entry {
		return
	}

	entry.size = node.SizeOf(entry.what.logs)
	m.bytes += entry.size
	m.trim()
}

// trim drops the oldest entries while there is too much. Whoever waits for one gets it yet. Held: mu.
func (m *memo) trim() {
	for len(m.order) > memoSize || m.bytes > memoBytes {
		m.bytes -= m.entries[m.order[0]].size
		delete(m.entries, m.order[0])
		m.order = slices.Delete(m.order, 0, 1)
	}
}

func (m *memo) forget(key memoKey, entry *memoEntry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.entries[key] != entry {
		return
	}

	delete(m.entries, key)
	for i, k := range m.order {
		if k == key {
			m.order = append(m.order[:i:i], m.order[i+1:]...)
			break
		}
	}
}
