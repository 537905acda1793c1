package start

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
)

// reader is the part of the chain that the start reads.
type reader interface {
	// Head returns the newest block of any endpoint.
	Head(ctx context.Context) (chain.Header, error)
	// Code returns the code at an address as of a block, or chain.ErrNoHistory.
	Code(ctx context.Context, address common.Address, block uint64) ([]byte, error)
}

// errStartBlock means that with this START_BLOCK events would be missed, or none would ever be
// read.
var errStartBlock = errors.New("START_BLOCK")

// checkStart verifies a START_BLOCK before it is stored: from then on the stored one is used. It
// returns errStartBlock if the block is above the head or, unless allowLate, above the factory's
// deployment. unchecked describes what could not be checked; "" if everything was.
func checkStart(ctx context.Context, c reader, factory common.Address, start uint64,
	allowLate bool) (unchecked string, err error) {
	head, err := c.Head(ctx)
	if err != nil {
		return "", err
	}

	if start > head.Number {
		return "", fmt.Errorf("%w=%d is above the newest block of the chain, %d: nothing would ever be read; "+
			"set it to the block of the factory's deployment", errStartBlock, start, head.Number)
	}

	if start == 0 || allowLate {
		return "", nil
	}

	code, err := codeBefore(ctx, c, factory, start)
	switch {
	case ctx.Err() != nil:
		return "", cmp.Or(err, context.Cause(ctx))
	case err != nil:
		return fmt.Sprintf("no endpoint of RPC_URLS tells of the state of block %d, so "+
			"whether the factory was deployed before START_BLOCK is not known: %s", start-1, err), nil
	case len(code) == 0:
		return "", nil
	}

	deployed, exact, err := deployment(ctx, c, factory, start-1)
	if err != nil {
		return "", err
	}

	where := fmt.Sprintf("in block %d", deployed)
	if !exact {
		where = fmt.Sprintf("in block %d or before it (no endpoint of RPC_URLS tells of older state)", deployed)
	}

	return "", fmt.Errorf("%w=%d is above the deployment of the factory %s, which was %s: "+
		"escrows deployed in between would never be found; set START_BLOCK=%d, or ALLOW_LATE_START=true if that is what you want",
		errStartBlock, start, factory, where, deployed)
}

// codeTries is how often the code is requested after an error that is not a node's answer: the
// network may be disturbed. A node's answer, of any kind, is final.
const codeTries = 3

// codeBefore returns the code of the factory before the first block.
func codeBefore(ctx context.Context, c reader, factory common.Address, start uint64) (code []byte, err error) {
	for range codeTries {
		code, err = c.Code(ctx, factory, start-1)
		if _, said := errors.AsType[*chain.NodeError](err); err == nil || said || errors.Is(err, chain.ErrNoHistory) {
			break
		}
	}

	return code, err
}

// deployment finds the first block in which the factory had code, by bisection between 0 and high,
// in which it has. If the endpoints have discarded older state the result is inexact: the
// deployment may be in an earlier block.
func deployment(ctx context.Context, c reader, factory common.Address, high uint64) (block uint64,
	exact bool, err error) {
	low := uint64(0) // below it there is no code, or the state is unknown
	exact = true
	for low < high {
		middle := low + (high-low)/2
		code, err := c.Code(ctx, factory, middle)
		switch {
		case ctx.Err() != nil:
			return 0, false, context.Cause(ctx)
		case err != nil: // of any kind: the state is unknown
			low, exact = middle+1, false
		case len(code) == 0:
			low, exact = middle+1, true
		default:
			high = middle
		}
	}

	return high, exact, nil
}

// prepareChain makes the database follow the factories of FACTORY_ADDRESS. The start block of one that it does not
// follow yet is checked first; of the others the database's counts.
func (c *Checks) prepareChain(ctx context.Context) error {
	migrated := !c.Trial || c.checkSchema(ctx) == nil // a trial does not migrate
	known, err := registry.Factories(ctx, c.DB.Pool, c.Config.ChainID)
	if err != nil && migrated {
		return err
	}

	for _, f := range c.Config.Factories {
		at := slices.IndexFunc(known, func(k registry.Factory) bool { return k.Address == f.Address })
		if at >= 0 {
			c.compareStart(ctx, f, known[at])
			continue
		}

		unchecked, err := checkStart(ctx, c.Source, f.Address, uint64(f.Start), c.Config.AllowLateStart)
		if err != nil {
			return err
		}

		if unchecked != "" {
			c.Log.WarnContext(ctx, "start block not checked", slog.Int64("block", f.Start), slog.String("reason", unchecked))
		}
	}

	if !migrated {
		return nil
	}

	left, err := c.prepareFactories(ctx)
	if err != nil {
		return err
	}

	if len(left) > 0 {
		c.Log.WarnContext(ctx, "this database follows factories that FACTORY_ADDRESS leaves out: they are followed on; name them, "+
			"or retire them with `escrow-relayer factory retire`", slog.Any("factories", left))
	}

	if c.Trial {
		return nil
	}

	return c.Ledger.Follow(ctx, c.Followed)
}

// prepareFactories makes the database follow those of FACTORY_ADDRESS; a trial takes that back.
func (c *Checks) prepareFactories(ctx context.Context) (left []common.Address, err error) {
	if !c.Trial {
		return registry.Prepare(ctx, c.DB.Pool, c.Config.ChainID, c.Config.Factories)
	}

	tx, err := c.DB.Pool.Begin(ctx)
	if err != nil {
		return nil, err
	}

	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()

	return registry.Prepare(ctx, tx, c.Config.ChainID, c.Config.Factories)
}

// compareStart logs what a start block differs in from the stored one, and that a factory is retired.
func (c *Checks) compareStart(ctx context.Context, given, known registry.Factory) {
	blocks := []any{slog.String("factory", known.Address.Hex()), slog.Int64("database", known.Start),
		slog.Int64("variable", given.Start)}
	switch {
	case known.Retired > 0:
		c.Log.WarnContext(ctx, "a factory of FACTORY_ADDRESS is retired: its escrows are followed to their end, and no new ones",
			slog.String("factory", known.Address.Hex()), slog.Int64("from_block", known.Retired))
	case known.Start < given.Start:
		c.Log.InfoContext(ctx,
			"this database reads a factory from an earlier block than START_BLOCK says; the database's counts", blocks...)
	case known.Start > given.Start:
		c.Log.WarnContext(ctx, "this database reads a factory from a later block than START_BLOCK says; the database's counts, "+
			"and what lies between was never read: `escrow-relayer rewind` reads it", blocks...)
	}
}
