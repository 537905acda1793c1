package send

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/election"
)

// lockNamespace is that of the advisory locks of senders, as election, partition and reply have
// theirs: a namespace of 20 bits, then 40.
const lockNamespace = 999995

// LockKey is the advisory lock that the owner of a sender holds on its session.
func LockKey(chainID int64, sender common.Address) int64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d/%s", chainID, text(sender))
	return lockNamespace<<40 | int64(h.Sum64()&(1<<40-1))
}

// Session is the database session that locks belong to: an *election.Session.
type Session interface {
	Do(ctx context.Context, f func(context.Context, *pgx.Conn) error) error
	Valid() bool
	Hint(channel string) <-chan struct{}
}

// retryEvery is the pause between two attempts to take the lock of a sender that another instance has.
const retryEvery = 500 * time.Millisecond

// Own contends for each sender, and works as its owner while it has the lock, until ctx ends (nil).
// What is held is given back then, so that the next owner has it at once. Instances that start
// together share the senders: who has more of them waits longer before it takes another.
func Own(ctx context.Context, session Session, configs []Config, log *slog.Logger) error {
	g, ctx := errgroup.WithContext(ctx)
	var held atomic.Int32
	wakes := make([]chan struct{}, len(configs))
	for i, cfg := range configs {
		cfg.Valid = session.Valid
		sender, err := New(cfg)
		if err != nil {
			return err
		}

		wakes[i] = make(chan struct{}, 1)
		c := contender{session: session, sender: sender, held: &held, log: log}
		g.Go(func() error { return c.run(ctx, wakes[i]) })
	}

	g.Go(func() error { // one notification is for all of them: a look costs little
		hints := session.Hint(Channel)
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-hints:
				for _, w := range wakes {
					select {
					case w <- struct{}{}:
					default:
					}
				}
			}
		}
	})

	return g.Wait()
}

type contender struct {
	session Session
	sender  *Sender
	held    *atomic.Int32
	log     *slog.Logger
}

func (c contender) run(ctx context.Context, wake <-chan struct{}) error {
	wait := func() time.Duration { return retryEvery + time.Duration(c.held.Load())*retryEvery/10 }
	return election.While(ctx, c.session, LockKey(c.sender.cfg.ChainID, c.sender.address), wait,
		func(ctx context.Context) { c.serve(ctx, wake) })
}

// serve works until ctx ends or the sender is taken by somebody else.
func (c contender) serve(ctx context.Context, wake <-chan struct{}) {
	owned := c.sender.cfg.Metrics.owned.WithLabelValues(c.sender.cfg.Name)
	c.held.Add(1)
	owned.Set(1)
	defer func() {
		c.held.Add(-1)
		owned.Set(0)
	}()
	c.sender.forget()
	if err := c.sender.Run(ctx, wake); err != nil && ctx.Err() == nil {
		c.log.WarnContext(ctx, "sender given up", slog.String("sender", text(c.sender.address)), slog.Any("err", err))
	}
}

// forget makes a sender look at everything anew: another owner may have had it meanwhile.
func (s *Sender) forget() {
	s.sight = sight{}
	clear(s.missing)
}
