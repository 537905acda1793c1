package send

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/column"
)

// ReleaseChannel is the notification channel on which an instance announces that it has given a sender back.
const ReleaseChannel = "relayer_senders"

// Session is the database session that locks belong to: an *election.Session.
type Session interface {
	Do(ctx context.Context, f func(context.Context, *pgx.Conn) error) error
	Valid() bool
	Hint(channel string) <-chan struct{}
}

const (
	// surveyEvery is the pause between two looks at who has what, without a notification.
	surveyEvery = 500 * time.Millisecond
	// overdue is how long a sender may be free before another instance takes it than the one that should.
	overdue = 5 * time.Second
)

// Own contends for each sender, and works as its owner while it has the lock, until ctx ends (nil).
//
// The senders are spread evenly over the live instances that have their keys: all instances see the
// same locks, and compute from them the same share (see spread). An instance takes what is free and
// its own; it gives back what has been another one's for Config.HandOver. That decides only who
// tries, and when: who may sign is decided by the lock and by the epoch that its holder takes, as it
// is when an instance is stopped or killed.
func Own(ctx context.Context, session Session, configs []Config, log *slog.Logger) error {
	g, ctx := errgroup.WithContext(ctx)
	all := make([]*contender, len(configs))
	for i, cfg := range configs {
		cfg.Valid = session.Valid
		sender, err := New(cfg)
		if err != nil {
			return err
		}

		all[i] = &contender{session: session, sender: sender, log: log,
			lock: election.Lock{Purpose: election.Sender, ChainID: cfg.ChainID, Name: registry.Text(sender.address)},
			wake: make(chan struct{}, 1), try: make(chan struct{}, 1)}
	}

	if err := enter(ctx, session, all); err != nil {
		return ended(ctx, err)
	}

	for _, c := range all {
		g.Go(func() error { return c.run(ctx) })
	}

	g.Go(func() error { return survey(ctx, session, all) })
	g.Go(func() error { // one notification is for all of them: a look costs little
		hints := session.Hint(Channel)
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-hints:
				for _, c := range all {
					poke(c.wake)
				}
			}
		}
	})

	return g.Wait()
}

// enter shows the other instances which keys this one has. All share such a lock, so each is free; one
// that a stranger keeps is passed by: then this instance takes the sender only once it is overdue.
func enter(ctx context.Context, session Session, all []*contender) error {
	err := session.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		for _, c := range all {
			err := conn.QueryRow(ctx, shareContest, election.Contest, c.lock.ChainID, c.lock.Name).Scan(&c.contest)
			if err != nil {
				return err
			}
		}

		return nil
	})
	if err != nil {
		return fmt.Errorf("contend for %d senders: %w", len(all), err)
	}

	return nil
}

const shareContest = `
	select key from (select lock_key($1, $2, $3) as key offset 0) k, pg_try_advisory_lock_shared(key)`

func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// contender is a sender whose key this instance has.
type contender struct {
	session Session
	sender  *Sender
	log     *slog.Logger
	lock    election.Lock // of its owner
	contest int64         // key of the lock that all share that have its key
	wake    chan struct{} // capacity 1: commands may have come
	try     chan struct{} // capacity 1: it is to be taken

	leave atomic.Pointer[context.CancelFunc] // ends what serves it; nil: nothing does

	// Of survey's goroutine alone. Zero: it is not so.
	free   time.Time // nobody has had it since
	others time.Time // we have had another instance's share since
}

// run serves the sender each time that it gets the lock, until ctx ends (nil). Then the other
// instances see that this one does not contend any more: they need not wait for its session's end.
func (c *contender) run(ctx context.Context) error {
	defer func() {
		c.tell(ctx, `select pg_advisory_unlock_shared($1)`, c.contest)
		c.tell(ctx, Notify, ReleaseChannel, c.sender.cfg.ChainID)
	}()

	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select { // what was given back a moment ago is the others' turn
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}

		select {
		case <-ctx.Done():
			return nil
		case <-c.try:
		}

		taken, err := election.Try(ctx, c.session, c.lock, c.log, c.serve)
		if err != nil {
			return ended(ctx, err)
		}

		if taken {
			c.tell(ctx, Notify, ReleaseChannel, c.sender.cfg.ChainID)
		}

		pause.Reset(surveyEvery)
	}
}

// ended is err, unless it came because ctx has ended.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}

	return err
}

