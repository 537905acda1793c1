package send

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/registry"
)

// followEvery is the pause between two looks at what needs no key.
const followEvery = 2 * time.Second

// followAtOnce is how many senders are followed at the same time.
const followAtOnce = 16

// Follow does what needs no key, until ctx ends: it answers what expired or was cancelled before anything was signed
// for it, whichever sender it is of; and it follows what was sent for senders that no instance owns: it answers what is
// final, takes back what a reorganisation took back, and broadcasts recorded bytes again. It signs nothing and gives
// out no nonce. One instance does so for a chain: the holder of the lock election.Follow.
//
// Its writes name the epoch of the last owner, so the next one fences them. Of cfg it uses what is not a sender's.
func Follow(ctx context.Context, cfg Config, every time.Duration) {
	cfg.Signer, cfg.Keeper, cfg.Limits = nil, nil, Limits{}
	cfg.setDefaults()
	f := follower{cfg: cfg}
	var both sync.WaitGroup // what is over is answered whatever the nodes do
	defer both.Wait()
	both.Go(func() { f.each(ctx, every, f.dismiss) })
	f.each(ctx, every, f.follow)
}

// each looks again and again.
func (f *follower) each(ctx context.Context, every time.Duration, look func(context.Context) error) {
	ticker := time.NewTicker(cmp.Or(every, followEvery))
	defer ticker.Stop()
	for {
		if err := look(ctx); err != nil && ctx.Err() == nil {
			f.cfg.Log.WarnContext(ctx, "commands that need no key not looked at, retrying", slog.Any("err", err))
		}

		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

type follower struct {
	cfg  Config
	free map[common.Address]*sender // senders that nobody owned at the last look
}

func (f *follower) dismiss(ctx context.Context) error {
	for {
		answers, err := Dismiss(ctx, f.cfg.DB, f.cfg.ChainID)
		if err != nil || len(answers) == 0 {
			return err
		}

		f.cfg.tell(ctx, answers)
	}
}

// follow has each sender work that was free at the last look too, under the same epoch: its owner is not just being
// replaced.
func (f *follower) follow(ctx context.Context) error {
	now, err := collect(ctx, f.cfg.DB, "the senders that nobody owns", pgx.RowToStructByName[unowned], selectUnowned,
		pgx.StrictNamedArgs{"chain": f.cfg.ChainID})
	if err != nil {
		return err
	}

	var work errgroup.Group // each says for itself what fails
	work.SetLimit(followAtOnce)
	before := f.free
	f.free = make(map[common.Address]*sender, len(now))
	for _, u := range now {
		s := before[u.Address]
		if s == nil || s.store.epoch != u.Epoch {
			f.free[u.Address] = f.sender(u)
			continue
		}

		f.free[u.Address] = s
		work.Go(func() error {
			if _, err := s.round(ctx); err != nil && !errors.Is(err, ErrFenced) {
				s.fails(ctx, err)
			}

			return nil
		})
	}

	return work.Wait()
}

// sender is one of nobody: without a signer, under the epoch of the last owner.
func (f *follower) sender(u unowned) *sender {
	cfg, name := f.cfg, registry.Text(u.Address)
	cfg.Name = name
	cfg.Log = cfg.Log.With(slog.String("sender", name))

	return newSender(cfg, u.Address, &store{cfg.DB, cfg.ChainID, name, u.Epoch})
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
