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

		e.Answer = command.Answer{CommandID: f.CommandID, Transaction: r.Hash.Hex(), Block: int64(r.Block),
			BlockHash: r.BlockHash.Hex(), FeePaid: r.FeePaid.String()}
		switch {
		case a.Purpose == purposeVoid:
			why := f.givenUp()
			e.State, e.Code, e.Detail = command.Voided, why.code, why.detail
		case !r.Succeeded:
			e.State, e.Code = command.Reverted, command.CodeReverts
		case !acted(r, &f.request):
			e.State, e.Code = command.Reverted, command.CodeNoEffect
			e.Detail = "the transaction succeeded and the escrow emitted nothing: a reorganisation took the escrow away"
		default:
			e.State = command.Done
			if int64(r.Time) > f.ExpiresAt.Unix() {
				e.State = command.DoneLate
			}

			e.event = event{e.Transaction, effects[f.Kind]}
		}

		return e, true
	}

	return e, false
}

// supersededBy is the answer to a command with a nonce that somebody else's transaction has used, or none.
func supersededBy(f *flight, found *Transaction) ending {
	a := command.Answer{CommandID: f.CommandID, State: command.Superseded, Code: command.CodeForeignNonce,
		Block: int64(found.Block), BlockHash: found.BlockHash.Hex(), Detail: fmt.Sprintf("nonce %d was used by code of the "+
			"account, or by an authorization of its key (EIP-7702): up to this block nobody has sent a transaction with it",
			f.Nonce)}
	if found.Hash != (common.Hash{}) {
		a.Transaction = found.Hash.Hex()
		a.Detail = fmt.Sprintf("nonce %d was used by a transaction that was not signed here", f.Nonce)
	}

	return ending{Answer: a}
}
