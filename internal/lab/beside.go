package lab

import (
	"context"
	"errors"
	"sync"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
)

// Beside sets up another chain for the relayers of l: its events have topics of their own, and its
// Postgres and Pub/Sub server are those of l. Closing l closes it.
func (l *Lab) Beside(ctx context.Context, o testchain.Options) (other *Lab, err error) {
	other = &Lab{Options: l.Options, PG: l.PG, URL: l.URL, DB: l.DB, PubSub: l.PubSub, Dir: l.Dir, mu: &sync.Mutex{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, other.Close())
		}
	}()
	if other.Chain, err = testchain.StartSim(o); err != nil {
		return other, err
	}

	other.later(other.Chain.Stop)
	if other.Contracts, err = testchain.Deploy(ctx, other.Chain); err != nil {
		return other, err
	}

	of := "-" + other.Chain.ChainID().String()
	if other.Received, err = other.record(ctx, Topic+of); err != nil {
		return other, err
	}

	other.later(other.Received.Stop)
	if other.Retracted, err = other.record(ctx, Retractions+of); err != nil {
		return other, err
	}

	other.later(other.Retracted.Stop)
	l.later(other.Close)

	return other, nil
}
