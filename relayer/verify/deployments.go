package verify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// Count is what a factory's nonce says of its deployments.
type Count string

// A contract's nonce is 1 at first, and rises by one with each contract that it creates (EIP-161).
const (
	Counted      Count = "counts"            // it has risen by the deployments that are known
	Uncounted    Count = "cannot be asked"   // no endpoint has the state of such an old block
	OtherCreated Count = "does not count"    // the factory creates other contracts too
	NotAsked     Count = "was not asked for" // yet
)

// countAll tests that the deployments of a batch are all that the factories' nonces count.
func (c *claims) countAll(ctx context.Context, batch *chain.Batch) error {
	for _, f := range c.factories.List() {
		if c.v.counts[f.Address] == OtherCreated || !f.Follows(batch.From) || !f.Follows(batch.To) {
			continue
		}

		if err := (&deployments{c, f.Address}).count(ctx, batch); err != nil {
			return err
		}
	}

	return nil
}

// deployments are claims on what one factory has deployed.
type deployments struct {
	*claims

	factory common.Address
}

// count tests that the deployments of a batch are all that the factory's nonce counts. While they are not, the
// block in which they first differ is proved, which has the missing one in the batch. Two endpoints that have no
// logs of old blocks agree, and are found out so.
func (c *deployments) count(ctx context.Context, batch *chain.Batch) error {
	v := c.v
	before, err := v.nonces(ctx, c.factory, batch.From-min(batch.From, 1))
	if err != nil {
		return err
	}

	for {
		after, err := v.nonces(ctx, c.factory, batch.To)
		if err != nil {
			return err
		}

		wrong := "" // an endpoint that counts otherwise
		for name, from := range before {
			to, both := after[name]
			if both && to-from == c.deployed(batch.Logs, batch.To) {
				v.counts[c.factory] = Counted
				return nil
			}

			if both {
				wrong = name
			}
		}

		if wrong == "" {
			if v.counts[c.factory] != Uncounted {
				v.cfg.Log.WarnContext(ctx, "no endpoint has the state of the factory at old blocks: its nonce is not compared "+
					"with the deployments", slog.String("factory", c.factory.Hex()), slog.Uint64("block", batch.From))
			}

			v.counts[c.factory] = Uncounted

			return nil
		}

		if done, err := c.locate(ctx, batch, wrong, before[wrong]); done || err != nil {
			return err
		}
	}
}

// locate proves the block in which an endpoint first counts otherwise. done: what is proved there is what was
// known, so that the nonce counts something else; or blocks of the chain prove nothing. Where others of them do,
// the receipts may be withheld to hide a deployment, and nothing is decided without them.
func (c *deployments) locate(ctx context.Context, batch *chain.Batch, name string, before uint64) (done bool,
	err error) {
	low, high := batch.From, batch.To
	for low < high {
		middle := low + (high-low)/2
		at, err := c.v.nonces(ctx, c.factory, middle)
		if err != nil {
			return false, err
		}

		nonce, there := at[name]
		if !there {
			return false, fmt.Errorf("%w: %s does not give the factory's nonce at block %d", chain.ErrNoHistory, name, middle)
		}

		if nonce-before == c.deployed(batch.Logs, middle) {
			low = middle + 1
		} else {
			high = middle
		}
	}

	if _, proved := c.proved[low]; proved {
		return true, nil
	}

	known := chain.ByBlock(batch.Logs)[low]
	err = c.prove(ctx, batch, low)
	if unproved := errors.Is(err, chain.ErrUnproved) && !errors.Is(err, chain.ErrWithheld); err != nil && !unproved {
		return false, fmt.Errorf("the factory's nonce counts other deployments in block %d than there are logs: %w", low, err)
	}

	if err == nil && !slices.EqualFunc(known, chain.ByBlock(batch.Logs)[low], chain.SameLog) {
		return false, nil
	}

	c.v.counts[c.factory] = OtherCreated
	c.v.cfg.Log.WarnContext(ctx, "the factory creates other contracts too: its nonce is not compared with the deployments",
		slog.String("factory", c.factory.Hex()), slog.Uint64("block", low))

	return true, nil
}

// nonces is a factory's at a block, by endpoint; 0 of one that is not there yet counts as 1.
func (v *Verifier) nonces(ctx context.Context, factory common.Address, block uint64) (map[string]uint64, error) {
	list, err := v.cfg.Source.Nonces(ctx, factory, block)
	if err != nil {
		return nil, fmt.Errorf("nonce of factory %s at block %d: %w", factory, block, err)
	}

	for name, nonce := range list {
		list[name] = max(nonce, 1)
	}

	return list, nil
}

// deployed is how many logs up to a block are the factory's deployments.
func (c *deployments) deployed(logs []types.Log, to uint64) (n uint64) {
	for i := range logs {
		l := &logs[i]
		if l.BlockNumber > to || l.Address != c.factory {
			continue
		}

		if e, err := c.v.cfg.ABI.Decode(l); err == nil && e.Name == contract.Deployed {
			n++
		}
	}

	return n
}
