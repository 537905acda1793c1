package endpoint

import (
	"context"
	"slices"

	"github.com/ethereum/go-ethereum/core/types"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// Provable is what a node's answers prove.
type Provable struct {
	Hashes   bool   // a block's hash is Ethereum's of its header
	Receipts uint64 // the block whose receipts were asked for; 0: no block near the head has logs
	Unproved error  // why they do not prove its logs; nil: they do, where Hashes

	// what it said when asked for the factory's nonce before the first block that is needed; nil: it has that state
	StateErr error
}

// probeProofs finds out whether headers hash, and whether the receipts of the newest block that has logs, as its
// bloom filter says, prove them.
func (n *Node) probeProofs(ctx context.Context, p *Provable, head rpc.Header) {
	p.Hashes = head.Proved
	list, err := n.Headers(ctx, sample(head.Number-min(head.Number, sampled-1), head.Number))
	slices.Reverse(list)
	i := slices.IndexFunc(list, func(h rpc.Header) bool { return Telling(&h.Bloom) })
	if i < 0 {
		p.Unproved = err
		return
	}

	h := list[i]
	q := &rpc.Call{Method: rpc.GetReceipts, Params: `["` + h.Hash.Hex() + `"]`,
		Keep: func(*types.Log) bool { return true }, Encode: h.Proved}
	p.Receipts = h.Number
	_, p.Unproved = n.receiptsOf(ctx, h, q)
}
