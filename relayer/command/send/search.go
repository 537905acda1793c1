package send

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/proof"
)

// Transaction is one that a block of the ledger's branch has.
type Transaction struct {
	Hash      common.Hash
	Block     uint64
	BlockHash common.Hash
}

// Bounds of a search: how many blocks are read in one request, and how many at most, the newest of those in question.
const (
	bodiesAtOnce = 4
	bodiesAtMost = 8192
)

// Find is Chain's. The account's nonce after a block says on which side of it the transaction is; where no node has
// that state any more, the blocks are read one after the other.
func (n *Nodes) Find(ctx context.Context, account common.Address, nonce, after uint64,
	target Block) (*Transaction, error) {
	low, high := after, target.Number // it is above low, and at high at most
	for low+1 < high {
		var used quantity
		middle := low + (high-low)/2
		q := about(&used, transactionCount, account, hexutil.Uint64(middle))
		if err := n.ask(ctx, q); err != nil {
			return nil, fmt.Errorf("find nonce %d of %s: %w", nonce, account, err)
		}

		if q.err != nil {
			break
		}

		if used.uint64() > nonce {
			high = middle
		} else {
			low = middle
		}
	}

	low = max(low, high-min(high, bodiesAtMost))
	for from := low + 1; from <= high; from += bodiesAtOnce {
		found, err := n.findIn(ctx, account, nonce, from, min(from+bodiesAtOnce-1, high), target)
		if err != nil || found != nil {
			return found, err
		}
	}

	return nil, nil //nolint:nilnil // the blocks do not have it
}

// findIn looks into the blocks from..to, of a node that is on the branch. What is found was signed by the account, and
// is under the block's hash as far as that can be computed.
func (n *Nodes) findIn(ctx context.Context, account common.Address, nonce, from, to uint64,
	target Block) (found *Transaction, err error) {
	blocks, bodies := make([]json.RawMessage, to-from+1), make([][][]byte, to-from+1)
	var questions []*question
	for i := range blocks {
		number := from + uint64(i)
		q := about(&blocks[i], "eth_getBlockByNumber", hexutil.Uint64(number), true).checked(func() error {
			var h header
			if err := json.Unmarshal(blocks[i], &h); err != nil || h.Number.n == nil || h.Number.uint64() != number {
				return fmt.Errorf("read block %d: the answer is not that block", number)
			}

			whole := !slices.ContainsFunc(bodies[i], func(tx []byte) bool { return tx == nil })
			if p, ok := proof.Header(blocks[i], h.Hash); ok && whole && proof.Root(bodies[i]) != p.TxHash {
				return fmt.Errorf("read block %d: its transactions are not those under its hash", number)
			}

			if i == 0 {
				found = nil // of what another node has said
			}

			if hash := signedBy(bodies[i], account, nonce); hash != (common.Hash{}) {
				found = &Transaction{Hash: hash, Block: number, BlockHash: h.Hash}
			}

			return nil
		})
		q.Body = &bodies[i]
		questions = append(questions, q)
	}

	if err := n.askAll(ctx, append(questions, stands(target))...); err != nil {
		return nil, fmt.Errorf("find nonce %d of %s: %w", nonce, account, err)
	}

	return found, nil
}

// signedBy is the transaction that an account has signed with a nonce; zero: there is none.
func signedBy(body [][]byte, account common.Address, nonce uint64) common.Hash {
	for _, raw := range body {
		var tx types.Transaction
		if tx.UnmarshalBinary(raw) != nil || tx.Nonce() != nonce {
			continue
		}

		if from, err := types.Sender(types.LatestSignerForChainID(tx.ChainId()), &tx); err == nil && from == account {
			return tx.Hash()
		}
	}

	return common.Hash{}
}
