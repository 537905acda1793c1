package send

import (
	"context"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

// receiptsOf reads the receipts of all that was signed for commands with nonces that are used: of what is in blocks of
// the branch. Where a node has none for a command, the others are asked.
func receiptsOf(ctx context.Context, chain Chain, branch Block, flights []*flight) (map[common.Hash]*Receipt, error) {
	receipts := map[common.Hash]*Receipt{}
	ask := func(hashes []common.Hash, some bool) error {
		found, err := chain.Receipts(ctx, branch, hashes, some)
		for _, r := range found {
			if r != nil {
				receipts[r.Hash] = r
			}
		}

		return err
	}
	var all []common.Hash
	for _, f := range flights {
		all = append(all, f.hashes()...)
	}

	if err := ask(all, false); err != nil {
		return nil, err
	}

	for _, f := range flights {
		if !slices.ContainsFunc(f.hashes(), func(h common.Hash) bool { return receipts[h] != nil }) {
			if err := ask(f.hashes(), true); err != nil {
				return nil, err
			}
		}
	}

	return receipts, nil
}

// outcomeOf is what the receipts say of a command.
func outcomeOf(f *flight, receipts map[common.Hash]*Receipt) (e ending, ok bool) {
	for _, a := range f.Attempts {
		r := receipts[a.Hash]
		if r == nil {
			continue
		}

		block, hash := int64(r.Block), r.BlockHash.Hex()
		e = ending{id: f.CommandID, tx: r.Hash.Hex(), block: &block, blockHash: &hash, feePaid: r.FeePaid}
		switch {
		case a.Purpose == purposeVoid:
			why := f.givenUp()
			e.state, e.code, e.detail = command.Voided, why.code, why.detail
		case !r.Succeeded:
			e.state, e.code = command.Reverted, command.CodeReverts
		case !acted(r, &f.request):
			e.state, e.code = command.Reverted, command.CodeNoEffect
			e.detail = "the transaction succeeded and the escrow emitted nothing: a reorganisation took the escrow away"
		default:
			e.state = command.Done
			if int64(r.Time) > f.ExpiresAt.Unix() {
				e.state = command.DoneLate
			}

			e.event = event{tx: e.tx, name: effects[f.Kind]}
		}

		return e, true
	}

	return e, false
}

// supersededBy is the answer to a command with a nonce that somebody else's transaction has used, or none.
func supersededBy(f *flight, found *Transaction) ending {
	block, hash := int64(found.Block), found.BlockHash.Hex()
	e := ending{id: f.CommandID, state: command.Superseded, code: command.CodeForeignNonce, block: &block,
		blockHash: &hash, detail: fmt.Sprintf("nonce %d was used by code of the account, or by an authorization of its key "+
			"(EIP-7702): up to this block nobody has sent a transaction with it", f.Nonce)}
	if found.Hash != (common.Hash{}) {
		e.tx, e.detail = found.Hash.Hex(), fmt.Sprintf("nonce %d was used by a transaction that was not signed here", f.Nonce)
	}

	return e
}
