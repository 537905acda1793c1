package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// Batch is what the chain has for a filter in a range of blocks. Logs may be shared with other
// readers: they are to be read only.
type Batch struct {
	From, To uint64
	ByHash   bool        // one block, which was asked for by its hash
	Parent   common.Hash // of block From
	Logs     []types.Log // in the chain's order; BlockTimestamp is filled
	Last     rpc.Header  // of block To
	Filter   *Filter
	By       *Node // who was asked
}

// ReadRange reads the first blocks of a range of final blocks: as many as the node is asked for at once.
func (n *Node) ReadRange(ctx context.Context, from, to uint64, f *Filter) (b Batch, err error) {
	if err := n.refuses(from, f); err != nil {
		return b, err
	}

	for err = errFewer; errors.Is(err, errFewer); {
		b, err = n.readPart(ctx, from, to, f)
	}

	return b, err
}

// readPart is one try. Of ranges that are larger than any that was answered, one is asked for at a time: else all in
// flight would be refused.
func (n *Node) readPart(ctx context.Context, from, to uint64, f *Filter) (Batch, error) {
	size := min(to-from+1, n.Span(f))
	if !n.span.of(f).proven(float64(size)) {
		if n.span.larger.Acquire(ctx, 1) != nil {
			return Batch{}, context.Cause(ctx)
		}

		defer n.span.larger.Release(1)

		size = min(size, n.Span(f))
	}

	b, bytes, err := n.rangeLogs(ctx, from, from+size-1, f)
	switch {
	case err == nil:
		n.gives.anyLogs.gave(0)
		n.span.answered(f, size, fullness(len(b.Logs), bytes, int(n.cfg.MaxBytes/8)))
	case ctx.Err() == nil:
		err = n.refusal(ctx, err, from, size, f)
	}

	return b, err
}

// Follows reports whether the batch continues the chain behind a block with a hash; zero: whatever block it is.
func (b *Batch) Follows(block common.Hash) bool { return block == (common.Hash{}) || b.Parent == block }

// Never reports whether such a reading cannot be had of the node, whenever it is asked: it has refused all logs, logs
// of contracts that are not named, or so old a block, for over a minute. A shorter time says nothing of the next one.
func (n *Node) Never(from uint64, f *Filter) bool {
	return n.gives.oldHeaders.forGood(from) || n.gives.oldLogs.forGood(from) || n.gives.anyLogs.forGood(0) ||
		f.Addresses == nil && n.gives.unnamed.forGood(0)
}

// errFewer means that the node is to be asked at once for fewer blocks.
var errFewer = errors.New("refused, and fewer blocks are worth a try")

// refusal learns from the refusal of a range, and says what the error is.
func (n *Node) refusal(ctx context.Context, err error, from, size uint64, f *Filter) error {
	kind := rpc.Classify(err)
	_, isSaid := errors.AsType[*logsRefused](err)
	if isSaid && !rpc.Shrinks(kind) && kind != rpc.RateLimited && size > 1 {
		switch alone := n.asksFor(ctx, from, from, f.Addresses...); {
		case alone == nil:
			kind = rpc.Failed // whatever its words are, it is the size
		case rpc.Classify(alone) != kind:
			return err
		}
	}

	rate := kind == rpc.RateLimited && !errors.Is(err, errPaused)
	switch {
	case (rate || rpc.Vague(err) && !notSent(err)) && n.span.of(f).spares(float64(size)):
		// it has answered for as many: once more, and it is the range
	case rate && size > 1: // what is more than is let through at once would be refused for ever
		n.span.refused(f, size)
	case kind == rpc.Pruned:
		if n.gives.oldLogs.note(from) {
			err = fmt.Errorf("%w: %w", ErrNoHistory, err)
		}
	case kind == rpc.Unsupported && isSaid, errors.Is(err, rpc.ErrGarbled), rpc.Shrinks(kind) && !notSent(err):
		if size == 1 {
			n.batches.spares(2) // it may be what else was in the batch
		}

		fewer := n.span.refused(f, size)
		if fewer && (isSaid || kind == rpc.RangeTooLarge) {
			return errFewer
		}

		if isSaid && !fewer && n.gives.anyLogs.note(0) && n.answersNamed(ctx, from, f) {
			return fmt.Errorf("%w: %w", ErrAddressRequired, err)
		}
	}

	return err
}

// answersNamed reports whether a node that refuses the logs of any block gives those of a contract that
// is named, whatever its words for that were.
func (n *Node) answersNamed(ctx context.Context, block uint64, f *Filter) bool {
	const sure = 4 // a node that is only busy, or limits its rate, refuses one and not the other by chance
	for range sure {
		if f.Addresses != nil || n.asksFor(ctx, block, block, common.Address{1}) != nil ||
			n.asksFor(ctx, block, block) == nil {
			return false
		}
	}

	n.gives.unnamed.note(0)

	return true
}

