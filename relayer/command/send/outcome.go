package send

import (
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/relayer/column"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
)

// hashesOf are those of all that was signed, by command.
func hashesOf(flights []*flight) [][]common.Hash {
	return column.Of(flights, func(f **flight) []common.Hash { return (*f).hashes() })
}

// outcomeOf is what the receipts say of a command.
func outcomeOf(f *flight, receipts map[common.Hash]*evm.Receipt) (e ending, ok bool) {
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
			e.State = command.Done // or late, by the event's block
			e.event = event{e.Transaction, effects[f.Kind]}
		}

		return e, true
	}

	return e, false
}

// supersededBy is the answer to a command with a nonce that somebody else's transaction has used, or none.
func supersededBy(f *flight, found *evm.Transaction) ending {
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

// acted reports whether a transaction that succeeded reached its contract. A call to an address without
// code succeeds as well, and does nothing: after a reorganisation that took the escrow away.
func acted(r *evm.Receipt, asked *request) bool {
	contract := asked.Escrow
	if asked.Kind == command.Create {
		contract = common.HexToAddress(asked.Factory)
	}

	return slices.ContainsFunc(r.Logs, func(l evm.Log) bool { return l.Address == contract })
}
