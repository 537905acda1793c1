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
	OtherCreated Count = "does not count"    // the factory creates other contracts with its deployments
	NotAsked     Count = "was not asked for" // yet
	// it has risen where the ABI knows no deployment: the factory's new version may have other events
	NotAnnounced Count = "counts contracts that no known event announces"
)

// countAll tests that the deployments of a batch are all that the factories' nonces count.
func (c *claims) countAll(ctx context.Context, batch *chain.Batch) error {
	for _, f := range c.factories.List() {
		if !f.Follows(batch.From) || !f.Follows(batch.To) {
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

// mostLocated bounds in how many blocks of a batch a nonce is explained, at some ten requests each.
const mostLocated = 8

// count tests that the deployments of a batch are all that the factory's nonce counts. While they are not, the
// block in which they first differ is proved, which has the missing one in the batch. Two endpoints that have no
// logs of old blocks agree, and are found out so. What is created in a block without any deployment is a finding.
// Beside a proved deployment it is the word of whoever tells the nonce: the rest of this batch is not compared then,
// and the next one is.
func (c *deployments) count(ctx context.Context, batch *chain.Batch) error {
	v, from := c.v, batch.From
	for located := 0; located < mostLocated && from <= batch.To; located++ {
		name, before, err := c.differs(ctx, batch, from)
		if name == "" || err != nil {
			return err
		}

		block, added, err := c.locate(ctx, batch, from, name, before)
		if err != nil {
			return err
		}

		if added {
			continue
		}

		if c.deployed(batch.Logs, block, block) > 0 {
			if v.counts[c.factory] != OtherCreated {
				v.cfg.Log.InfoContext(ctx, "the factory creates other contracts with its deployments: up to the first of them its "+
					"nonce is compared in each range", slog.String("factory", c.factory.Hex()), slog.Uint64("block", block))
			}

			v.counts[c.factory] = OtherCreated

			return nil
		}

		if err := c.notAnnounced(ctx, block); err != nil {
			return err
		}

		from = block + 1
	}

	return nil
}

// differs compares the deployments from a block on with the nonce. It returns an endpoint that counts otherwise, and
// its nonce before that block.
func (c *deployments) differs(ctx context.Context, batch *chain.Batch, from uint64) (name string, nonce uint64,
	err error) {
	v := c.v
	before, err := v.nonces(ctx, c.factory, from-min(from, 1))
	if err != nil {
		return "", 0, err
	}

	after, err := v.nonces(ctx, c.factory, batch.To)
	if err != nil {
		return "", 0, err
	}

	for n, begin := range before {
		end, both := after[n]
		if both && end-begin == c.deployed(batch.Logs, from, batch.To) {
			if was := v.Counts(c.factory); was == NotAsked || was == Uncounted {
				v.counts[c.factory] = Counted
			}

			return "", 0, nil
		}

		if both {
			name, nonce = n, begin
		}
	}

	if name != "" {
		return name, nonce, nil
	}

	if v.counts[c.factory] != Uncounted {
		v.cfg.Log.WarnContext(ctx, "no endpoint has the state of the factory at old blocks: its nonce is not compared "+
			"with the deployments", slog.String("factory", c.factory.Hex()), slog.Uint64("block", from))
	}

	v.counts[c.factory] = Uncounted

	return "", 0, nil
}

// locate proves the first block, from one on, in which an endpoint counts otherwise. added: that has given the batch a
// deployment. Else the nonce counts something else there, or blocks of the chain prove nothing. Where others of them
// do, the receipts may be withheld to hide a deployment, and nothing is decided without them.
func (c *deployments) locate(ctx context.Context, batch *chain.Batch, from uint64, name string,
	before uint64) (block uint64, added bool, err error) {
	low, high := from, batch.To
	for low < high {
		middle := low + (high-low)/2
		at, err := c.v.nonces(ctx, c.factory, middle)
		if err != nil {
			return 0, false, err
		}

		nonce, there := at[name]
		if !there {
			return 0, false, fmt.Errorf("%w: %s does not give the factory's nonce at block %d", chain.ErrNoHistory, name, middle)
		}

		if nonce-before == c.deployed(batch.Logs, from, middle) {
			low = middle + 1
		} else {
			high = middle
		}
	}

	if _, proved := c.proved[low]; proved {
		return low, false, nil
	}

	known := chain.ByBlock(batch.Logs)[low]
	err = c.prove(ctx, batch, low)
	if unproved := errors.Is(err, chain.ErrUnproved) && !errors.Is(err, chain.ErrWithheld); err != nil && !unproved {
		return 0, false, fmt.Errorf("the factory's nonce counts other deployments in block %d than there are logs: %w", low, err)
	}

	return low, err == nil && !slices.EqualFunc(known, chain.ByBlock(batch.Logs)[low], chain.SameLog), nil
}

// notAnnounced notes that the factory has created contracts in a block without a deployment, unless its own
// construction did.
func (c *deployments) notAnnounced(ctx context.Context, block uint64) error {
	before, err := c.v.cfg.Source.Nonces(ctx, c.factory, block-min(block, 1))
	if err != nil {
		return fmt.Errorf("nonce of factory %s before block %d: %w", c.factory, block, err)
	}

	for _, nonce := range before {
		if nonce == 0 {
			return nil
		}
	}

	c.v.counts[c.factory] = NotAnnounced
	c.created = append(c.created, Difference{Kind: Unannounced,
		Chain: contract.Event{Emitter: c.factory, Escrow: c.factory, BlockNumber: block, BlockHash: c.proved[block].Hash},
		Why:   "the factory has created a contract in this block, and no event that the ABI knows announces it"})

	return nil
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

// deployed is how many logs of some blocks are the factory's deployments.
func (c *deployments) deployed(logs []types.Log, from, to uint64) (n uint64) {
	for i := range logs {
		l := &logs[i]
		if l.BlockNumber < from || l.BlockNumber > to || l.Address != c.factory {
			continue
		}

		if e, err := c.v.cfg.ABI.Decode(l); err == nil && e.Name == contract.Deployed {
			n++
		}
	}

	return n
}
