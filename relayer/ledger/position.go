package ledger

import (
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
)

// ErrMoved means that a commit found its cursor moved or its epoch raised: a claim, a release, a
// rollback or another owner came in between. Nothing was written.
var ErrMoved = errors.New("the cursor moved or the right to commit changed hands")

// ErrFenced means that the epoch is over: whatever was held under it is void.
var ErrFenced = errors.New("fenced: the epoch is over")

// BranchError means that two branches of the chain meet, of which at most one is canonical: the
// block that it names was remembered before, or a stored event is in it, and it is neither the
// block that the commit has in its place nor one that the caller has compared with the chain.
// Nothing was written.
type BranchError struct{ Block Block }

func (e *BranchError) Error() string {
	return fmt.Sprintf("block %d was processed before as %s: one of the two is not canonical",
		e.Block.Number, e.Block.Hash)
}

// Block is a processed block whose hash is remembered.
type Block struct {
	Number int64
	Hash   common.Hash
}

func scanBlock(row pgx.CollectableRow) (b Block, err error) {
	var h string
	err = row.Scan(&b.Number, &h)
	b.Hash = common.HexToHash(h)

	return b, err
}

// Position is a cursor: the next block to process, and the hash of the block before it (zero when
// unknown). A rollback raises the generation of every cursor, also of those that it does not move:
// what was read before it, of the chain or of the registry, can no longer be committed.
type Position struct {
	Next       int64
	Hash       common.Hash
	Generation int64
}

// To is the position behind a block, in the same generation.
func (p Position) To(next int64, hash common.Hash) Position {
	return Position{next, hash, p.Generation}
}

func (p Position) String() string { return fmt.Sprintf("block %d", p.Next) }

// hashColumn is the hash of the block before the position as cursors have it: null where it is
// unknown.
func (p Position) hashColumn() *string {
	if p.Hash == (common.Hash{}) {
		return nil
	}

	return new(p.Hash.Hex())
}

// scanPosition reads next block, block hash and generation.
func scanPosition(row pgx.Row) (p Position, err error) {
	var h *string
	err = row.Scan(&p.Next, &h, &p.Generation)
	if h != nil {
		p.Hash = common.HexToHash(*h)
	}

	return p, err
}
