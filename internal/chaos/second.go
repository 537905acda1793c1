package chaos

import (
	"context"
	"errors"
	"fmt"
	"strconv"

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

// second is another chain in the same database. Its contracts have the same addresses, its relayers the same
// INSTANCE_IDs, and they publish to the same topics. With Plan.Shared they are the processes of the first chain's
// fleet; else it has a fleet of its own, and faults of processes have no effect on it. Faults of the first chain and
// its nodes never have; those of the database and of Pub/Sub do.
type second struct {
	side
	traffic *testchain.Traffic
	procs   [2]*lab.Process // not with Plan.Shared
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

// startFleet starts the chain's own relayers, and waits until they are ready.
func (s *second) startFleet(ctx context.Context, r *run) error {
	for i := range s.procs {
		if err := s.start(r, i); err != nil {
			return err
		}
	}

	for _, p := range s.procs {
		if err := ready(ctx, p); err != nil {
			return err
		}
	}

	return nil
}

func (s *second) start(r *run, i int) (err error) {
	s.procs[i], err = r.lab.Run("second"+strconv.Itoa(i), i, len(s.procs), map[string]string{
		"INSTANCE_ID": "r" + strconv.Itoa(i), "CHAIN_ID": s.chain.ChainID().String(), "RPC_URLS": s.chain.WS() + "," +
			s.chain.HTTP(),
		"START_BLOCK":     strconv.FormatUint(s.contracts.Block, 10),
		"FACTORY_ADDRESS": s.contracts.Factory.Hex() + "," + s.contracts.Legacy.Hex(),
	})

	return err
}

// heal notes instances that have exited by themselves, and starts them again.
func (s *second) heal(r *run) error {
	for i, p := range s.procs {
		if p.Running() {
			continue
		}

		r.note("%s of the second chain exited by itself: %s", p.ID, tail(p.LogFile))
		if err := s.start(r, i); err != nil {
			return err
		}
	}

	return nil
}

func (s *second) block(ctx context.Context) error {
	return errors.Join(s.traffic.Step(ctx, 2), s.chain.Mine(ctx, 1))
}
