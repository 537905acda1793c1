package send

import (
	"context"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

// receiptsOf reads the receipts of all that was signed for commands: of what is in blocks of the branch.
func receiptsOf(ctx context.Context, chain Chain, branch Block, flights []*flight) (map[common.Hash]*Receipt, error) {
	var hashes []common.Hash
	for _, f := range flights {
		for _, a := range f.Attempts {
			hashes = append(hashes, a.Hash)
		}
	}

	receipts := map[common.Hash]*Receipt{}
	if len(hashes) == 0 {
		return receipts, nil
	}

	found, err := chain.Receipts(ctx, branch, hashes)
	for _, r := range found {
		if r != nil {
			receipts[r.Hash] = r
		}
	}

	return receipts, err
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
			e.state, e.code = command.Voided, f.whyVoid()
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

// whyVoid is the reason why a command was given up.
func (f *flight) whyVoid() string {
	if f.CancelRequested {
		return command.CodeCancelled
	}

	return command.CodeExpired
}
