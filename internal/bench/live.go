package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// jitter is by how much of a second the time between two blocks differs from it at most.
const jitter = 0.3

// Live is the time from the node's announcement of a block to its messages at the Pub/Sub server,
// at one block of 20 events per second, give or take jitter, with FINALITY=latest: with CONFIRMATIONS
// the wait for the blocks on top would hide everything else. The other settings that matter have their
// defaults.
func Live(ctx context.Context, o *Options) (figures []Figure, err error) {
	for _, way := range []struct {
		transport string
		p50, p99  float64 // targets, ms
	}{{"ws", 20, 100}, {"http", 250, 1100}} {
		latencies, items, err := live(ctx, o, way.transport)
		if err != nil {
			return nil, fmt.Errorf("live over %s: %w", way.transport, err)
		}

		name := "live." + way.transport
		// the messages of one block come together, so blocks are what counts, not messages
		figures = append(figures,
			Figure{Name: name + ".p50", Unit: "ms", Q: 0.5, Most: way.p50, Needed: 30 * perBlock, Samples: latencies},
			Figure{Name: name + ".p99", Unit: "ms", Q: 0.99, Most: way.p99, Needed: 100 * perBlock, Samples: latencies},
			Figure{Name: name + ".rpc", Unit: "items/block", Q: 0.5, Samples: []float64{items}})
	}

	return figures, nil
}

// live is the latency in ms of each message, and the requests per block, at one block per second.
func live(ctx context.Context, o *Options, transport string) (latencies []float64, items float64, err error) {
	l, err := lab.Start(ctx, lab.Options{Bin: o.Bin, Postgres: testpg.Options{Durable: true}})
	if err != nil {
		return nil, 0, err
	}

	defer func() { err = errors.Join(err, l.Close()) }()
	load, err := testchain.OpenLoad(ctx, l.Chain, l.Contracts)
	if err != nil {
		return nil, 0, err
	}
	clones, err := load.Clone(ctx, perBlock)
	if err != nil {
		return nil, 0, err
	}

	url := map[string]string{"ws": l.Chain.WS(), "http": l.Chain.HTTP()}[transport]
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute+time.Duration(o.Blocks)*2*time.Second)
	defer cancel()
	p, err := l.RunReady(ctx, "live", 0, 1, map[string]string{
		"FACTORY_ADDRESS": l.Contracts.Load.Hex(), "ESCROW_ABI": contracts.NoiseMetaData.ABI,
		"FINALITY": "latest", "RPC_URLS": url, "VERIFY_INTERVAL": "30s",
		"LOG_LEVEL": "warn",
	})
	if err != nil {
		return nil, 0, err
	}

	if err := l.Received.Wait(ctx, perBlock); err != nil {
		return nil, 0, err
	}

	return measureLive(ctx, o, l, p, load, clones)
}

// measureLive measures a relayer that has published everything and has nothing else to do.
func measureLive(ctx context.Context, o *Options, l *lab.Lab, p *lab.Process, load *testchain.Load,
	clones []common.Address) (latencies []float64, items float64, err error) {
	blocks, stop, err := heads(ctx, l.Chain.WS())
	if err != nil {
		return nil, 0, err
	}
	defer stop()
	before, err := requests(ctx, p)
	if err != nil {
		return nil, 0, err
	}

	published := l.Received.Len()
	if err := emitEverySecond(ctx, load, clones, o.Blocks); err != nil {
		return nil, 0, err
	}

	all := published + len(clones)*o.Blocks
	if err := l.Received.Wait(ctx, all); err != nil {
		return nil, 0, fmt.Errorf("received %d of %d messages: %w", l.Received.Len(), all, err)
	}

	after, err := requests(ctx, p)
	if err != nil {
		return nil, 0, err
	}

	latencies, err = sinceAnnounced(l.Received.Messages()[published:], blocks)

	return latencies, (after - before) / float64(o.Blocks), err
}

// emitEverySecond mines blocks with one event of each clone. The time between two is a second, give
// or take jitter.
func emitEverySecond(ctx context.Context, load *testchain.Load, clones []common.Address, blocks int) error {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same blocks each time
	next := time.Now()
	for range blocks {
		next = next.Add(time.Duration((1 + jitter*(2*random.Float64()-1)) * float64(time.Second)))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Until(next)):
		}

		if err := load.Emit(ctx, clones, 1); err != nil {
			return err
		}
	}

	return nil
}

// sinceAnnounced is the time in ms from the announcement of its block to each message.
func sinceAnnounced(messages []testpubsub.Message, heads func(uint64) (time.Time, bool)) (ms []float64, err error) {
	for _, m := range messages {
		block, err := strconv.ParseUint(m.Attributes[message.AttrBlockNumber], 10, 64)
		if err != nil {
			return nil, err
		}

		if at, ok := heads(block); ok {
			ms = append(ms, milliseconds(m.Received.Sub(at)))
		}
	}

	return ms, nil
}

// heads notes when a node announces which block, until it is stopped.
func heads(ctx context.Context, url string) (at func(uint64) (time.Time, bool), stop func(), err error) {
	return announced(ctx, url, func(h *types.Header) uint64 { return h.Number.Uint64() },
		func(c *rpc.Client, to chan<- *types.Header) (ethereum.Subscription, error) {
			return ethclient.NewClient(c).SubscribeNewHead(ctx, to)
		})
}

// announced notes when a node tells a subscription of what, by its key, until it is stopped.
func announced[E any, K comparable](ctx context.Context, url string, key func(E) K,
	subscribe func(*rpc.Client, chan<- E) (ethereum.Subscription, error)) (at func(K) (time.Time, bool), stop func(),
	err error) {
	client, err := rpc.DialContext(ctx, url)
	if err != nil {
		return nil, nil, err
	}

	told := make(chan E, 4096)
	sub, err := subscribe(client, told)
	if err != nil {
		client.Close()
		return nil, nil, err
	}

	var mu sync.Mutex
	seen := map[K]time.Time{}
	ended := make(chan struct{})
	go func() { // ends with the subscription
		defer close(ended)
		for {
			select {
			case e := <-told:
				now := time.Now()
				mu.Lock()
				seen[key(e)] = now
				mu.Unlock()
			case <-sub.Err():
				return
			}
		}
	}()
	at = func(k K) (time.Time, bool) {
		mu.Lock()
		defer mu.Unlock()
		t, ok := seen[k]

		return t, ok
	}

	return at, func() { sub.Unsubscribe(); <-ended; client.Close() }, nil
}

// requests that a relayer has made at the chain's nodes since it started; each call of a batch counts.
func requests(ctx context.Context, p *lab.Process) (float64, error) {
	m, err := p.Metrics(ctx)
	if err == nil && m["relayer_rpc_requests_total"] == nil {
		err = fmt.Errorf("read the metrics of %s: its requests are not among them", p.ID)
	}

	return m.Sum("relayer_rpc_requests_total"), err
}
