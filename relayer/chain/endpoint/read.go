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

// ReadRange reads the first blocks of a range of final blocks, in as many parts as the node wants: all of
// them, or as many as have so many logs that more should not be held, or are of one branch.
func (n *Node) ReadRange(ctx context.Context, from, to uint64, f *Filter) (Batch, error) {
	whole := Batch{From: from, Filter: f, Logs: []types.Log{}, By: n}
	if err := n.refuses(from, f); err != nil {
		return whole, err
	}

	for full := 0.0; from <= to && full < 1; {
		b, part, err := n.readPart(ctx, from, to, f)
		switch {
		case errors.Is(err, errFewer):
			continue
		case err != nil:
			return Batch{}, err
		case from == whole.From:
			whole.Parent, whole.Logs = b.Parent, b.Logs
		case !b.Follows(whole.Last.Hash):
			return whole, nil
		default:
			whole.Logs = append(whole.Logs, b.Logs...)
		}

		whole.To, whole.Last = b.To, b.Last
		from, full = b.To+1, full+part
	}

	return whole, nil
}

// Follows reports whether the batch continues the chain behind a block with a hash; zero: whatever block it is.
func (b *Batch) Follows(block common.Hash) bool { return block == (common.Hash{}) || b.Parent == block }

// Never reports whether such a reading cannot be had of the node, whenever it is asked: it has refused all logs, logs
// of contracts that are not named, or so old a block, for over a minute. A shorter time says nothing of the next one.
func (n *Node) Never(from uint64, f *Filter) bool {
	return n.oldHeaders.forGood(from) || n.oldLogs.forGood(from) || f.Addresses == nil && n.unnamed.forGood(0) || n.unfit()
}

// errFewer means that the node is to be asked at once for fewer blocks.
var errFewer = errors.New("refused, and fewer blocks are worth a try")

// readPart reads the first blocks of a range: as many as the node is asked for at once. It says how many
// answers that are large enough theirs makes.
func (n *Node) readPart(ctx context.Context, from, to uint64, f *Filter) (b Batch, full float64,
	err error) {
	if ctx, err = n.rate.enter(ctx); err != nil {
		return b, 0, err
	}

	defer n.rate.leave()
	size := min(to-from+1, n.Span(f))
	b, bytes, err := n.rangeLogs(ctx, from, from+size-1, f)
	if err == nil {
		n.gaveLogs()
		full = fullness(len(b.Logs), bytes, int(n.cfg.MaxBytes/8))
		n.span.answered(f, size, full)
		n.rate.calmer(n.span.of(f).proven(float64(n.Span(f))))

		return b, full, nil
	}

	if ctx.Err() != nil {
		return b, 0, err
	}

	return b, 0, n.refusal(ctx, err, from, size, f)
}

// refusal learns from the refusal of a range, and says what the error is.
func (n *Node) refusal(ctx context.Context, err error, from, size uint64, f *Filter) error {
	kind := rpc.Classify(err)
	said, isSaid := errors.AsType[*logsRefused](err)
	if isSaid && !rpc.Shrinks(kind) && n.span.misread(size, kind) {
		kind = rpc.Failed
	}

	unknown := errors.Is(err, errUnexplained) || rpc.Vague(err) && !notSent(err)
	switch {
	case unknown && n.span.of(f).spares(float64(size)): // it has answered for as many: once more, and it is the range
	case kind == rpc.Pruned:
		if n.oldLogs.note(from) {
			err = fmt.Errorf("%w: %w", ErrNoHistory, err)
		}
	case kind == rpc.Unsupported && isSaid, errors.Is(err, rpc.ErrGarbled), rpc.Shrinks(kind) && !notSent(err):
		n.rate.calmer(false)
		if size == 1 {
			n.batches.doubt(2) // it may be what else was in the batch
		}

		fewer := n.span.refused(f, size)
		if fewer && (isSaid || kind == rpc.RangeTooLarge) {
			return errFewer
		}

		if isSaid && n.span.unfit() {
			if n.answersNamed(ctx, from, f) {
				return fmt.Errorf("%w: %w", ErrAddressRequired, err)
			}

			n.Blame(ctx, fmt.Errorf("%w: it says: %w", errUnfit, said.err))
		}
	}

	return err
}

// answersNamed reports whether a node that refuses the logs of any block gives those of a contract that
// is named, whatever its words for that were.
func (n *Node) answersNamed(ctx context.Context, block uint64, f *Filter) bool {
	const sure = 4 // a node that is only busy, or limits its rate, refuses one and not the other by chance
	for range sure {
		if f.Addresses != nil || n.asksFor(ctx, block, block, &common.Address{1}) != nil ||
			n.asksFor(ctx, block, block, nil) == nil {
			return false
		}
	}

	n.unnamed.note(0)

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
	b := Batch{From: from, To: to, Filter: f}
	heads := []*rpc.Call{rpc.ByNumber(to)}
	if from != to {
		heads = append(heads, rpc.ByNumber(from))
	}

	asked := n.cfg.Now()
	a, err := n.logs(ctx, query{where: blockRange(from, to), filter: f, heads: heads, block: from == to,
		answered: n.span.of(f).proven(float64(to - from + 1))})
	if errors.Is(err, errLacksFirst) {
		return b, 0, n.lacksFirst(ctx, from, to)
	}

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

	if len(a.logs) > 0 {
		n.proves(asked)
		n.logged.Store(min(n.logged.Load(), a.logs[0].BlockNumber))
	} else if err := n.indexed(ctx, from); err != nil {
		return b, a.bytes, err
	}

	n.oldHeaders.gave(from)
	if len(a.logs) > 0 || from >= n.logged.Load() {
		n.oldLogs.gave(from)
	}

	return b, a.bytes, nil
}

