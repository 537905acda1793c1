package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/core/types"

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
	err := n.sendLogs(ctx, n.cfg.MaxBytes, []*rpc.Call{q})
	if errors.Is(cmp.Or(err, q.Err), rpc.ErrTooLarge) {
		select {
		case n.cfg.Large <- struct{}{}:
			defer func() { <-n.cfg.Large }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}

		q.PassLong = true
		err = n.sendLogs(ctx, blockAnswer, []*rpc.Call{q})
	}

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