// notSent reports whether a request failed before it reached the node: its size cannot have been the reason.
func notSent(err error) bool {
	op, is := errors.AsType[*net.OpError](err)
	return is && op.Op == "dial"
}

// logsRefused is a node's refusal of an eth_getLogs in so many words, not of a connection.
type logsRefused struct{ err error }

func (e *logsRefused) Error() string { return e.err.Error() }
func (e *logsRefused) Unwrap() error { return e.err }

// rangeLogs reads one range in one piece, and says how many bytes its logs had.
func (n *Node) rangeLogs(ctx context.Context, from, to uint64, f *Filter) (Batch, int, error) {
	b := Batch{From: from, To: to, Filter: f, By: n}
	heads := []*rpc.Call{rpc.ByNumber(to)}
	if from != to {
		heads = append(heads, rpc.ByNumber(from))
	}

	asked := n.cfg.Now()
	a, err := n.logs(ctx, query{where: blockRange(from, to), filter: f, heads: heads, block: from == to,
		answered: n.span.of(f).proven(float64(to - from + 1))})
	if err != nil {
		return b, 0, err
	}

	if b.Last, err = a.head.Header(to); err != nil {
		return b, 0, err
	}

	if err := validateLogs(a.logs, from, to, f); err != nil {
		return b, 0, err
	}

	first, err := a.first.Header(from)
	if err != nil {
		return b, 0, err
	}

	b.Parent, b.Logs = first.Parent, a.logs
	if err := n.fillTimes(ctx, &b); err != nil {
		return b, 0, err
	}

	n.gives.oldHeaders.gave(from)
	silent := n.Claim().Head.Number // up to this block it has given no logs
	if len(a.logs) > 0 {
		n.proves(asked)
		n.gives.oldLogs.gave(a.logs[0].BlockNumber)
		if silent = a.logs[0].BlockNumber - 1; !n.gives.oldLogs.doubted() {
			return b, a.bytes, nil
		}
	}

	return b, a.bytes, n.indexed(ctx, from, silent)
}

// logsOf asks for the logs of one block by its hash, and validates them against the header. Where there are none,
// they are asked for again with the header in the same batch: the machine that answered may not have the block.
func (n *Node) logsOf(ctx context.Context, h rpc.Header, f *Filter) ([]types.Log, error) {
	a, err := n.readBlock(ctx, h, query{filter: f})
	if err == nil && len(a.logs) == 0 {
		a, err = n.readBlock(ctx, h, query{filter: f, heads: []*rpc.Call{rpc.ByHash(h.Hash)}})
	}

	return a.logs, err
}

func (n *Node) readBlock(ctx context.Context, h rpc.Header, q query) (a logsAnswer, err error) {
	if err := n.refuses(h.Number, q.filter); err != nil {
		return a, err
	}

	asked := n.cfg.Now()
	q.where, q.block, q.answered = n.where(h), true, n.gives.anyLogs.given(0)
	if a, err = n.logs(ctx, q); err != nil {
		_, said := errors.AsType[*logsRefused](err)
		if said && strings.Contains(strings.ToLower(err.Error()), "blockhash") {
			n.gives.byHash.note(0)
			return a, err
		}

		if kind := rpc.Classify(err); said && (kind == rpc.Failed || kind == rpc.Unsupported) {
			n.gives.anyLogs.note(0)
		}

		return a, err
	}

	n.gives.anyLogs.gave(0)

	if q.heads != nil {
		if found, err := a.head.Header(h.Number); err != nil {
			return a, err
		} else if found.Hash != h.Hash {
			return a, fmt.Errorf("%w: block %s instead of %s", rpc.ErrInvalid, found.Hash, h.Hash)
		}
	}

	if err := validateBlock(a.logs, h, q.filter); err != nil {
		return a, err
	}

	if a.all > 0 {
		n.proves(asked)
		n.gives.oldLogs.gave(h.Number)
	}

	return a, nil
}

// ofBlock says which of all logs of a block are looked at: those that match, and those of another block,
// which are found out then.
func ofBlock(hash common.Hash, f *Filter) func(*types.Log) bool {
	return func(l *types.Log) bool { return l.BlockHash != hash || f.Matches(l) }
}

// Header asks for the block at a height.
func (n *Node) Header(ctx context.Context, number uint64) (rpc.Header, error) {
	list, err := n.Headers(ctx, []uint64{number})
	if err != nil {
		return rpc.Header{}, err
	}

	return list[0], nil
}

