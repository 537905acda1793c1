package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// rollback rolls the chain back to the fork, once it has proved that the block before a position is
// not canonical. It always returns an error, since the reading begins again, after a pause:
// ledger.ErrMoved when the chain has been rolled back, here or by another instance, and a readError
// with chain.ErrDisagree when that block stands, so that the source, and not the chain, is wrong.
func rollback(ctx context.Context, cfg *Config, at ledger.Position) error {
	header, stands, err := instead(ctx, cfg.Source, at)
	if err != nil {
		return err
	}

	if stands {
		return &readError{fmt.Errorf("%w: what was read does not follow block %d (%s), which the chain has",
			chain.ErrDisagree, at.Next-1, at.Hash)}
	}

	fork, err := findFork(ctx, cfg, header)
	if err != nil {
		return fmt.Errorf("find the fork below block %d: %w", at.Next-1, err)
	}

	rolled, err := cfg.Ledger.Rollback(ctx, at, fork)
	if err != nil {
		return err
	}

	if rolled.Done {
		cfg.Metrics.reorg(rolled.Depth)
		level := slog.LevelError
		if cfg.Latest {
			level = slog.LevelInfo
		}

		cfg.Log.Log(ctx, level, "chain reorganised deeper than the configured finality: rolled back",
			slog.Int64("block", fork.Next-1), slog.Int64("depth", rolled.Depth),
			slog.Int("orphaned_events", rolled.Orphaned), slog.Int("escrows", rolled.Escrows))
	}

	return fmt.Errorf("%w: back to block %d", ledger.ErrMoved, fork.Next-1)
}

// branched runs a commit, which may meet a block that another instance has processed. If that block
// is not canonical, the chain was reorganised: a reorgError. If it is canonical and inside the
// range, the commit is repeated with it. If it is canonical and at the range's last height, the
// range is not: ErrMoved, read it again. If it is canonical and before the range, the committed
// block there is not: a reorgError too.
func branched(ctx context.Context, src Source, from ledger.Position, last int64,
	commit func(checked ledger.Block) error) error {
	var known ledger.Block
	for {
		err := commit(known)
		other := new(ledger.BranchError)
		if !errors.As(err, &other) {
			return err
		}

		if other.Block == known && known != (ledger.Block{}) {
			// a stored event is in the way, though its block is canonical
			return fmt.Errorf("%w: %w", ledger.ErrMoved, other)
		}

		known = other.Block
		if err := checked(ctx, src, ledger.Position{Next: known.Number + 1, Hash: known.Hash}); err != nil {
			return err
		}

		if known.Number < from.Next {
			return &reorgError{from}
		}

		if known.Number == last {
			return fmt.Errorf("%w: %w", ledger.ErrMoved, other)
		}
	}
}

// findFork returns the position after the highest remembered block on the branch of a canonical
// block. Commits by range remember only the last block of each, so the fork may be too low: that
// costs blocks, and their events are deduplicated.
func findFork(ctx context.Context, cfg *Config, tip chain.Header) (ledger.Position, error) {
	const page = 32
	below := int64(tip.Number)
	for {
		blocks, err := cfg.Ledger.Blocks(ctx, below, page)
		if err != nil {
			return ledger.Position{}, err
		}

		if len(blocks) == 0 {
			return cfg.Ledger.Start(ctx)
		}

		numbers := make([]uint64, len(blocks))
		for i, b := range blocks {
			numbers[i] = uint64(b.Number)
		}

		headers, err := cfg.Source.Branch(ctx, tip, numbers...)
		if err != nil {
			return ledger.Position{}, err
		}

		for i, b := range blocks {
			if headers[i].Hash == b.Hash {
				return ledger.Position{Next: b.Number + 1, Hash: b.Hash}, nil
			}

			below = b.Number
		}
	}
}
