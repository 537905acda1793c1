package evm

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

// Transaction is one that a block of the ledger's branch has. Without a hash it says that no block up to this one has
// it, which is proved by what these blocks have.
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

// Find is send.Chain's. The account's nonce after a block says on which side of it the transaction is; where no node
// has that state any more, or nobody has sent it, the blocks are read one after the other.
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

	for {
		found, proved, err := n.scan(ctx, account, nonce, low, high, target)
		whole := low == after && high == target.Number
		switch {
		case err != nil:
			return nil, err
		case found != nil:
			return found, n.stand(ctx, found.Block, found.BlockHash)
		case whole && proved:
			return &Transaction{Block: target.Number, BlockHash: target.Hash}, nil
		case whole || target.Number-after > bodiesAtMost:
			return nil, nil //nolint:nilnil // the blocks do not have it, or too few of them tell
		}

		low, high = after, target.Number // what a node says of its state is no proof
	}
}

// scan looks into the newest of the blocks above low and up to high. proved: they are all of them, and have it not.
func (n *Nodes) scan(ctx context.Context, account common.Address, nonce, low, high uint64,
	target Block) (found *Transaction, proved bool, err error) {
	from := max(low, high-min(high, bodiesAtMost)) + 1
	var before common.Hash // the block below
	for proved = from == low+1; from <= high && found == nil && err == nil; from += bodiesAtOnce {
		var whole bool
		found, whole, err = n.findIn(ctx, account, nonce, from, min(from+bodiesAtOnce-1, high), &before, target)
		proved = proved && whole
	}

	return found, proved, err
}

// findIn looks into the blocks from..to, of a node that is on the branch. What is found was signed by the account, and
// is under the block's hash as far as that can be computed. proved: it can, for all that the blocks have, and each
// names the one before it; the last one of a search is the target. So a node cannot have made one of them.
func (n *Nodes) findIn(ctx context.Context, account common.Address, nonce, from, to uint64, before *common.Hash,
	target Block) (found *Transaction, proved bool, err error) {
	first, parent := *before, *before
	blocks, bodies := make([]json.RawMessage, to-from+1), make([][][]byte, to-from+1)
	var questions []*question
	for i := range blocks {
		number := from + uint64(i)
		q := about(&blocks[i], "eth_getBlockByNumber", hexutil.Uint64(number), true).checked(func() error {
			var h header
			if err := json.Unmarshal(blocks[i], &h); err != nil || h.Number.n == nil || h.Number.uint64() != number {
				return fmt.Errorf("read block %d: the answer is not that block", number)
			}

			if i == 0 {
				found, proved, parent = nil, true, first // whatever another node has said
			}

			p, ok := proof.Header(blocks[i], h.Hash)
			linked := (parent == common.Hash{} || p.ParentHash == parent) && (number != target.Number || target.is(&h))
			parent = h.Hash
			if !ok || !linked || slices.ContainsFunc(bodies[i], func(tx []byte) bool { return tx == nil }) {
				proved = false
			} else if proof.Root(bodies[i]) != p.TxHash {
				return fmt.Errorf("read block %d: its transactions are not those under its hash", number)
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
		return nil, false, fmt.Errorf("find nonce %d of %s: %w", nonce, account, err)
	}

	*before = parent

	return found, proved, nil
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
