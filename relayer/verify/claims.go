package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// claims are what two endpoints say of a batch's blocks, and what is proved of them.
type claims struct {
	v         *Verifier
	filter    *chain.Filter
	factories *registry.Followed // as when the filter was made
	other     []types.Log        // what the second endpoint has
	by        *endpoint.Node
	proved    map[uint64]chain.Header // not Proved: it could not be
	lies      []func(context.Context) // what was said otherwise than proved, until blame
	created   []Difference            // Unannounced
}

// decode returns the events of logs that are of the ABI, without deployments by other factories, and the logs that
// are not.
func (c *claims) decode(logs []types.Log) (events []contract.Event, odd []*types.Log, err error) {
	for i := range logs {
		e, err := c.v.cfg.ABI.Decode(&logs[i])
		switch {
		case errors.Is(err, contract.ErrForeign):
			odd = append(odd, &logs[i])
		case err != nil:
			return nil, nil, err
		case e.Name != contract.Deployed || c.factories.Has(e.Emitter, e.BlockNumber):
			events = append(events, e)
		}
	}

	return events, odd, nil
}

// asked are the stored events that the reading would have. The rest was stored meanwhile, as a factory was added: its
// deployments, and what its escrows have emitted. Once its past is stored, the second reading begins again there.
func (c *claims) asked(stored []contract.Event) []contract.Event {
	now := c.v.cfg.Factories.Addresses() // after stored was read: the leader stores what it follows
	return slices.DeleteFunc(stored, func(e contract.Event) bool {
		return !c.filter.Names(e.Emitter) || e.Name == contract.Deployed && slices.Contains(now, e.Emitter) &&
			!c.factories.Has(e.Emitter, e.BlockNumber)
	})
}

// blame sets the endpoints aside that said otherwise than was proved. That is after all of the batch is proved: it
// may take both of two endpoints to tell which of the next blocks is the chain's.
func (c *claims) blame(ctx context.Context) {
	for _, lie := range c.lies {
		lie(ctx)
	}
}

// second reads a batch from another endpoint.
func (c *claims) second(ctx context.Context, batch *chain.Batch) error {
	c.other = []types.Log{}
	for other, err := range c.v.cfg.Source.ReadOther(ctx, *batch) {
		if err != nil {
			return fmt.Errorf("read from a second endpoint: %w", err)
		}

		c.other, c.by = append(c.other, other.Logs...), other.By
	}

	return nil
}

// settle makes the batch's logs what is true of both readings: blocks on which they differ are proved, and
// those with deployments that contradict the factory's nonce. It returns contracts that were deployed and that
// the filter does not name.
func (c *claims) settle(ctx context.Context, batch *chain.Batch) (unnamed []common.Address, err error) {
	mine, theirs := chain.ByBlock(batch.Logs), chain.ByBlock(c.other)
	numbers := map[uint64]bool{}
	for n := range theirs {
		numbers[n] = true
	}

	for n := range mine {
		numbers[n] = true
	}

	for n := range numbers {
		if !slices.EqualFunc(mine[n], theirs[n], same) {
			err := c.prove(ctx, batch, n)
			if err != nil && (!undecided(err) || !slices.EqualFunc(mine[n], theirs[n], chain.SameLog)) {
				return nil, fmt.Errorf("two endpoints differ on block %d: %w", n, err)
			}
		}
	}

	if err := c.countAll(ctx, batch); err != nil {
		return nil, err
	}

	events, _, err := c.decode(batch.Logs)
	for i := range events {
		if e := &events[i]; e.Name == contract.Deployed && !c.filter.Names(e.Escrow) {
			unnamed = append(unnamed, e.Escrow)
		}
	}

	return unnamed, err
}

// same reports whether two logs are the same, and of the same time. Nodes say the time beside the logs of a range,
// where no header vouches for it: a wrong time alone convicts no node, and one that nothing proves stays as it is.
func same(a, b types.Log) bool { return chain.SameLog(a, b) && a.BlockTimestamp == b.BlockTimestamp }

// undecided reports whether an error means that a block cannot be proved.
func undecided(err error) bool {
	return errors.Is(err, chain.ErrUnproved) || errors.Is(err, chain.ErrNoHistory)
}

// compare returns how a batch differs from what is stored, after the blocks in which it does were proved, as
// far as the chain's can be.
func (c *claims) compare(ctx context.Context, batch *chain.Batch) ([]Difference, error) {
	for {
		events, odd, err := c.decode(batch.Logs)
		if err != nil {
			return nil, err
		}

		found, err := c.differences(ctx, batch, events, odd)
		if err != nil {
			return nil, err
		}

		fresh := 0
		for i := range found {
			n := found[i].event().BlockNumber
			if _, done := c.proved[n]; done || found[i].Kind == Pruned {
				continue
			}

			fresh++
			if err := c.prove(ctx, batch, n); undecided(err) {
				c.proved[n] = chain.Header{Hash: found[i].event().BlockHash} // it stays as two endpoints say
			} else if err != nil {
				return nil, err
			}
		}

		if fresh == 0 {
			return append(found, c.created...), nil
		}
	}
}

// prove puts what is proved of a block in the place of what the batch has of it.
func (c *claims) prove(ctx context.Context, batch *chain.Batch, n uint64) error {
	h, logs, err := c.v.cfg.Source.Prove(ctx, n, c.filter)
	if err != nil {
		return err
	}

	by, said, other := batch.By, chain.ByBlock(batch.Logs)[n], chain.ByBlock(c.other)[n]
	c.lies = append(c.lies, func(ctx context.Context) {
		c.v.refute(ctx, by, said, h, logs)
		c.v.refute(ctx, c.by, other, h, logs)
	})
	c.proved[n] = h
	batch.Logs = chain.Replace(batch.Logs, map[uint64][]types.Log{n: logs})

	return nil
}
