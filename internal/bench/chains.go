package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/migrations"
)

// Chains is what one chain and ten chains cost in one process, with 100,000 escrows of each: the time
// until all are watched, the resident memory and the connections at rest, and the latency of one chain
// with a block of 20 events per second, while the others have a block per second without events: undisturbed,
// while the node of another chain swallows what it is sent, and while another one reorganises below finality.
func Chains(ctx context.Context, o *Options) (figures []Figure, err error) {
	most := 10
	if o.Scale < 0.01 {
		most = 2
	}

	for _, n := range []int{1, most} {
		more, err := chains(ctx, o, n)
		if err != nil {
			return nil, fmt.Errorf("%d chains: %w", n, err)
		}

		figures = append(figures, more...)
	}

	return figures, nil
}

// atRest is how long a process is left alone before its memory is read: its garbage of the start is
// collected by then.
const atRest = 20 * time.Second

func chains(ctx context.Context, o *Options, n int) (figures []Figure, err error) {
	l, err := lab.Start(ctx, lab.Options{Bin: o.Bin, Postgres: testpg.Options{Durable: true}})
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, l.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute+time.Duration(o.Blocks)*5*time.Second)
	defer cancel()
	escrows := o.scaled(100_000)
	others, err := otherChains(ctx, l, n-1, escrows)
	if err != nil {
		return nil, err
	}

	proxy, err := beforeFirst(others)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, proxy.Close()) }()
	load, err := testchain.OpenLoad(ctx, l.Chain, l.Contracts)
	if err != nil {
		return nil, err
	}
	defer load.Close()
	clones, err := load.Clone(ctx, perBlock)
	if err != nil {
		return nil, err
	}

	tap := l.PubSub.Tap()
	defer func() { err = errors.Join(err, tap.Stop()) }()
	p, ready, err := runChains(ctx, l, others, n*escrows)
	if err != nil {
		return nil, err
	}

	if err := tap.Wait(ctx, perBlock); err != nil {
		return nil, err
	}

	s, err := restBeside(ctx, l, p, others)
	if err != nil {
		return nil, err
	}

	name := fmt.Sprintf("chains.%d", n)
	figures = []Figure{
		o.once(name+".ready", "s", 2, ready), o.once(name+".rss", "MiB", 200, s.values["rss MiB"]),
		o.once(name+".connections", "", 0, s.values["connections "]),
	}
	live, err := besideOthers(ctx, o, name, others, proxy, func() ([]float64, error) {
		latencies, _, err := measureLive(ctx, o, l, p, tap, load, clones, 0)
		return latencies, err
	})
	if err != nil {
		return nil, err
	}

	return append(figures, live...), p.Stop(ctx)
}

// restBeside takes a sample once the process has been left alone for a while, with a block a second on the others; on
// the one that will reorganise they begin with that, since the simulated chain refuses it after some 200 blocks.
func restBeside(ctx context.Context, l *lab.Lab, p *lab.Process, others []*lab.Lab) (s sample, err error) {
	for _, c := range others[:min(len(others), max(1, len(others)-1))] {
		c.Chain.(*testchain.Sim).SetInterval(time.Second)
	}

	select {
	case <-ctx.Done():
		return s, ctx.Err()
	case <-time.After(atRest):
	}

	return takeSample(ctx, l, p)
}

// besideOthers measures one chain of n: beside sound ones, while the node of the first other one swallows what it is
// sent, and while the last other one reorganises, deeper than its finality, every few seconds.
func besideOthers(ctx context.Context, o *Options, name string, others []*lab.Lab, proxy *faults.TCP,
	measure func() ([]float64, error)) (figures []Figure, err error) {
	for _, beside := range []string{".live", ".live.swallowed", ".live.reorganised"}[:min(len(others)+1, 3)] {
		end := func() error { return nil }
		switch beside {
		case ".live.swallowed":
			end = proxy.Swallow(true)
		case ".live.reorganised":
			end = reorganise(ctx, others[len(others)-1])
		}

		ms, err := measure()
		if err := errors.Join(err, end()); err != nil {
			return nil, err
		}

		figures = append(figures,
			unlessFew(o.atMost(name+beside+".p50", "ms", 0, Quantile(ms, 0.5), ms), o.Blocks, 30),
			unlessFew(o.atMost(name+beside+".p99", "ms", 0, Quantile(ms, 0.99), ms), o.Blocks, 100))
	}

	return figures, nil
}

// reorganise replaces the newest blocks of a chain every few seconds, until what it returns is called.
func reorganise(ctx context.Context, l *lab.Lab) (end func() error) {
	const every, depth = 5 * time.Second, 20
	ctx, cancel := context.WithCancel(ctx)
	var g errgroup.Group
	g.Go(func() error {
		if err := l.Chain.Mine(ctx, depth); err != nil {
			return fmt.Errorf("give a chain beside blocks to lose: %w", err)
		}

		l.Chain.(*testchain.Sim).SetInterval(time.Second)
		for {
			if err := l.Chain.Reorg(ctx, depth, testchain.Keep); err != nil && ctx.Err() == nil {
				return fmt.Errorf("reorganise a chain beside: %w", err)
			}

			select {
			case <-ctx.Done():
				return nil
			case <-time.After(every):
			}
		}
	})

	return func() error {
		cancel()
		return g.Wait()
	}
}

// beforeFirst puts a proxy before the node of the first of some chains; without one it is before nothing.
func beforeFirst(chains []*lab.Lab) (*faults.TCP, error) {
	if len(chains) == 0 {
		return faults.NewTCP("127.0.0.1:1")
	}

	first := chains[0]
	proxy, err := faults.NewTCP(strings.TrimPrefix(first.Chain.HTTP(), "http://"))
	if err == nil {
		first.RPC = []string{"http://" + proxy.Addr()}
	}

	return proxy, err
}

// otherChains makes more chains beside a lab's, and registers as many escrows on each of them and on the lab's.
func otherChains(ctx context.Context, l *lab.Lab, n, escrows int) (others []*lab.Lab, err error) {
	if _, err := migrations.Up(ctx, l.DB.Config().ConnConfig); err != nil {
		return nil, err
	}

	for i := range n {
		beside, err := l.Beside(ctx, testchain.Options{ChainID: uint64(2000 + i)})
		if err != nil {
			return nil, err
		}

		others = append(others, beside)
	}

	for _, c := range append([]*lab.Lab{l}, others...) {
		c.Factories, c.RPC = []common.Address{c.Contracts.Load}, []string{c.Chain.HTTP()}
		if err := register(ctx, l.DB, c, nil, escrows); err != nil {
			return nil, err
		}
	}

	return others, nil
}

// runChains starts one process for all chains, and returns it with the seconds until it watches all escrows.
func runChains(ctx context.Context, l *lab.Lab, others []*lab.Lab, escrows int) (p *lab.Process, ready float64,
	err error) {
	start := time.Now()
	p, err = l.RunChains("chains", 0, 1, map[string]string{
		"ESCROW_ABI": contracts.NoiseMetaData.ABI, "FINALITY": "latest",
		"VERIFY_INTERVAL": "30s", "HEARTBEAT_INTERVAL": "30s", "LOG_LEVEL": "warn",
	}, others...)
	if err != nil {
		return nil, 0, err
	}

	err = poll(ctx, 10*time.Millisecond, "all escrows to be watched", func() bool {
		m, err := p.Metrics(ctx)
		return err == nil && m.Sum("relayer_escrows_monitored") >= float64(escrows)
	})
	if err != nil {
		return nil, 0, err
	}

	return p, time.Since(start).Seconds(), nil
}
