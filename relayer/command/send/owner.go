package send

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/registry"
)

// ReleaseChannel is the notification channel on which an instance that stops announces that it has given a sender back.
const ReleaseChannel = "relayer_senders"

// Session is the database session that locks belong to: an *election.Session.
type Session interface {
	election.Holder
	Valid() bool
	Hint(channel string) <-chan struct{}
}

// tryEvery is the pause between two attempts to take a sender, for each sender that the instance has already and one
// more: of several instances the one with the fewest is the likeliest to take what a crash has left. longestTry
// bounds it.
const (
	tryEvery   = 250 * time.Millisecond
	longestTry = time.Second
)

// Own contends for each sender, and works as its owner while it has the lock, until ctx ends (nil) or the session is
// lost. A sender stays with its owner until that one stops or is lost. The lock, and the epoch that its holder takes,
// decide which instance may sign.
func Own(ctx context.Context, session Session, configs []Config) error {
	var owned atomic.Int64
	all := make([]*contender, len(configs))
	for i, cfg := range configs {
		cfg.Valid = session.Valid
		cfg.setDefaults()
		all[i] = &contender{session: session, cfg: cfg, owned: &owned, wake: make(chan struct{}, 1),
			free: make(chan struct{}, 1)}
	}

	g, ctx := errgroup.WithContext(ctx)
	for _, c := range all {
		g.Go(func() error { return c.run(ctx) })
	}

	g.Go(func() error { // one notification is for all of them: a look costs little
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-session.Hint(Channel):
				for _, c := range all {
					poke(c.wake)
				}
			case <-session.Hint(ReleaseChannel):
				for _, c := range all {
					poke(c.free)
				}
			}
		}
	})

	return g.Wait()
}

func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// contender is a sender with a key in this instance.
type contender struct {
	session Session
	cfg     Config
	owned   *atomic.Int64 // senders that this instance has
	wake    chan struct{} // capacity 1: commands may have come
	free    chan struct{} // capacity 1: another instance has given senders back
}

// run serves the sender each time that it gets the lock, until ctx ends (nil) or the session is lost.
func (c *contender) run(ctx context.Context) error {
	lock := election.Lock{Purpose: election.Sender, ChainID: c.cfg.ChainID, Name: registry.Text(c.cfg.Signer.Address())}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-c.free:
		}

		switch taken, err := election.Try(ctx, c.session, lock, c.cfg.Log, c.serve); {
		case ctx.Err() != nil && taken:
			c.announce(ctx)
		case ctx.Err() == nil && err != nil:
			return err
		}

		timer.Reset(min(tryEvery*time.Duration(1+c.owned.Load()), longestTry))
	}
}

// announce tells the other instances what they would find out at their next attempt.
func (c *contender) announce(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = c.session.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, Notify, ReleaseChannel, c.cfg.ChainID)
		return err
	})
}

// serve works until ctx ends or another instance has taken the sender.
func (c *contender) serve(ctx context.Context) {
	c.owned.Add(1)
	defer c.owned.Add(-1)
	if err := c.cfg.run(ctx, c.wake); err != nil && ctx.Err() == nil {
		c.cfg.Log.WarnContext(ctx, "sender given up", slog.Any("err", err))
	}
}
