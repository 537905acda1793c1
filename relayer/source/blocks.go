package source

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
)

// headersAtOnce bounds how many headers are asked for in one batch.
const headersAtOnce = 32

// blocks yields from..to block by block.
func (s *Source) blocks(ctx context.Context, from, to uint64, f *Filter, other bool, yield func(Batch, error) bool) bool {
	var parent common.Hash
	for from <= to {
		last := min(to, from+headersAtOnce-1)
		chain, err := s.chain(ctx, from, last)
		if err == nil && parent != (common.Hash{}) && chain[0].Parent != parent {
			s.ring.drop()
			err = fmt.Errorf("%w: block %d is not the parent of block %d any more", ErrDisagree, from-1, from)
		}
		if err != nil {
			yield(Batch{}, fmt.Errorf("read the headers of blocks %d to %d: %w", from, last, err))
			return false
		}
		i := 0
		if !pipeline(ctx, rangesInFlight, func() (func(context.Context) (Batch, error), bool) {
			if i == len(chain) {
				return nil, false
			}
			k := chain[i]
			i++
			return func(ctx context.Context) (Batch, error) {
				logs, err := s.logsOf(ctx, k, f, other)
				if err != nil {
					return Batch{}, fmt.Errorf("read block %d: %w", k.Number, err)
				}
				return Batch{From: k.Number, To: k.Number, Parent: k.Parent, Logs: logs, Last: k.Header, Filter: f}, nil
			}, true
		}, yield) {
			return false
		}
		parent, from = chain[len(chain)-1].Hash, last+1
	}
	return true
}