// Parent asks for the block before another one, by its hash.
func (n *Node) Parent(ctx context.Context, child rpc.Header) (h rpc.Header, err error) {
	q := rpc.ByHash(child.Parent)
	if err := n.Do(ctx, q); err != nil {
		return h, err
	}

	if err := q.Decode(&h); err != nil {
		return h, rpc.AsBehind(err)
	}

	if h.Hash != child.Parent || h.Number+1 != child.Number {
		return h, fmt.Errorf("%w: block %d (%s) instead of the one before block %d (%s)", rpc.ErrInvalid, h.Number, h.Hash,
			child.Number, child.Parent)
	}

	n.gives.oldHeaders.gave(h.Number)

	return h, nil
}

// ShowsParent makes sure that the node has the block before one that it has told of, and has not invented that. Of
// several machines behind its URL one may be behind.
func (n *Node) ShowsParent(ctx context.Context, h rpc.Header) error {
	const tries = 4
	for range tries {
		_, err := n.Parent(ctx, h)
		switch kind := rpc.Classify(err); {
		case h.Number == 0 || err == nil:
			return nil
		case kind != rpc.Behind && kind != rpc.Invalid:
			return err
		}
	}

	return fmt.Errorf("%w: it told of block %d and does not show the block before it", rpc.ErrInvalid, h.Number)
}

// Headers asks for blocks by their numbers. With an error it returns those that it got.
func (n *Node) Headers(ctx context.Context, numbers []uint64) ([]rpc.Header, error) {
	calls := make([]*rpc.Call, len(numbers))
	for i, number := range numbers {
		calls[i] = rpc.ByNumber(number)
	}

	err := n.Do(ctx, calls...)
	list := make([]rpc.Header, 0, len(numbers))
	for i, number := range numbers {
		if err != nil && calls[i].Result == nil {
			continue
		}

		h, fault := calls[i].Header(number)
		if fault == nil {
			n.gives.oldHeaders.gave(number)
			list = append(list, h)
		}

		err = cmp.Or(err, fault)
	}

	return list, err
}

// Keeps reports whether the node has a block at a height under a hash, and the head that it, or the machine
// behind its URL that answered, has then.
func (n *Node) Keeps(ctx context.Context, number uint64, hash common.Hash) (keeps bool, head rpc.Header, err error) {
	at, newest := rpc.ByNumber(number), rpc.ByTag("latest")
	if err := n.Do(ctx, at, newest); err != nil {
		return false, head, err
	}

	if err := newest.Decode(&head); err != nil {
		return false, head, rpc.AsBehind(err)
	}

	h, err := at.Header(number)

	return h.Hash == hash, head, err
}

// Lacks notes that the node does not have a block, as its error err says. One that is more than far blocks below its
// head is no matter of lag: it is asked for until it is there, or has been missing often enough to count as thrown away
// (ErrNoHistory).
func (n *Node) Lacks(ctx context.Context, block, far uint64, err error) error {
	head := n.Claim().Head.Number
	if head < block+far {
		return err
	}

	for believed := false; !believed; believed = n.gives.oldHeaders.note(block) {
		if _, missing := n.Header(ctx, block); !errors.Is(missing, rpc.ErrBehind) && rpc.Classify(missing) != rpc.Pruned {
			return err
		}
	}

	return fmt.Errorf("%w: it told of block %d and does not have block %d: %w", ErrNoHistory, head, block, err)
}

// query is one reading.
type query struct {
	where    string // the blocks
	filter   *Filter
	keep     func(*types.Log) bool // which of the logs; nil: all
	heads    []*rpc.Call           // headers that are asked for in every batch
	block    bool                  // one block, which cannot be asked for in parts
	answered bool                  // as many blocks were answered before
}

// logsAnswer is the answer to one reading, of all parts of a filter.
type logsAnswer struct {
	head  *rpc.Call // the first of query.heads, as the first batch has it; nil: none was asked for
	first *rpc.Call // the last of query.heads, which may be the same
	logs  []types.Log
	all   int // logs, kept or not
	bytes int
}

// logs asks for the logs of all of a filter's parts. Those of one block may be a large answer, if they have to.
func (n *Node) logs(ctx context.Context, q query) (a logsAnswer, err error) {
	ask := func(limit int64) error {
		for {
			chunk := int(n.gives.addresses.allowed())
			a, err = n.parts(ctx, q, q.filter.parts(chunk), limit)
			named := min(chunk, len(q.filter.Addresses))
			if rpc.Classify(err) != rpc.TooManyAddresses || named <= 1 {
				return err
			}

			n.gives.addresses.refused(float64(named), 0)
		}
	}
	if q.block {
		err = n.large(ctx, ask)
	} else {
		err = ask(n.cfg.MaxBytes)
	}

	switch {
	case q.filter.Addresses != nil:
	case err == nil:
		n.gives.unnamed.gave(0)
	case rpc.Classify(err) == rpc.AddressRequired:
		n.gives.unnamed.note(0)
		err = fmt.Errorf("%w: %w", ErrAddressRequired, err)
	case errors.Is(err, rpc.ErrTooLarge) && q.block:
		err = fmt.Errorf("the logs of one block: %w: set LOG_FILTER=addresses, which asks for those of escrows only", err)
	}

	return a, err
}