// tell runs a statement that hastens what the other instances would find out by themselves.
func (c *contender) tell(ctx context.Context, statement string, args ...any) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = c.session.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, statement, args...)
		return err
	})
}

// serve works until ctx ends, the sender is taken by somebody else, or is to be handed over.
func (c *contender) serve(ctx context.Context) {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	c.leave.Store(&leave)
	defer c.leave.Store(nil)
	owned := c.sender.cfg.Metrics.owned.WithLabelValues(c.sender.cfg.Name)
	owned.Set(1)
	defer owned.Set(0)
	if err := c.sender.Run(ctx, c.wake); err != nil && ctx.Err() == nil {
		c.log.WarnContext(ctx, "sender given up", slog.String("sender", registry.Text(c.sender.address)),
			slog.Any("err", err))
	}
}

// held is who has what: the server processes of the sessions.
type held struct {
	self     uint32
	owner    map[string]uint32  // by account
	contends map[int64][]uint32 // by contest key, in ascending order
}

// selectHeld reads the owners of the accounts, and the contenders for all senders of the database, of
// other chains too: they share the instances.
const selectHeld = `
	select key, pid::bigint, pg_backend_pid()::bigint, coalesce(mine.name, '')
	  from held_locks()
	  left join (select name, lock_key(@sender, @chain, name) as key from unnest(@names::text[]) as name) mine using (key)
	 where mine.name is not null or key >> 40 = lock_key(@contest, @chain, '') >> 40
	 order by pid`

// survey looks who has what, and lets each contender do what follows, until ctx ends (nil) or the
// session is lost.
func survey(ctx context.Context, session Session, all []*contender) error {
	ticker := time.NewTicker(surveyEvery)
	defer ticker.Stop()
	hints := session.Hint(ReleaseChannel)
	for {
		now, err := look(ctx, session, all)
		if err != nil {
			return ended(ctx, fmt.Errorf("look who owns which sender: %w", err))
		}

		shares := spread(now.contends)
		for _, c := range all {
			c.consider(ctx, time.Now(), now, shares[c.contest])
		}

		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-hints:
		}
	}
}

func look(ctx context.Context, session Session, all []*contender) (h held, err error) {
	h = held{owner: map[string]uint32{}, contends: map[int64][]uint32{}}
	args := pgx.StrictNamedArgs{"sender": election.Sender, "contest": election.Contest, "chain": all[0].lock.ChainID,
		"names": column.Of(all, func(c **contender) string { return (*c).lock.Name })}
	err = session.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		rows, _ := conn.Query(ctx, selectHeld, args)
		var key int64
		var pid uint32
		var name string
		_, err := pgx.ForEachRow(rows, []any{&key, &pid, &h.self, &name}, func() error {
			if name != "" {
				h.owner[name] = pid
			} else {
				h.contends[key] = append(h.contends[key], pid)
			}

			return nil
		})

		return err
	})

	return h, err
}

// spread says which of its contenders should have each sender: the one that has the fewest so far,
// of several such the first; senders that have fewer contenders come first. Whoever sees the same
// locks comes to the same result.
func spread(contends map[int64][]uint32) map[int64]uint32 {
	shares, load := map[int64]uint32{}, map[uint32]int{}
	keys := slices.SortedFunc(maps.Keys(contends), func(a, b int64) int {
		return cmp.Or(cmp.Compare(len(contends[a]), len(contends[b])), cmp.Compare(a, b))
	})
	for _, key := range keys {
		best := contends[key][0]
		for _, pid := range contends[key] {
			if load[pid] < load[best] {
				best = pid
			}
		}

		shares[key] = best
		load[best]++
	}

	return shares
}

// consider takes a sender that is free, and gives back one that should be another's.
func (c *contender) consider(ctx context.Context, now time.Time, h held, share uint32) {
	owner, taken := h.owner[c.lock.Name]
	if taken {
		c.free = time.Time{}
	} else if c.free.IsZero() {
		c.free = now
	}

	if !taken || owner != h.self || share == h.self {
		c.others = time.Time{}
	} else if c.others.IsZero() {
		c.others = now
	}

	switch {
	case !taken && (share == h.self || now.Sub(c.free) >= overdue):
		poke(c.try)
	case !c.others.IsZero() && now.Sub(c.others) >= c.sender.cfg.HandOver:
		if leave := c.leave.Load(); leave != nil {
			c.log.InfoContext(ctx, "sender handed over to another instance",
				slog.String("sender", registry.Text(c.sender.address)))
			(*leave)()
		}
	}
}
