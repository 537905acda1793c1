package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/core/types"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/proof"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// fewTransactions is up to how many receipts are asked for first: fewer bytes than a block of an
// ordinary chain has, and where most blocks have no logs, all logs of the block prove nothing.
const fewTransactions = 8

// ReadProven reads a block so that an empty answer proves itself, as far as the node allows: by ReadWhole,
// or where its bloom filter says nothing, by all its logs, if it has any, or its receipts. A header from
// the same batch would prove nothing: a gateway may have asked another machine for it. A node that shows
// neither is believed with the header; one that has no receipts of a block more than far blocks below its
// head, and never gave any, is such a node. It returns the logs that match, and about how many bytes were
// read for them.
func (n *Node) ReadProven(ctx context.Context, h rpc.Header, f *Filter, far uint64) (match []types.Log, size int,
	err error) {
	telling := Telling(&h.Bloom)
	few := 0 < h.Transactions && h.Transactions <= fewTransactions || f.Addresses == nil && len(f.Topics) == 0
	if telling || !few {
		a, err := n.readAll(ctx, h, f)
		switch {
		case err != nil && !unwilling(err):
			return nil, a.bytes, err
		case err == nil && (telling || a.all > 0):
			return a.logs, a.bytes, a.accounts(h)
		}
	}

	silent := false // it has never answered for receipts
	if !telling && !n.noReceipts.holds() {
		q := &rpc.Call{Method: rpc.GetReceipts, Params: `["` + h.Hash.Hex() + `"]`, Keep: ofBlock(h, f)}
		asked := n.cfg.Now()
		err := n.readReceipts(ctx, h, q)
		if err == nil {
			n.receipts.Store(true)
			return q.Logs, q.Bytes, nil
		}

		given := n.receipts.Load()
		_, said := errors.AsType[*rpc.Error](err)
		if given && said && rpc.Vague(err) {
			n.busy(ctx, err, asked, true)
		}

		behind := errors.Is(err, rpc.ErrBehind) && n.Claim().Head.Number >= h.Number+far
		if !unwilling(err) && (given || !behind && (!said || rpc.Classify(err) != rpc.Failed)) {
			return nil, 0, err
		}

		silent = !given && rpc.Classify(err) == rpc.TimedOut
		if !given && (behind || rpc.Classify(err) == rpc.Unsupported) {
			n.noReceipts.note()
		}
	}

	logs, err := n.ReadStanding(ctx, h, f)
	if err == nil && silent {
		n.noReceipts.note()
	}

	return logs, SizeOf(logs), err
}

// ErrUnproved means that an endpoint has not proved what it says of a block.
var ErrUnproved = errors.New("the block's receipts are not proved")

// ReadProved reads the logs of a block by its receipts, and proves them: which logs there are, in which
// order, against the receipts root of a header that is proved, and whose transactions' they are against
// its transactions root. It returns those that match, and about how many bytes were read. ErrUnproved: the
// node has no receipts, or the chain makes roots otherwise. A *Forgery: it makes roots so of other blocks.
func (n *Node) ReadProved(ctx context.Context, h rpc.Header, f *Filter) (match []types.Log, size int, err error) {
	q := &rpc.Call{Method: rpc.GetReceipts, Params: `["` + h.Hash.Hex() + `"]`, Keep: ofBlock(h, f), Encode: true}
	if !n.noReceipts.holds() {
		err = n.readReceipts(ctx, h, q)
	}

	if lacksMethod(err) && !n.receipts.Load() {
		n.noReceipts.note()
	}

	if n.noReceipts.holds() {
		if err = n.oneByOne(ctx, h, q); lacksMethod(err) {
			err = fmt.Errorf("%w: it gives none: %w", ErrUnproved, err)
		}
	} else if err == nil {
		n.receipts.Store(true)
	}

	if err != nil {
		return nil, q.Bytes, err
	}

	law := n.cfg.Laws.Receipts
	switch {
	case q.Unfit:
		return nil, q.Bytes, fmt.Errorf("%w: those of block %d are too large, or of an unknown type", ErrUnproved, h.Number)
	case displaced(q) || proof.Root(q.Encoded) != h.Receipts:
		return nil, q.Bytes, n.unproved(ctx, law, h, "receipts", fmt.Appendf(nil, "%x", q.Encoded))
	}

	law.Kept()
	if len(q.Logs) > 0 {
		err = n.ownTransactions(ctx, h, q)
	}

	return q.Logs, q.Bytes, err
}

// displaced reports whether a log's index, or its transaction's, is not its place in the block.
func displaced(q *rpc.Call) bool {
	for i := range q.Logs {
		if at := (rpc.Place{Log: q.Logs[i].Index, Tx: q.Logs[i].TxIndex}); at != q.Places[i] {
			return true
		}
	}

	return false
}