// large asks for what a single block has. Of answers that are larger than others may be, one is read at a time.
func (n *Node) large(ctx context.Context, ask func(limit int64) error) error {
	err := ask(n.cfg.MaxBytes)
	if !errors.Is(err, rpc.ErrTooLarge) {
		return err
	}

	if n.cfg.Large.Acquire(ctx, 1) != nil {
		return context.Cause(ctx)
	}

	defer n.cfg.Large.Release(1)

	return ask(blockAnswer)
}

func (n *Node) parts(ctx context.Context, q query, parts []string, limit int64) (logsAnswer, error) {
	a := logsAnswer{logs: []types.Log{}}
	keep := q.keep
	if keep == nil {
		keep = q.filter.orOneStray()
	}

	batches := slices.Collect(slices.Chunk(parts, callsPerBatch-len(q.heads)))
	if len(parts) == 0 && len(q.heads) > 0 {
		batches = [][]string{nil} // no address, no logs: the headers are asked for as with any other filter
	}

	for _, some := range batches {
		calls := make([]*rpc.Call, 0, callsPerBatch)
		for _, part := range some {
			calls = append(calls, &rpc.Call{Method: rpc.GetLogs, Params: "[{" + q.where + part + "}]", Keep: keep})
		}

		for _, head := range q.heads {
			calls = append(calls, &rpc.Call{Method: head.Method, Params: head.Params})
		}

		if err := n.sendLogs(ctx, bounds{limit: limit, answered: q.answered, block: q.block}, calls); err != nil {
			if _, said := errors.AsType[*rpc.Error](err); said {
				err = &logsRefused{err}
			}

			return a, err
		}

		if err := a.add(calls[:len(some)], calls[len(some):]); err != nil {
			return a, err
		}
	}

	return a, nil
}

// add notes the answers of one batch.
func (a *logsAnswer) add(calls, heads []*rpc.Call) error {
	for i, head := range heads {
		switch {
		case head.Null():
			return rpc.ErrBehind // without it the logs mean nothing
		case head.Err != nil && i > 0:
			return rpc.AsBehind(head.Err) // the last header's is looked at by the reading that needs it
		}
	}

	for _, c := range calls {
		switch {
		case rpc.Classify(c.Err) == rpc.Invalid:
			return c.Err
		case c.Err != nil:
			return rpc.AsBehind(&logsRefused{c.Err})
		}

		a.take(c) // null is no logs, as flow-evm-gateway says it; that is proven as an empty list is
	}

	switch {
	case len(heads) == 0:
	case a.head == nil:
		a.head, a.first = heads[0], heads[len(heads)-1]
	case heads[0].Err == nil && a.head.Err == nil && !sameBlock(a.head, heads[0]):
		return fmt.Errorf("%w: it changed between two batches", ErrDisagree)
	}

	return nil
}

// take adds the logs of one answer.
func (a *logsAnswer) take(c *rpc.Call) {
	a.all += c.All
	a.bytes += c.Bytes
	if len(a.logs) == 0 && c.Logs != nil {
		a.logs = c.Logs
	} else {
		a.logs = append(a.logs, c.Logs...)
	}
}

func sameBlock(a, b *rpc.Call) bool {
	var x, y rpc.Header
	return a.Decode(&x) == nil && b.Decode(&y) == nil && x.Hash == y.Hash
}

// fillTimes fills in the time of each log's block, and tests that logs and headers tell of the same
// blocks. Older nodes do not give it with the logs.
func (n *Node) fillTimes(ctx context.Context, b *Batch) error {
	var missing []uint64
	headers := map[uint64]rpc.Header{b.Last.Number: b.Last}
	for i := range b.Logs {
		l := &b.Logs[i]
		if _, asked := headers[l.BlockNumber]; l.BlockTimestamp == 0 && !asked {
			missing = append(missing, l.BlockNumber)
			headers[l.BlockNumber] = rpc.Header{}
		}
	}

	for some := range slices.Chunk(missing, callsPerBatch) {
		list, err := n.Headers(ctx, some)
		if err != nil {
			return err
		}

		for _, h := range list {
			headers[h.Number] = h
		}
	}

	for i := range b.Logs {
		l := &b.Logs[i]
		h, asked := headers[l.BlockNumber]
		switch {
		case !asked:
			continue
		case h.Hash != l.BlockHash:
			return fmt.Errorf("%w: block %d has the hash %s, its log says %s", ErrDisagree, l.BlockNumber, h.Hash, l.BlockHash)
		}

		l.BlockTimestamp = h.Time
	}

	return nil
}