// errLacksFirst means that the node with the last block of a range lacks the first.
var errLacksFirst = fmt.Errorf("%w: it has the last block of the range and not the first", rpc.ErrBehind)

// lacksFirst is the error of a range with its last block and without its first: of a node, or a
// machine behind its URL, that throws old blocks away, and may answer for the rest of the range, or
// with an empty list.
func (n *Node) lacksFirst(ctx context.Context, from, to uint64) error {
	err := fmt.Errorf("%w: blocks %d and %d", errLacksFirst, to, from)
	if n.keepsNot(ctx, from) {
		return fmt.Errorf("%w: %w", ErrNoHistory, err)
	}

	return err
}

// keepsNot asks for an old block that was missing until it is there, or has been missing often
// enough to count as thrown away.
func (n *Node) keepsNot(ctx context.Context, block uint64) bool {
	for !n.oldHeaders.note(block) {
		if _, err := n.Header(ctx, block); !errors.Is(err, rpc.ErrBehind) && rpc.Classify(err) != rpc.Pruned {
			return false
		}
	}

	return true
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
	q.where, q.block, q.answered = n.where(h), true, n.blocks.Load()
	if a, err = n.logs(ctx, q); err != nil {
		_, said := errors.AsType[*logsRefused](err)
		if said && strings.Contains(strings.ToLower(err.Error()), "blockhash") {
			n.byHash.note(0)
		}

		return a, err
	}

	n.blocks.Store(true)

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
		n.oldLogs.gave(h.Number)
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

	n.oldHeaders.gave(h.Number)

	return h, nil
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
			n.oldHeaders.gave(number)
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

// Lacks notes that the node does not have a block, as its error err says. A block that is more than
// far blocks below its head is no matter of lag: a node that has the block below its head has
// thrown it away (ErrNoHistory), and one that has not has invented its head.
func (n *Node) Lacks(ctx context.Context, block, far uint64, err error) error {
	head := n.Claim().Head.Number
	if head < block+far {
		return err
	}

	if _, missing := n.Header(ctx, head-1); errors.Is(missing, rpc.ErrBehind) {
		return fmt.Errorf("%w: it told of block %d and has neither block %d nor block %d", rpc.ErrInvalid,
			head, head-1, block)
	}

	if !n.keepsNot(ctx, block) {
		return err
	}

	return fmt.Errorf("%w: it told of block %d and does not have block %d", ErrNoHistory, head, block)
}

// query is one reading.
type query struct {
	where    string // the blocks
	filter   *Filter
	keep     func(*types.Log) bool // which of the logs; nil: all
	heads    []*rpc.Call           // headers that are asked for in every batch
	block    bool                  // one block, which cannot be asked for in parts
	answered bool                  // as many blocks were answered before
	large    bool                  // it may have blockAnswer bytes; logs that have one part in 16 of that are left out
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
func (n *Node) logs(ctx context.Context, q query) (logsAnswer, error) {
	defer func() {
		if q.large {
			<-n.cfg.Large
		}
	}()

	for {
		chunk := int(n.addresses.allowed())
		named := min(chunk, len(q.filter.Addresses))
		a, err := n.parts(ctx, q, q.filter.parts(chunk))
		switch kind := rpc.Classify(err); {
		case err == nil && q.filter.Addresses == nil:
			n.unnamed.gave(0)
		case kind == rpc.AddressRequired && q.filter.Addresses == nil:
			n.unnamed.note(0)
			return a, fmt.Errorf("%w: %w", ErrAddressRequired, err)
		case errors.Is(err, rpc.ErrTooLarge) && q.block && !q.large:
			select {
			case n.cfg.Large <- struct{}{}:
				q.large = true
				continue
			case <-ctx.Done():
				return a, context.Cause(ctx)
			}
		case errors.Is(err, rpc.ErrTooLarge) && q.block && q.filter.Addresses == nil:
			return a, fmt.Errorf("the logs of one block: %w: set LOG_FILTER=addresses, which asks for those of escrows only",
				err)
		case kind == rpc.TooManyAddresses && named > 1:
			n.addresses.refused(float64(named), 0)
			continue
		}

		return a, err
	}
}

func (n *Node) parts(ctx context.Context, q query, parts []string) (logsAnswer, error) {
	a := logsAnswer{logs: []types.Log{}}
	limit := n.cfg.MaxBytes
	if q.large {
		limit = blockAnswer
	}

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
			calls = append(calls, &rpc.Call{Method: rpc.GetLogs, Params: "[{" + q.where + part + "}]", Keep: keep,
				PassLong: q.large})
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
		switch lacks := head.Null() || rpc.Classify(head.Err) == rpc.Behind; {
		case head.Null() && i == 0:
			return rpc.ErrBehind // without the last header the logs mean nothing
		case lacks && i > 0:
			return errLacksFirst
		case head.Err != nil && i > 0:
			return head.Err // the last header's is looked at by the reading that needs it
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
