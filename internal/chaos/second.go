package chaos

import (
	"context"
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
)

// side is a chain and its contracts.
type side struct {
	chain     *testchain.Sim
	contracts testchain.Deployment
}

func (s side) id() int64 { return s.chain.ChainID().Int64() }

// second is another chain, which the processes follow too. Its contracts have the same addresses, and its events the
// same topics. Faults of the first chain and its nodes have no effect on it.
type second struct {
	side
	traffic *testchain.Traffic
}

// lab is that of the first chain, with this one instead.
func (s *second) lab(r *run) *lab.Lab {
	l := *r.lab
	l.Chain, l.Contracts, l.RPC = s.chain, s.contracts, []string{s.chain.WS(), s.chain.HTTP()}
	l.Factories = []common.Address{s.contracts.Factory, s.contracts.Legacy}

	return &l
}

// openSecond starts the chain.
func openSecond(ctx context.Context, r *run) (s *second, err error) {
	chain, err := testchain.StartSim(testchain.Options{Seed: r.plan.Seed, ChainID: r.chain.ChainID().Uint64() + 1})
	if err != nil {
		return nil, err
	}

	s = &second{side: side{chain: chain}}
	defer func() {
		if err != nil {
			err = errors.Join(err, chain.Stop())
		}
	}()
	if s.contracts, err = testchain.Deploy(ctx, chain); err != nil {
		return nil, err
	}

	if s.contracts.Factory != r.lab.Contracts.Factory {
		return nil, fmt.Errorf("the factory of the second chain is at %s, not at %s", s.contracts.Factory,
			r.lab.Contracts.Factory)
	}

	if s.traffic, err = newTraffic(ctx, chain, s.contracts, r.plan.Seed); err != nil {
		return nil, err
	}

	return s, nil
}

func (s *second) block(ctx context.Context) error {
	return errors.Join(s.traffic.Step(ctx, 2), s.chain.Mine(ctx, 1))
}
