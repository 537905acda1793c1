package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
)

const (
	// rangesInFlight hides the latency of a provider; more would only meet its rate limit.
	rangesInFlight = 4
	// callsPerBatch keeps batches below what providers take, 100 at Infura and most others.
	callsPerBatch = 50
)

// Read reads the logs of blocks from..to in order: by range up to View.Final, several ranges in flight, and above it block by block, by hash, each the
// parent of the next. It ends after the first error; what was yielded before stands.
func (s *Source) Read(ctx context.Context, from, to uint64, f *Filter) iter.Seq2[Batch, error] {
	return s.read(ctx, from, to, f, false)
}

// ReadOther is Read from another endpoint than last read the range, where there is one.
func (s *Source) ReadOther(ctx context.Context, from, to uint64, f *Filter) iter.Seq2[Batch, error] {
	return s.read(ctx, from, to, f, true)
}

func (s *Source) read(ctx context.Context, from, to uint64, f *Filter, other bool) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		f.prepare()
		final := s.View().Final
		if from <= to && from <= final {
			if !s.ranges(ctx, from, min(to, final), f, other, yield) {
				return
			}
			from = min(to, final) + 1
		}
		if from <= to {
			s.blocks(ctx, from, to, f, other, yield)
		}
	}
}

// ranges yields from..to in ranges. It says whether the reader wants more.
func (s *Source) ranges(ctx context.Context, from, to uint64, f *Filter, other bool, yield func(Batch, error) bool) bool {
	return pipeline(ctx, rangesInFlight, func() (func(context.Context) (Batch, error), bool) {
		if from > to {
			return nil, false
		}
		first := from
		avoid := (*endpoint)(nil)
		if other {
			avoid = s.served.by(first, first)
		}
		last := first + min(to-first, s.plan(first, avoid)-1)
		from = last + 1
		return func(ctx context.Context) (b Batch, err error) {
			err = s.ask(ctx, last, avoid, func(ctx context.Context, e *endpoint) (err error) {
				if b, err = e.readRange(ctx, first, last, f); err == nil && !other {
					s.served.note(first, last, e)
				}
				return err
			})
			if err != nil {
				return b, fmt.Errorf("read blocks %d to %d: %w", first, last, err)
			}
			return b, nil
		}, true
	}, yield)
}

// plan is how many blocks to ask for: as many as the endpoint that is likely to be asked answers for.
func (s *Source) plan(n uint64, avoid *endpoint) uint64 {
	list, _ := s.order(n, avoid)
	if len(list) == 0 {
		list = s.endpoints
	}
	e := list[0]
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.span.size
}

