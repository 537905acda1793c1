package chaos

import (
	"context"
	"errors"
	"fmt"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
)

// second is another chain, which the processes follow too. Its contracts have the same addresses, and its events the
// same topics. Faults of the first chain and its nodes have no effect on it.
type second struct {
	lab     *lab.Lab
	traffic *testchain.Traffic
}

// openSecond starts the chain, which ends with the lab.
func openSecond(ctx context.Context, r *run) (*second, error) {
	l, err := r.lab.Beside(ctx, testchain.Options{Seed: r.plan.Seed, ChainID: r.chain.ChainID().Uint64() + 1})
	if err != nil {
		return nil, err
	}

	if l.Contracts.Factory != r.lab.Contracts.Factory {
		return nil, fmt.Errorf("the factory of the second chain is at %s, not at %s", l.Contracts.Factory,
			r.lab.Contracts.Factory)
	}

	l.Factories, l.RPC = append(l.Factories, l.Contracts.Legacy), []string{l.Chain.WS(), l.Chain.HTTP()}
	l.ChainEnv = map[string]string{"PUBSUB_TOPIC_ID": lab.Topic, "RETRACTIONS_TOPIC_ID": lab.Retractions}
	traffic, err := newTraffic(ctx, l, r.plan.Seed)

	return &second{l, traffic}, err
}

func (s *second) block(ctx context.Context) error {
	return errors.Join(s.traffic.Step(ctx, 2), s.lab.Chain.Mine(ctx, 1))
}
