package endpoint

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/proof"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// ErrUnproved means that an endpoint fails to prove what it says of a block.
var ErrUnproved = errors.New("the block's receipts are not proved")

// errNoReceipts means that a node withholds the receipts of a block.
var errNoReceipts = fmt.Errorf("%w: it gives none", ErrUnproved)

// ReadBlock reads the logs of a block by its receipts, as many as the block has transactions: a
// machine without the block has fewer. Those of a proved header are proved: which logs there are, in which
// order, against the receipts root, and their transactions against the transactions root. The rest stays unproved, and
// is read by its logs where receipts are lacking. It returns those that match, and about how many bytes were read.
// A *Forgery: the chain makes roots of receipts, and the node's make another.
func (n *Node) ReadBlock(ctx context.Context, h rpc.Header, f *Filter) (match []types.Log, size int, proved bool,
	err error) {
	q := &rpc.Call{Method: rpc.GetReceipts, Params: `["` + h.Hash.Hex() + `"]`, Keep: ofBlock(h.Hash, f), Encode: h.Proved}
	given := n.gives.allReceipts.given(0)
	together, err := n.receiptsOf(ctx, h, q)
	match, size = append([]types.Log{}, q.Logs...), q.Bytes
	proved = err == nil && h.Proved
	if errors.Is(err, ErrUnproved) {
		match, err = n.logsOf(ctx, h, f)
		size = SizeOf(match)
	}

	if err == nil && !given && rpc.Classify(together) == rpc.TimedOut {
		n.gives.allReceipts.note(0) // it answers others
	}

	return match, size, proved, err
}

// receiptsOf asks for the receipts of a block, together or else one by one, and proves those of a proved header.
// together is what became of the first way.
func (n *Node) receiptsOf(ctx context.Context, h rpc.Header, q *rpc.Call) (together, err error) {
	together = n.together(ctx, h, q)
	if err = together; h.Proved && errors.Is(err, errNoReceipts) {
		if err = n.oneByOne(ctx, h, q); refuses(err, false) {
			err = fmt.Errorf("%w: %w", errNoReceipts, err)
		}
	}

	if err != nil || !h.Proved {
		return together, err
	}

	under, err := n.proveReceipts(ctx, h, q)
	if err != nil {
		return together, err
	}

	n.cfg.Laws.Receipts.Kept(n.cfg.Name, h.Number)
	if len(q.Logs) == 0 {
		return together, nil
	}

	body, err := n.body(ctx, h)
	if err == nil {
		err = n.ownTransactions(ctx, h, body, q, under)
	}

	if err == nil {
		n.cfg.Laws.Bodies.Kept(n.cfg.Name, h.Number)
	}

	return together, err
}

// ReadProved is ReadBlock of several blocks, by their numbers and the hashes that are claimed of them: headers,
// transactions and receipts come in one batch. It returns the headers that it has got, and the logs that match of the
// blocks that are proved so, by their hashes. Whatever keeps another one from it, that one is to be read by itself.
// size is how many bytes of receipts were read.
func (n *Node) ReadProved(ctx context.Context, numbers []uint64, claimed func(uint64) common.Hash, f *Filter) (
	headers []rpc.Header, proved map[common.Hash][]types.Log, size int) {
	if n.gives.allReceipts.holds(0) {
		return nil, nil, 0
	}

	var calls []*rpc.Call
	for _, number := range numbers {
		hash := claimed(number)
		block := `["` + rpc.Quantity(number) + `",true]`
		calls = append(calls, &rpc.Call{Method: rpc.GetByNumber, Params: block, Encode: true},
			&rpc.Call{Method: rpc.GetReceipts, Params: `["` + hash.Hex() + `"]`, Keep: ofBlock(hash, f), Encode: true})
	}

	if n.sendLogs(ctx, bounds{limit: n.cfg.MaxBytes, answered: n.gives.allReceipts.given(0)}, calls) != nil {
		return nil, nil, 0
	}

	proved = map[common.Hash][]types.Log{}
	for i, number := range numbers {
		block, receipts := calls[2*i], calls[2*i+1]
		size += receipts.Bytes
		h, err := block.Header(number)
		if err == nil {
			headers = append(headers, h)
		}

		if err != nil || !h.Proved || receipts.Err != nil || n.ofHeader(h, receipts) != nil {
			continue
		}

		under, err := n.proveReceipts(ctx, h, receipts)
		if err == nil && (len(receipts.Logs) == 0 || n.ownTransactions(ctx, h, block, receipts, under) == nil) {
			proved[h.Hash] = append([]types.Log{}, receipts.Logs...)
		}
	}

	return headers, proved, size
}

