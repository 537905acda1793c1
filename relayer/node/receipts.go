package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/fusion-prime/escrow-relayer/relayer/rpc"
)

// receipts is what is known of a node's eth_getBlockReceipts.
type receipts struct{ given, none atomic.Bool }

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
		logs, err := n.ReadBlock(ctx, h, &Filter{})
		if len(logs) > 0 || err != nil && !unwilling(err) {
			return matching(logs, f), SizeOf(logs), err
		}
	}

	if !n.receipts.none.Load() {
		logs, err := n.readReceipts(ctx, h)
		if err == nil {
			n.receipts.given.Store(true)
			return matching(logs, f), SizeOf(logs), nil
		}

		given := n.receipts.given.Load()
		_, said := errors.AsType[*rpc.Error](err)
		behind := errors.Is(err, rpc.ErrBehind) && n.Claim().Head.Number >= h.Number+far
		if !unwilling(err) && (given || !behind && (!said || rpc.Classify(err) != rpc.Failed)) {
			return nil, 0, err
		}

		if !given && (behind || rpc.Classify(err) == rpc.Unsupported) {
			n.receipts.none.Store(true)
		}
	}

	logs, err := n.ReadStanding(ctx, h, f)

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

// readReceipts returns the logs in a block's receipts. ErrBehind: there are fewer than the block has
// transactions, as of a machine that does not have the block.
func (n *Node) readReceipts(ctx context.Context, h rpc.Header) ([]types.Log, error) {
	q := &rpc.Call{Method: rpc.GetReceipts, Params: `["` + h.Hash.Hex() + `"]`}
	if err := n.send(ctx, n.cfg.Timeout, blockAnswer, []*rpc.Call{q}); err != nil {
		return nil, rpc.AsBehind(err)
	}

	var list []struct {
		BlockHash common.Hash
		Logs      json.RawMessage
	}
	if err := q.Decode(&list); err != nil {
		return nil, rpc.AsBehind(err)
	}

	if len(list) < max(h.Transactions, 1) {
		return nil, fmt.Errorf("%w: it has %d receipts of block %d", rpc.ErrBehind, len(list), h.Number)
	}

	logs := []types.Log{}
	for _, r := range list {
		if r.BlockHash != h.Hash {
			return nil, fmt.Errorf("%w: a receipt of block %s instead of %s", rpc.ErrInvalid, r.BlockHash, h.Hash)
		}

		if len(r.Logs) == 0 || string(r.Logs) == "null" {
			continue
		}

		some, err := rpc.ParseLogs(r.Logs)
		if err != nil {
			return nil, err
		}

		logs = append(logs, some...)
	}

	return logs, validateBlock(logs, h, &Filter{})
}
