package ledger

import (
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
)

// ErrMoved means that the cursor or its epoch differs from what the commit names: a claim, a
// release, a rollback or another owner came first. The database is unchanged.
var ErrMoved = errors.New("the cursor moved or the right to commit changed hands")

// ErrFenced means that the epoch is over: every right held under it is void.
var ErrFenced = errors.New("fenced: the epoch is over")

// BranchError means that two branches of the chain meet, at most one of them canonical: the
// named block was remembered before, or holds a stored event, and differs both from the commit's
// block at that height and from the one that the caller has verified on the chain. The database is
// unchanged.
type BranchError struct{ Block Block }

func (e *BranchError) Error() string {
	return fmt.Sprintf("block %d was processed before as %s: one of the two is not canonical",
		e.Block.Number, e.Block.Hash)
}

// Block is a processed block with a remembered hash.
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
// unknown). A rollback raises the generation of every cursor, moved or not: what was read earlier,
// of the chain or of the registry, can no longer be committed.
type Position struct {
	Next       int64
	Hash       common.Hash
	Generation int64
}

// To is the position after a block, in the same generation.
func (p Position) To(next int64, hash common.Hash) Position {
	return Position{next, hash, p.Generation}
}

func (p Position) String() string { return fmt.Sprintf("block %d", p.Next) }

// hashColumn is the hash of the block before the position, as a column: null if unknown.
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
