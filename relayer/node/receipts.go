package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/core/types"

	"github.com/fusion-prime/escrow-relayer/relayer/rpc"
)

// fewTransactions is up to how many receipts are asked for first: fewer bytes than a block of an
// ordinary chain has, and where most blocks have no logs, all logs of the block prove nothing.
const fewTransactions = 8

// ReadSilent is ReadWhole of a block whose bloom filter says nothing, so that an empty answer proves
// itself, as far as the node allows. A header from the same batch would prove nothing: a gateway may
// have asked another machine for it. All logs of a block do, if it has any, and its receipts. A node
// that gives no receipts is believed with the header; one that has none of a block more than far
// blocks below its head, and never gave any, is such a node.
func (n *Node) ReadSilent(ctx context.Context, h rpc.Header, f *Filter, far uint64) (match []types.Log, size int,
	err error) {
	few := 0 < h.Transactions && h.Transactions <= fewTransactions
	if !few && (f.Addresses != nil || len(f.Topics) > 0) {
		a, err := n.readAll(ctx, h, f)
		if a.all > 0 || err != nil && !unwilling(err) {
			return a.logs, a.bytes, err
		}
	}

	silent := false // it has never answered for receipts
	if !n.noReceipts.holds() {
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
	err := n.sendLogs(ctx, blockAnswer, []*rpc.Call{q})
	switch {
	case err != nil || q.Err != nil:
		return rpc.AsBehind(cmp.Or(err, q.Err))
	case q.Receipts < max(h.Transactions, 1): // null: none
		return fmt.Errorf("%w: it has %d receipts of block %d", rpc.ErrBehind, q.Receipts, h.Number)
	case q.Block != h.Hash:
		return fmt.Errorf("%w: receipts of block %s instead of %s", rpc.ErrInvalid, q.Block, h.Hash)
	}

	return validateBlock(q.Logs, h, &Filter{})
}
