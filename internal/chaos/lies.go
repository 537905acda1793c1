package chaos

import (
	"context"
	"fmt"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
)

// lies are the ways in which NodeLies deceives. Events are invented in two places at once: each alone makes a block
// that contradicts itself. A valid chain of its own, with events in each block, is shorter than the chain, as long or
// longer: of two endpoints that name different chains neither is proved, so the fleet waits, and publishes nothing of
// either.
var lies = [][]faults.Mode{
	{faults.Bits, faults.Receipts}, {faults.Changed}, {faults.Withheld}, {faults.Blank}, {faults.Repeated},
	{faults.Hidden}, {faults.Unindexed}, {faults.Odd}, {faults.Own}, {faults.Own}, {faults.Own},
}

// firstOwn is the first of lies with a chain of its own, ahead by how much each of them is longer than the chain.
const firstOwn = 8

var ahead = []int{-2, 0, 40}

// lyingPlan is a short run whose one fault is a way to deceive.
func lyingPlan(way int) Plan {
	return planOf(8*sec, Fault{Kind: NodeLies, N: way, At: sec, For: 6 * sec, Keep: true})
}

// lie has the first endpoint deceive for the time of the fault, with Keep until it was asked at least, and says how
// often it did.
func (r *run) lie(ctx context.Context, f Fault) error {
	var told []*faults.Injected
	hits := func() (n int) {
		for _, l := range told {
			n += l.Hits()
		}

		return n
	}
	defer func() {
		for _, l := range told {
			l.Remove()
		}

		r.saw("%s %v: %d answers", f.Kind, lies[f.N], hits())
	}()
	begun, lied := time.Now(), uint64(0)
	for time.Since(begun) < f.For || f.Keep && hits() == 0 && time.Since(begun) < settleTimeout {
		head, logs, err := r.forge(ctx)
		if err != nil {
			return err
		}

		if invents := len(lies[f.N]) > 1; head > lied && (invents || lied == 0) {
			lied = head
			for _, mode := range lies[f.N] {
				lie := faults.Fault{Mode: mode, N: head + 1, Logs: logs}
				if mode == faults.Own { // from a block that has been published on
					lie.N, lie.Ahead = head-min(head-1, uint64(r.plan.Confirmations)), ahead[f.N-firstOwn]
				}

				told = append(told, r.nodes.front[0].Inject(lie))
			}
		}

		if !pause(ctx, r.plan.BlockTime/4) {
			return nil
		}
	}

	return nil
}

// forge repeats in the newest block an event of one before it: a second approval, or a second release.
func (r *run) forge(ctx context.Context) (head uint64, logs []types.Log, err error) {
	r.mining.Lock()
	defer r.mining.Unlock()
	c := r.chain.Client()
	newest, err := c.HeaderByNumber(ctx, nil)
	if err != nil {
		return 0, nil, fmt.Errorf("read the newest block: %w", err)
	}

	head = newest.Number.Uint64()
	from := new(big.Int).SetUint64(head - min(head, 20))
	if logs, err = c.FilterLogs(ctx, ethereum.FilterQuery{FromBlock: from}); err != nil {
		return 0, nil, fmt.Errorf("read the newest logs: %w", err)
	}

	for i := range logs {
		logs[i].BlockNumber, logs[i].BlockHash, logs[i].BlockTimestamp = head, newest.Hash(), newest.Time
		logs[i].TxHash, logs[i].Index = common.Hash{0xba, 0xd0}, uint(4000+i)
	}

	return head, logs[:min(len(logs), 8)], nil
}