// lacksMethod reports whether a node answered that it has no such method, in words or with a code of its own.
func lacksMethod(err error) bool {
	_, said := errors.AsType[*rpc.Error](err)
	kind := rpc.Classify(err)

	return said && (kind == rpc.Unsupported || kind == rpc.Failed)
}

// unproved is the error of what does not make the root in a block's header.
func (n *Node) unproved(ctx context.Context, law *Law, h rpc.Header, what string, claim []byte) error {
	if !law.Broken(ctx, n.cfg.Name) {
		return fmt.Errorf("%w: the %s of block %d do not make the root in its header", ErrUnproved, what, h.Number)
	}

	return &Forgery{What: fmt.Sprintf("the %s of block %d (%s) do not make the root in its header", what, h.Number,
		h.Hash), Evidence: string(claim[:min(len(claim), maxEvidence)])}
}

// ownTransactions tests that receipts are of the transactions in the block, each in its place.
func (n *Node) ownTransactions(ctx context.Context, h rpc.Header, receipts *rpc.Call) error {
	law := n.cfg.Laws.Bodies
	q, err := n.body(ctx, h)
	switch {
	case err != nil:
		return err
	case q.Unfit:
		return fmt.Errorf("%w: transactions of block %d are too large, or of an unknown type", ErrUnproved, h.Number)
	case proof.Root(q.Encoded) != h.Body:
		return n.unproved(ctx, law, h, "transactions", fmt.Appendf(nil, "%x", q.Encoded))
	case !slices.Equal(q.Hashes, receipts.Hashes):
		return n.unproved(ctx, law, h, "transactions' hashes in the receipts", fmt.Appendf(nil, "%x", receipts.Hashes))
	}

	law.Kept()

	return nil
}

// body asks for a block's transactions.
func (n *Node) body(ctx context.Context, h rpc.Header) (*rpc.Call, error) {
	q := &rpc.Call{Method: rpc.GetByHash, Params: `["` + h.Hash.Hex() + `",true]`, Encode: true}
	err := n.large(ctx, q)
	if err == nil && q.Null() {
		err = rpc.ErrBehind
	}

	return q, rpc.AsBehind(err)
}

// oneByOne asks for the receipts of a block that the node does not give together.
func (n *Node) oneByOne(ctx context.Context, h rpc.Header, q *rpc.Call) error {
	block, err := n.body(ctx, h)
	if err != nil {
		return err
	}

	calls := make([]*rpc.Call, len(block.Hashes))
	for i, tx := range block.Hashes {
		calls[i] = &rpc.Call{Method: rpc.GetReceipt, Params: `["` + tx.Hex() + `"]`, Keep: q.Keep, Encode: true}
	}

	if err := n.sendLogs(ctx, n.cfg.MaxBytes, calls); err != nil {
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

// unwilling reports whether an error means that a node does not give such an answer, however often it
// is asked.
func unwilling(err error) bool {
	switch rpc.Classify(err) {
	case rpc.RangeTooLarge, rpc.TimedOut, rpc.Unsupported, rpc.AddressRequired:
		return true
	}

	return errors.Is(err, ErrAddressRequired)
}

// readReceipts asks for a block's receipts. ErrBehind: there are fewer than the block has transactions,
// as of a machine that does not have the block.
func (n *Node) readReceipts(ctx context.Context, h rpc.Header, q *rpc.Call) error {
	if err := n.large(ctx, q); err != nil {
		return rpc.AsBehind(err)
	}

	return n.ofHeader(h, q)
}

// large asks for what a block has. Of answers that are larger than others may be, one is read at a time.
func (n *Node) large(ctx context.Context, q *rpc.Call) error {
	err := n.sendLogs(ctx, n.cfg.MaxBytes, []*rpc.Call{q})
	if err = cmp.Or(err, q.Err); !errors.Is(err, rpc.ErrTooLarge) {
		return err
	}

	select {
	case n.cfg.Large <- struct{}{}:
		defer func() { <-n.cfg.Large }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}

	q.PassLong = true
	err = n.sendLogs(ctx, blockAnswer, []*rpc.Call{q})

	return cmp.Or(err, q.Err)
}

// ofHeader tests that receipts are those of a block, as far as they say.
func (n *Node) ofHeader(h rpc.Header, q *rpc.Call) error {
	switch {
	case q.Receipts < max(h.Transactions, 1): // null: none
		return fmt.Errorf("%w: it has %d receipts of block %d", rpc.ErrBehind, q.Receipts, h.Number)
	case q.Block != h.Hash:
		return fmt.Errorf("%w: receipts of block %s instead of %s", rpc.ErrInvalid, q.Block, h.Hash)
	}

	return validateBlock(q.Logs, h, &Filter{})
}