// chain returns the headers of from..to, each the parent of the next, from the ring as far as it has them. They are linked up to the
// newest head: a header that the ring still has from before a reorganisation, with a gap above it, is linked to its old children only.
func (s *Source) chain(ctx context.Context, from, to uint64) ([]known, error) {
	reading := false
	for attempt := 0; attempt < 2; {
		top := max(to, s.ring.newest(to))
		have := s.ring.get(from, top)
		var missing []uint64
		for n := from; n <= top; n++ {
			if _, ok := have[n]; !ok {
				missing = append(missing, n)
			}
		}
		if len(missing) > 0 && !reading { // readers that lack the same headers ask for them once
			select {
			case s.reading <- struct{}{}:
				defer func() { <-s.reading }()
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			reading = true
			continue // what lacked may be there now
		}
		for len(missing) > 0 {
			some := missing[:min(len(missing), headersAtOnce)]
			missing = missing[len(some):]
			err := s.ask(ctx, some[len(some)-1], nil, func(ctx context.Context, e *endpoint) error {
				list, err := e.headers(ctx, some)
				if err != nil {
					return err
				}
				for _, h := range list {
					have[h.Number] = known{Header: h, by: e}
				}
				return nil
			})
			if err != nil {
				return nil, err
			}
		}
		list := make([]known, 0, top-from+1)
		linked := true
		for n := from; n <= top; n++ {
			linked = linked && (n == top || have[n+1].Parent == have[n].Hash)
			list = append(list, have[n])
		}
		if linked {
			s.ring.fill(list)
			return list[:to-from+1], nil
		}
		attempt++
		s.ring.drop() // the chain moved: once more, from one node
	}
	return nil, fmt.Errorf("%w: they are not each other's parents, the chain is moving", ErrDisagree)
}

// logsOf returns the logs of a block. Readers of the same block by the same filter share one request.
func (s *Source) logsOf(ctx context.Context, k known, f *Filter, other bool) ([]types.Log, error) {
	read := func() (logs []types.Log, err error) {
		avoid := (*endpoint)(nil)
		if other {
			avoid = s.served.by(k.Number, k.Number)
		}
		var by *endpoint
		if !other {
			s.hints.note(f)
			if logs, by = s.hinted(k, f); by != nil {
				s.served.note(k.Number, k.Number, by)
				return logs, nil
			}
		}
		err = s.ask(ctx, k.Number, avoid, func(ctx context.Context, e *endpoint) (err error) {
			by = e
			logs, err = e.blockLogs(ctx, k, f)
			return err
		})
		if err == nil && len(logs) == 0 && suspicious(&k.Bloom, f) {
			// The header says that there is something. Another node is asked, which has to show all the block's logs where it has none for us either.
			again := known{Header: k.Header}
			err = s.ask(ctx, k.Number, by, func(ctx context.Context, e *endpoint) (err error) {
				second, err := e.blockLogs(ctx, again, f)
				if err == nil && len(second) == 0 {
					if err = e.whole(ctx, again); classify(err) == tooLarge {
						err = nil // it cannot show them
					}
				}
				if err == nil && len(second) > 0 {
					logs = second
					by.failed(ctx, fmt.Errorf("%w: no logs of block %d, where %s has %d", errInvalid, k.Number, e.name, len(second)))
					by = e
				}
				return err
			})
		}
		switch {
		case err == nil && !other:
			s.served.note(k.Number, k.Number, by)
		case errors.Is(err, ErrBehind):
			s.ring.drop() // nobody has the block: maybe it was replaced
		}
		return logs, err
	}
	if other {
		return read()
	}
	return s.memo.get(ctx, memoKey{k.Hash, f}, read)
}

// blockLogs asks one endpoint for the logs of a block by its hash, and whether it has the block. The connection that announced the block has it.
func (e *endpoint) blockLogs(ctx context.Context, k known, f *Filter) ([]types.Log, error) {
	where := `"blockHash":"` + k.Hash.Hex() + `"`
	e.mu.Lock()
	chunk := e.chunk
	e.mu.Unlock()
	var logs []types.Log
	var err error
	asked := e.s.now()
	if queries := f.parts(chunk); k.by == e && k.via != nil && e.ws.current() == k.via && len(queries) == 1 {
		q := &call{method: logsMethod, params: "[{" + where + queries[0] + "}]"}
		err = e.via(ctx, func(ctx context.Context, calls []*call) (int, int, error) { return e.ws.over(ctx, k.via, calls) }, []*call{q})
		if err == nil {
			err = q.meaning(q.err)
		}
		if err == nil {
			logs, err = parseLogs(q.result)
		}
	} else {
		var head *call
		head, logs, err = e.logs(ctx, func() *call { return byHash(k.Hash) }, where, f)
		if err == nil {
			var h Header
			if h, err = head.block(k.Number); err == nil && h.Hash != k.Hash {
				err = fmt.Errorf("%w: block %s instead of %s", errInvalid, h.Hash, k.Hash)
			}
		}
	}
	if err != nil {
		return nil, err
	}
	if err := judged(logs, k, f); err != nil {
		return nil, err
	}
	if len(logs) > 0 {
		e.honest(asked)
	}
	return logs, nil
}

// judged tests a block's logs against its header and the filter, and fills in their time.
func judged(logs []types.Log, k known, f *Filter) error {
	for i := range logs {
		if l := &logs[i]; l.BlockHash != k.Hash {
			return fmt.Errorf("%w: log %d is of block %s instead of %s", errInvalid, l.Index, l.BlockHash, k.Hash)
		}
	}
	if err := tested(logs, k.Number, k.Number, f); err != nil {
		return err
	}
	for i := range logs {
		l := &logs[i]
		if k.Bloom != (types.Bloom{}) && !inBloom(&k.Bloom, l) { // chains without bloom filters give zeros
			return fmt.Errorf("%w: log %d of block %d is not in the block's bloom filter", errInvalid, l.Index, k.Number)
		}
		l.BlockTimestamp = k.Time
	}
	return nil
}

// whole tests that an endpoint gives all the logs of a block: together they have to account for every bit of the block's bloom filter. It
// says nothing on chains without bloom filters.
func (e *endpoint) whole(ctx context.Context, k known) error {
	any := &Filter{}
	any.prepare()
	logs, err := e.blockLogs(ctx, k, any)
	if err != nil {
		return err
	}
	var all types.Bloom
	for i := range logs {
		all.Add(logs[i].Address.Bytes())
		for _, t := range logs[i].Topics {
			all.Add(t.Bytes())
		}
	}
	for i, bits := range k.Bloom {
		if bits&^all[i] != 0 {
			return fmt.Errorf("%w: block %d has logs in its bloom filter that are left out", errInvalid, k.Number)
		}
	}
	return nil
}

func inBloom(b *types.Bloom, l *types.Log) bool {
	if !b.Test(l.Address.Bytes()) {
		return false
	}
	for _, t := range l.Topics {
		if !b.Test(t.Bytes()) {
			return false
		}
	}
	return true
}

// suspicious says whether a block without logs contradicts its bloom filter, which has no false negatives. On a busy chain the filter is so
// full that it matches anything; then it says nothing.
func suspicious(b *types.Bloom, f *Filter) bool {
	set := 0
	for _, x := range b {
		set += bits.OnesCount8(x)
	}
	full := float64(set) / types.BloomBitLength
	one := full * full * full // an item has three bits
	topic := min(1, one*float64(len(f.Topics)))
	if len(f.Topics) == 0 {
		topic = 1
	}
	emitter := 1.0
	if f.Addresses != nil {
		emitter = min(1, one*float64(len(f.Addresses)))
	}
	if topic*emitter > 0.05 {
		return false
	}
	return mayHold(b, f)
}

// mayHold says whether a bloom filter allows for logs that match.
func mayHold(b *types.Bloom, f *Filter) bool {
	match := len(f.Topics) == 0
	for _, t := range f.Topics {
		match = match || b.Test(t.Bytes())
	}
	if !match || f.Addresses == nil {
		return match
	}
	for _, a := range f.Addresses {
		if b.Test(a.Bytes()) {
			return true
		}
	}
	return false
}

// memo shares the logs of the newest blocks among readers.
type memo struct {
	mu      sync.Mutex
	entries map[memoKey]*memoEntry
	order   []memoKey // oldest first
}

type memoKey struct {
	hash   common.Hash
	filter *Filter
}

type memoEntry struct {
	done chan struct{}
	logs []types.Log
	err  error
}

// memoSize is enough for two watches that are a few blocks apart.
const memoSize = 128

func (m *memo) init() { m.entries = map[memoKey]*memoEntry{} }

// get returns what is remembered, waits for whoever is reading it, or reads it.
func (m *memo) get(ctx context.Context, key memoKey, read func() ([]types.Log, error)) ([]types.Log, error) {
	for {
		m.mu.Lock()
		entry := m.entries[key]
		if entry == nil {
			entry = &memoEntry{done: make(chan struct{})}
			m.entries[key] = entry
			m.order = append(m.order, key)
			if len(m.order) > memoSize {
				delete(m.entries, m.order[0])
				m.order = m.order[1:]
			}
			m.mu.Unlock()
			entry.logs, entry.err = read()
			if entry.err != nil {
				m.forget(key, entry)
			}
			close(entry.done)
			return entry.logs, entry.err
		}
		m.mu.Unlock()
		select {
		case <-entry.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if entry.err == nil {
			return entry.logs, nil
		}
		if !errors.Is(entry.err, context.Canceled) && !errors.Is(entry.err, context.DeadlineExceeded) {
			return nil, entry.err
		}
		// Its reader was called off; that is no answer for this one.
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
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