// pipeline does jobs with so many in flight and yields their results in order, up to the first error. It says whether the reader wants
// more, and leaves no goroutine behind.
func pipeline(ctx context.Context, width int, next func() (func(context.Context) (Batch, error), bool), yield func(Batch, error) bool) bool {
	type result struct {
		b   Batch
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var flight []chan result
	for {
		for len(flight) < width {
			job, ok := next()
			if !ok {
				break
			}
			done := make(chan result, 1)
			wg.Go(func() {
				b, err := job(ctx)
				done <- result{b, err}
			})
			flight = append(flight, done)
		}
		if len(flight) == 0 {
			return true
		}
		r := <-flight[0]
		flight = flight[1:]
		if r.err != nil {
			yield(Batch{}, r.err)
			return false
		}
		if !yield(r.b, nil) {
			return false
		}
	}
}

// readRange reads a range from one endpoint, in as many parts as the endpoint wants.
func (e *endpoint) readRange(ctx context.Context, from, to uint64, f *Filter) (Batch, error) {
	whole := Batch{From: from, To: to, Filter: f, Logs: []types.Log{}}
	for from <= to {
		e.mu.Lock()
		size := min(to-from+1, e.span.size)
		e.mu.Unlock()
		b, err := e.rangeLogs(ctx, from, from+size-1, f)
		if classify(err) == tooLarge && size > 1 {
			e.mu.Lock()
			e.span.refuse(size)
			e.mu.Unlock()
			continue
		}
		if classify(err) == timedOut && ctx.Err() == nil {
			e.mu.Lock()
			e.span.size = max(e.span.size/2, 1) // maybe it was too much
			e.mu.Unlock()
		}
		if err != nil {
			return Batch{}, err
		}
		e.mu.Lock()
		e.span.accepted(size, len(b.Logs))
		e.mu.Unlock()
		if len(whole.Logs) == 0 {
			whole.Logs = b.Logs
		} else {
			whole.Logs = append(whole.Logs, b.Logs...)
		}
		whole.Last = b.Last
		from += size
	}
	return whole, nil
}

// rangeLogs reads one range in one piece.
func (e *endpoint) rangeLogs(ctx context.Context, from, to uint64, f *Filter) (Batch, error) {
	b := Batch{From: from, To: to, Filter: f}
	where := `"fromBlock":"` + quantity(from) + `","toBlock":"` + quantity(to) + `"`
	asked := e.s.now()
	head, logs, err := e.logs(ctx, func() *call { return byNumber(to) }, where, f)
	if err != nil {
		return b, err
	}
	if b.Last, err = head.block(to); err != nil {
		return b, err
	}
	if err := tested(logs, from, to, f); err != nil {
		return b, err
	}
	b.Logs = logs
	if err := e.times(ctx, &b); err != nil {
		return b, err
	}
	if len(logs) > 0 {
		e.honest(asked)
	}
	return b, nil
}

// logs asks for the logs of all of a filter's parts, and with every batch for a header. head nil: for none.
func (e *endpoint) logs(ctx context.Context, head func() *call, where string, f *Filter) (first *call, logs []types.Log, err error) {
	for {
		e.mu.Lock()
		chunk := e.chunk
		e.mu.Unlock()
		first, logs, err = e.parts(ctx, head, where, f.parts(chunk))
		if classify(err) != tooManyAddrs || chunk == 1 {
			return first, logs, err
		}
		e.mu.Lock()
		e.chunk = min(e.chunk, max(chunk/2, 1))
		e.mu.Unlock()
	}
}

func (e *endpoint) parts(ctx context.Context, head func() *call, where string, queries []string) (first *call, logs []types.Log, err error) {
	logs = []types.Log{}
	if len(queries) == 0 { // no address is asked for: the header still tells whether the node is there
		first = head()
		return first, logs, e.do(ctx, first)
	}
	for some := range slices.Chunk(queries, callsPerBatch) {
		calls := make([]*call, 0, len(some)+1)
		for _, q := range some {
			calls = append(calls, &call{method: logsMethod, params: "[{" + where + q + "}]"})
		}
		asked := head()
		calls = append(calls, asked)
		if err := e.do(ctx, calls...); err != nil {
			return nil, nil, err
		}
		// Without the last header the logs mean nothing.
		if asked.err == nil && string(asked.result) == "null" {
			return nil, nil, ErrBehind
		}
		for _, c := range calls[:len(some)] {
			if c.err != nil {
				return nil, nil, c.meaning(c.err)
			}
			got, err := parseLogs(c.result)
			if err != nil {
				return nil, nil, err
			}
			if len(logs) == 0 {
				logs = got
			} else {
				logs = append(logs, got...)
			}
		}
		if first == nil {
			first = asked
		} else if asked.err == nil && first.err == nil && !sameBlock(first, asked) {
			return nil, nil, fmt.Errorf("%w: it changed between two batches", ErrDisagree)
		}
	}
	return first, logs, nil
}

func sameBlock(a, b *call) bool {
	var x, y Header
	return a.decode(&x) == nil && b.decode(&y) == nil && x.Hash == y.Hash
}

// tested sorts logs and tests them against the question.
func tested(logs []types.Log, from, to uint64, f *Filter) error {
	order := func(a, b types.Log) int {
		return cmp.Or(cmp.Compare(a.BlockNumber, b.BlockNumber), cmp.Compare(a.Index, b.Index))
	}
	if !slices.IsSortedFunc(logs, order) { // parts of a filter, or a provider that asked several nodes itself
		slices.SortFunc(logs, order)
	}
	for i := range logs {
		l := &logs[i]
		var why string
		switch {
		case l.Removed:
			why = "was removed"
		case l.BlockNumber < from || l.BlockNumber > to:
			why = fmt.Sprintf("is not in blocks %d to %d", from, to)
		case !f.matches(l):
			why = "does not match the filter"
		case l.BlockHash == (common.Hash{}) || l.TxHash == (common.Hash{}):
			why = "is in no block yet"
		case i > 0 && logs[i-1].BlockNumber == l.BlockNumber && logs[i-1].Index == l.Index:
			why = "comes twice"
		case i > 0 && logs[i-1].BlockNumber == l.BlockNumber && logs[i-1].BlockHash != l.BlockHash:
			return fmt.Errorf("%w: block %d has logs of two hashes", ErrDisagree, l.BlockNumber)
		default:
			continue
		}
		return fmt.Errorf("%w: log %d of block %d %s", errInvalid, l.Index, l.BlockNumber, why)
	}
	return nil
}

// times fills in the time of each log's block, and tests that logs and headers tell of the same blocks. Older nodes do not give it with
// the logs.
func (e *endpoint) times(ctx context.Context, b *Batch) error {
	var missing []uint64
	for i := range b.Logs {
		l := &b.Logs[i]
		if l.BlockNumber == b.Last.Number {
			if l.BlockHash != b.Last.Hash {
				return fmt.Errorf("%w: block %d has the hash %s, its log says %s", ErrDisagree, l.BlockNumber, b.Last.Hash, l.BlockHash)
			}
			l.BlockTimestamp = b.Last.Time
		}
		if l.BlockTimestamp == 0 && (len(missing) == 0 || missing[len(missing)-1] != l.BlockNumber) {
			missing = append(missing, l.BlockNumber)
		}
	}
	headers := make(map[uint64]Header, len(missing))
	for some := range slices.Chunk(missing, callsPerBatch) {
		list, err := e.headers(ctx, some)
		if err != nil {
			return err
		}
		for _, h := range list {
			headers[h.Number] = h
		}
	}
	for i := range b.Logs {
		l := &b.Logs[i]
		if l.BlockTimestamp != 0 {
			continue
		}
		h := headers[l.BlockNumber]
		if h.Hash != l.BlockHash {
			return fmt.Errorf("%w: block %d has the hash %s, its log says %s", ErrDisagree, l.BlockNumber, h.Hash, l.BlockHash)
		}
		l.BlockTimestamp = h.Time
	}
	return nil
}

// headers asks for blocks by their numbers, in one batch.
func (e *endpoint) headers(ctx context.Context, numbers []uint64) ([]Header, error) {
	calls := make([]*call, len(numbers))
	for i, n := range numbers {
		calls[i] = byNumber(n)
	}
	if err := e.do(ctx, calls...); err != nil {
		return nil, err
	}
	list := make([]Header, len(numbers))
	var errs []error
	for i, n := range numbers {
		var err error
		if list[i], err = calls[i].block(n); err != nil {
			errs = append(errs, err)
			break
		}
	}
	return list, errors.Join(errs...)
}