// together asks for all receipts of a block. errNoReceipts: the node refuses them so.
func (n *Node) together(ctx context.Context, h rpc.Header, q *rpc.Call) error {
	if n.gives.allReceipts.holds(0) {
		return errNoReceipts
	}

	err := rpc.AsBehind(n.whole(ctx, q))
	if err == nil {
		err = n.ofHeader(h, q)
	}

	if err == nil {
		n.gives.allReceipts.gave(0)
		return nil
	}

	given := n.gives.allReceipts.given(0)
	if refuses(err, given) {
		if _, said := errors.AsType[*rpc.Error](err); said && !given {
			n.gives.allReceipts.note(0)
		}

		err = fmt.Errorf("%w: %w", errNoReceipts, err)
	}

	return err
}

// refuses reports whether an error means that a node refuses receipts, whatever its words are: before it has
// given any, by words or silence; later where they are too large.
func refuses(err error, given bool) bool {
	_, said := errors.AsType[*rpc.Error](err)
	switch rpc.Classify(err) {
	case rpc.RangeTooLarge:
		return true
	case rpc.TimedOut:
		return !given
	case rpc.Unsupported, rpc.Failed:
		return !given && said
	}

	return false
}

// proveReceipts proves receipts by a block's header. What is listed behind those that make the root, as some
// chains list transactions of their own, is under no root: the rest is proved where none of it is asked for. It returns
// how many are under the root.
// ErrUnproved: the chain makes roots otherwise.
func (n *Node) proveReceipts(ctx context.Context, h rpc.Header, q *rpc.Call) (under int, err error) {
	law := n.cfg.Laws.Receipts
	under, found := rooted(q.Encoded, h.Receipts)
	beside := slices.ContainsFunc(q.Places, func(p rpc.Place) bool { return p.Tx >= uint(under) })
	switch {
	case found && beside:
		return 0, fmt.Errorf("%w: logs of block %d are under no root", ErrUnproved, h.Number)
	case !found && (q.Unfit || behind(q.Encoded, h.Receipts)):
		return 0, fmt.Errorf("%w: those of block %d are too large, of an unknown type, or behind others that are under no root",
			ErrUnproved, h.Number)
	case !found || displaced(q):
		return 0, n.breaks(ctx, law, h, "the receipts", otherRoot, fmt.Appendf(nil, "%x", q.Encoded))
	}

	return under, nil
}

// otherRoot is what is wrong with what makes another root than the block's header has.
const otherRoot = "do not make the root in its header"

// mostBeside is how many items may be listed behind those that make a root.
const mostBeside = 8

// rooted is how many of the first items make a root.
func rooted(items [][]byte, root common.Hash) (under int, found bool) {
	known := len(items)
	if i := slices.IndexFunc(items, func(item []byte) bool { return item == nil }); i >= 0 {
		known = i // of an unknown type, or too large
	}

	for under = known; under >= max(len(items)-mostBeside, 0); under-- {
		if proof.Root(items[:under]) == root {
			return under, true
		}
	}

	return 0, false
}

// behind reports whether items make a root that are listed behind others: their places in the block are not known then.
func behind(items [][]byte, root common.Hash) bool {
	for first := 1; first <= min(mostBeside, len(items)); first++ {
		if _, found := rooted(items[first:], root); found {
			return true
		}
	}

	return false
}

// displaced reports whether a log's index, or its transaction's, differs from its place in the block.
func displaced(q *rpc.Call) bool {
	for i := range q.Logs {
		if at := (rpc.Place{Log: q.Logs[i].Index, Tx: q.Logs[i].TxIndex}); at != q.Places[i] {
			return true
		}
	}

	return false
}

// ownTransactions tests that as many receipts as are under the root are of the transactions in the block, each in its
// place.
func (n *Node) ownTransactions(ctx context.Context, h rpc.Header, q, receipts *rpc.Call, under int) error {
	law := n.cfg.Laws.Bodies
	if q.Unfit {
		if err := n.raw(ctx, q); err != nil {
			return err
		}
	}

	of, found := rooted(q.Encoded, h.Body)
	switch {
	case !found && q.Unfit:
		return fmt.Errorf("%w: transactions of block %d are too large, or of an unknown type", ErrUnproved, h.Number)
	case !found:
		return n.breaks(ctx, law, h, "the transactions", otherRoot, fmt.Appendf(nil, "%x", q.Encoded))
	case of != under || !slices.Equal(q.Hashes[:of], receipts.Hashes[:of]):
		return n.breaks(ctx, law, h, "the transactions' hashes in the receipts", otherRoot,
			fmt.Appendf(nil, "%x", receipts.Hashes))
	}

	return nil
}

