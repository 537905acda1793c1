package endpoint

import (
	"context"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// Provable is what a node's answers prove.
type Provable struct {
	Hashes   bool   // a block's hash is Ethereum's of its header
	Receipts uint64 // the block whose receipts were asked for; 0: no block near the head has logs
	Unproved error  // why they do not prove its logs; nil: they do, where Hashes

	// what it said when asked for the factory's nonce before the first block that is needed; nil: it has that state
	StateErr  error
	Created   uint64 // contracts that the factory has created since, by its nonce
	CreatedAt uint64 // the block of the last of them
	InBlock   uint64 // how many of them are in that block
	Announced uint64 // how many logs of that block announce an escrow; the nonce counts where this is InBlock
	CountErr  error  // why that is not known; nil: it is, or there is none of them
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

// probeNonce finds out whether the factory's nonce counts its deployments: in the block of the last contract that it
// created, as many logs announce one.
func (n *Node) probeNonce(ctx context.Context, p *Provable, factory common.Address, announces []common.Hash,
	start, head uint64) {
	var before, now uint64
	start = min(start-min(start, 1), head)
	if before, p.StateErr = n.nonce(ctx, factory, start); p.StateErr != nil {
		return
	}

	if now, p.CountErr = n.nonce(ctx, factory, head); p.CountErr != nil || now <= before {
		return
	}

	p.Created = now - before
	below, at := narrow(ctx, start, head, 0, archiveProbes, func(block uint64) bool {
		nonce, err := n.nonce(ctx, factory, block)
		if err != nil {
			p.CountErr = err
		}

		return nonce < now
	})
	if p.CountErr != nil {
		return
	}

	var last uint64
	if last, p.CountErr = n.nonce(ctx, factory, below); p.CountErr != nil {
		return
	}

	p.CreatedAt, p.InBlock = at, now-last
	a, err := n.logs(ctx, query{where: blockRange(at, at),
		filter: &Filter{Addresses: []common.Address{factory}, Topics: announces}})
	p.Announced, p.CountErr = uint64(len(a.logs)), err
}

// nonce asks for the nonce of a contract. It is 1 before the first contract that it creates, also before it is there
// itself.
func (n *Node) nonce(ctx context.Context, of common.Address, block uint64) (uint64, error) {
	var nonce hexutil.Uint64
	params := `["` + of.Hex() + `","` + rpc.Quantity(block) + `"]`
	err := n.one(ctx, &rpc.Call{Method: rpc.GetNonce, Params: params}, &nonce)

	return max(uint64(nonce), 1), err
}
