package send

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/registry"
)

// followEvery is the pause between two looks for senders without an owner. One that is free at two looks in a
// row is followed: its owner is not just being replaced.
const followEvery = 5 * time.Second

// Follow follows what was sent for senders that no instance owns, whether or not the key is here, until ctx ends:
// it answers what is final, takes back what a reorganisation took back, and broadcasts recorded bytes again. It
// signs nothing and gives out no nonce. One instance does so for a chain: the holder of the lock election.Follow.
//
// Its writes name the epoch of the last owner, so the next one fences them. Of cfg it uses what is not a sender's.
func Follow(ctx context.Context, cfg Config, every time.Duration) {
	if every == 0 {
		every = followEvery
	}

	cfg.setDefaults()

	var followers errgroup.Group // each has its own end
	defer func() { _ = followers.Wait() }()
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	free, followed := map[common.Address]bool{}, map[common.Address]chan struct{}{}
	for {
		now, err := selectFree(ctx, &cfg)
		if err != nil && ctx.Err() == nil {
			cfg.Log.WarnContext(ctx, "senders without an owner not read, retrying", slog.Any("err", err))
		}

		for _, s := range now {
			if ended := followed[s.Address]; ended != nil && !closed(ended) || !free[s.Address] {
				continue
			}

			ended := make(chan struct{})
			followed[s.Address] = ended
			followers.Go(func() error {
				defer close(ended)
				s.follow(ctx, cfg)

				return nil
			})
		}

		clear(free)
		for _, s := range now {
			free[s.Address] = true
		}

		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// unowned is a sender without an owner, under the epoch of its last owner.
type unowned struct {
	Address common.Address
	Epoch   int64
}

// selectUnowned finds the senders that were used and have a free lock.
const selectUnowned = `
	select bytes(s.address) as address, s.epoch
	  from senders s
	 where s.chain_id = @chain and s.next_nonce is not null and s.lock_key not in (select key from held_locks())`

func selectFree(ctx context.Context, cfg *Config) ([]unowned, error) {
	return collect(ctx, cfg.DB, "the senders that nobody owns", pgx.RowToStructByName[unowned], selectUnowned,
		pgx.StrictNamedArgs{"chain": cfg.ChainID})
}

// follow works until an owner takes the epoch, or ctx ends.
func (u unowned) follow(ctx context.Context, cfg Config) {
	sender := registry.Text(u.Address)
	cfg.Name, cfg.Signer, cfg.Keeper = sender, nil, nil
	log := cfg.Log.With(slog.String("sender", sender))
	log.WarnContext(ctx, "following a sender that no instance owns: what was sent is answered, nothing new is signed")
	all := shared{cfg: &cfg, address: u.Address, log: log,
		store: &store{db: cfg.DB, chainID: cfg.ChainID, sender: sender, epoch: u.Epoch}}
	if err := newTenure(all).run(ctx, nil); errors.Is(err, ErrFenced) {
		log.InfoContext(ctx, "an instance owns the sender again")
	}
}