// raw asks for the transactions of a body of a type that nobody knows: as they are in the block, they hash to what
// they are called. A node that does not give them leaves them as they are.
func (n *Node) raw(ctx context.Context, body *rpc.Call) error {
	var calls []*rpc.Call
	var at []int
	for i, item := range body.Encoded {
		if item == nil {
			calls = append(calls, &rpc.Call{Method: rpc.GetRaw, Params: `["` + body.Hashes[i].Hex() + `"]`})
			at = append(at, i)
		}
	}

	if err := n.sendLogs(ctx, bounds{limit: n.cfg.MaxBytes}, calls); err != nil && rpc.Classify(err) != rpc.Unsupported {
		return err
	}

	for j, i := range at {
		var item hexutil.Bytes
		if calls[j].Err == nil && json.Unmarshal(calls[j].Result, &item) == nil &&
			crypto.Keccak256Hash(item) == body.Hashes[i] {
			body.Encoded[i] = item
		}
	}

	return nil
}

// body asks for a block's transactions.
func (n *Node) body(ctx context.Context, h rpc.Header) (*rpc.Call, error) {
	q := &rpc.Call{Method: rpc.GetByHash, Params: `["` + h.Hash.Hex() + `",true]`, Encode: true}
	err := n.whole(ctx, q)
	if err == nil && q.Null() {
		err = rpc.ErrBehind
	}

	return q, rpc.AsBehind(err)
}

// oneByOne asks for the receipts of a block that the node refuses together.
func (n *Node) oneByOne(ctx context.Context, h rpc.Header, q *rpc.Call) error {
	block, err := n.body(ctx, h)
	if err != nil {
		return err
	}

	calls := make([]*rpc.Call, len(block.Hashes))
	for i, tx := range block.Hashes {
		calls[i] = &rpc.Call{Method: rpc.GetReceipt, Params: `["` + tx.Hex() + `"]`, Keep: q.Keep, Encode: true}
	}

	if err := n.sendLogs(ctx, bounds{limit: n.cfg.MaxBytes}, calls); err != nil {
		return err
	}

	q.Answer = rpc.Answer{}
	for _, c := range calls {
		if c.Err != nil || c.Null() {
			return rpc.AsBehind(cmp.Or(c.Err, rpc.ErrBehind))
		}

		q.Append(&c.Answer)
	}

	return n.ofHeader(h, q)
}

// unwilling reports whether an error means that a node refuses such an answer, however often it
// is asked.
func unwilling(err error) bool {
	switch rpc.Classify(err) {
	case rpc.RangeTooLarge, rpc.TimedOut, rpc.Unsupported, rpc.AddressRequired:
		return true
	}

	return errors.Is(err, ErrAddressRequired)
}

// whole asks for what a block has.
func (n *Node) whole(ctx context.Context, q *rpc.Call) error {
	answered := q.Method == rpc.GetReceipts && n.gives.allReceipts.given(0)

	return n.large(ctx, func(limit int64) error {
		err := n.sendLogs(ctx, bounds{limit: limit, answered: answered}, []*rpc.Call{q})

		return cmp.Or(err, q.Err)
	})
}

// ofHeader tests that receipts are those of a block, by what they say. ErrBehind: there are fewer than the block has
// transactions, as of a machine without the block.
func (n *Node) ofHeader(h rpc.Header, q *rpc.Call) error {
	switch {
	case h.Proved && h.Body == types.EmptyTxsHash && q.Receipts == 0 && !q.Null():
		return nil
	case !h.Proved && h.Transactions == 0 && q.Receipts == 0 && !q.Null(): // the logs are asked for themselves
		return fmt.Errorf("%w: it lists none of block %d", errNoReceipts, h.Number)
	case q.Receipts < max(h.Transactions, 1): // null: none
		return fmt.Errorf("%w: it has %d receipts of block %d", rpc.ErrBehind, q.Receipts, h.Number)
	case q.Block != h.Hash:
		return fmt.Errorf("%w: receipts of block %s instead of %s", rpc.ErrInvalid, q.Block, h.Hash)
	}

	return validateBlock(q.Logs, h, &Filter{})
}
