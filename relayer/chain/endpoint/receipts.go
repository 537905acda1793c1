package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
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
	if q.Displaced || proof.Root(q.Encoded) != h.Receipts {
		return nil, q.Bytes, n.unproved(ctx, law, h, "receipts", fmt.Appendf(nil, "%x", q.Encoded))
	}

	law.Kept()
	if len(q.Logs) > 0 {
		err = n.ownTransactions(ctx, h, q)
	}

	return q.Logs, q.Bytes, err
}

// lacksMethod says whether a node answered that it has no such method, in words or with a code of its own.
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

// ownTransactions tests that receipts are of the transactions in the block, each in its place. Where the
// chain has transactions that cannot be encoded here, their hashes are the node's word.
func (n *Node) ownTransactions(ctx context.Context, h rpc.Header, receipts *rpc.Call) error {
	law := n.cfg.Laws.Bodies
	q := &rpc.Call{Method: rpc.GetByHash, Params: `["` + h.Hash.Hex() + `",true]`}
	if err := n.Do(ctx, q); err != nil {
		return err
	}

	if q.Err != nil || q.Null() {
		return rpc.AsBehind(cmp.Or(q.Err, rpc.ErrBehind))
	}

	hashes, root, ok := proof.Transactions(q.Result)
	switch {
	case !ok && !law.Holds():
		return nil
	case !ok || root != h.Body:
		return n.unproved(ctx, law, h, "transactions", q.Result)
	case !slices.Equal(hashes, receipts.Hashes):
		return n.unproved(ctx, law, h, "transactions' hashes in the receipts", fmt.Appendf(nil, "%x", receipts.Hashes))
	}

	law.Kept()

	return nil
}

// oneByOne asks for the receipts of a block that the node does not give together.
func (n *Node) oneByOne(ctx context.Context, h rpc.Header, q *rpc.Call) error {
	block := rpc.ByHash(h.Hash)
	if err := n.Do(ctx, block); err != nil {
		return err
	}

	var list struct{ Transactions []common.Hash }
	if err := block.Decode(&list); err != nil {
		return rpc.AsBehind(err)
	}

	calls := make([]*rpc.Call, len(list.Transactions))
	for i, tx := range list.Transactions {
		calls[i] = &rpc.Call{Method: rpc.GetReceipt, Params: `["` + tx.Hex() + `"]`}
	}

	if err := n.Do(ctx, calls...); err != nil {
		return err
	}

	results := make([][]byte, len(calls))
	for i, c := range calls {
		if c.Err != nil || c.Null() {
			return rpc.AsBehind(cmp.Or(c.Err, rpc.ErrBehind))
		}

		results[i] = c.Result
	}

	if err := q.DecodeReceipts(results); err != nil {
		return err
	}

	return n.ofHeader(h, q)
}

// unwilling says whether an error means that a node does not give such an answer, however often it
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
	if err := n.sendLogs(ctx, blockAnswer, []*rpc.Call{q}); err != nil || q.Err != nil {
		return rpc.AsBehind(cmp.Or(err, q.Err))
	}

	return n.ofHeader(h, q)
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
