package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// busy is how many escrows emit an event per second while a factory is added.
const busy = 200

// Added is what adding a factory with 20,000 escrows in its past, of three events each, costs the
// escrows of another one, which emit 200 events per second meanwhile: how much later than before they
// are published, and when the past is caught up.
func Added(ctx context.Context, o *Options) (figures []Figure, err error) {
	l, err := lab.Start(ctx, lab.Options{Bin: o.Bin, Postgres: testpg.Options{Durable: true}})
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, l.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute+time.Duration(o.Blocks)*4*time.Second)
	defer cancel()
	second, past, err := pastOf(ctx, l, o.scaled(20_000))
	if err != nil {
		return nil, err
	}

	load, err := testchain.OpenLoad(ctx, l.Chain, l.Contracts)
	if err != nil {
		return nil, err
	}
	defer load.Close()
	clones, err := load.Clone(ctx, busy)
	if err != nil {
		return nil, err
	}

	tap := l.PubSub.Tap()
	defer func() { err = errors.Join(err, tap.Stop()) }()
	p, err := l.RunReady(ctx, "added", 0, 1, map[string]string{
		"FACTORY_ADDRESS": l.Contracts.Load.Hex(), "ESCROW_ABI": contracts.NoiseMetaData.ABI,
		"FINALITY": "latest", "RPC_URLS": l.Chain.WS(), "LOG_LEVEL": "warn",
	})
	if err != nil {
		return nil, err
	}

	figures, err = addBeside(ctx, o, l, tap, func() error { return emitEverySecond(ctx, load, clones, o.Blocks, 0) },
		second, past)

	return figures, errors.Join(err, p.Stop(ctx))
}

// addBeside adds a factory, whose past has so many events, beside traffic.
func addBeside(ctx context.Context, o *Options, l *lab.Lab, tap *testpubsub.Recorder, emit func() error,
	second testchain.Deployment, past int) ([]Figure, error) {
	blocks, stop, err := heads(ctx, l.Chain.WS())
	if err != nil {
		return nil, err
	}
	defer stop()
	// Only blocks of the traffic were announced since then: what is of the past has no latency.
	traffic := func(seen, more int) ([]float64, error) {
		if err := emit(); err != nil {
			return nil, err
		}

		if err := tap.Wait(ctx, seen+busy*o.Blocks+more); err != nil {
			return nil, fmt.Errorf("received %d of %d messages: %w", tap.Len(), seen+busy*o.Blocks+more, err)
		}

		return sinceAnnounced(tap.Messages()[seen:], blocks)
	}
	if err := tap.Wait(ctx, busy); err != nil {
		return nil, err
	}

	before, err := traffic(busy, 0)
	if err != nil {
		return nil, err
	}

	began := time.Now()
	if err := pgx.BeginFunc(ctx, l.DB, func(tx pgx.Tx) error {
		return registry.AddFactories(ctx, tx, l.Chain.ChainID().Int64(),
			[]registry.Factory{{Address: second.Load, Start: int64(second.Block)}})
	}); err != nil {
		return nil, err
	}

	after, err := traffic(busy*(o.Blocks+1), past)
	if err != nil {
		return nil, err
	}

	last := began
	for _, m := range tap.Messages() {
		if m.Attributes[message.AttrFactory] == registry.Text(second.Load) && m.Received.After(last) {
			last = m.Received
		}
	}

	return []Figure{
		o.atMost("added.before.p50", "ms", 0, Quantile(before, 0.5), before),
		o.atMost("added.before.max", "ms", 0, Quantile(before, 1), before),
		o.atMost("added.meanwhile.p50", "ms", 0, Quantile(after, 0.5), after),
		unlessFew(o.atMost("added.meanwhile.max", "ms", Quantile(before, 1)+1000, Quantile(after, 1), after), o.Blocks, 30),
		o.once("added.past", "s", 0, last.Sub(began).Seconds()),
	}, nil
}

// pastOf deploys a second factory, and makes escrows of it with two events each beside their deployment. It returns
// the number of all these events.
func pastOf(ctx context.Context, l *lab.Lab, escrows int) (second testchain.Deployment, events int, err error) {
	if second, err = testchain.Deploy(ctx, l.Chain); err != nil {
		return second, 0, err
	}

	load, err := testchain.OpenLoad(ctx, l.Chain, second)
	if err != nil {
		return second, 0, err
	}
	defer load.Close()
	clones, err := load.Clone(ctx, escrows)
	if err != nil {
		return second, 0, err
	}

	return second, 3 * escrows, load.Emit(ctx, clones, 2)
}
