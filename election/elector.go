package election

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Channel is the notification channel on which a leader that resigns tells the others; the payload is the chain id.
const Channel = "relayer_leader"

var (
	// ErrFenced means that another instance has become leader: the epoch of the leadership row is newer than ours.
	ErrFenced = errors.New("fenced: another instance became leader")
	// ErrResign is what a lead function returns to leave the leadership to the others for CoolDown.
	ErrResign = errors.New("resigned")
)

// Term is a period of leadership: the right to commit what the factory watch finds, under Epoch.
type Term struct {
	Epoch int64
}

// ElectorConfig configures an Elector.
type ElectorConfig struct {
	Session    *Session
	DB         *pgxpool.Pool
	ChainID    int64
	InstanceID string
	RetryEvery time.Duration // pause between two attempts to take the lock; 0 means 500 ms
	StaleAfter time.Duration // age of the last heartbeat at which the session of a leader is ended; 0 means 60 s
	CoolDown   time.Duration // how long an instance that resigned does not contend; 0 means 10 s
	Eligible   func() bool   // asked before each attempt; nil: always
	Log        *slog.Logger
}

// callTimeout bounds each statement: they take milliseconds, and a broken connection may stay
// silent for ever.
const callTimeout = 5 * time.Second

// Elector contends for the leadership of a chain.
type Elector struct {
	cfg ElectorConfig
}

// NewElector checks the configuration and starts nothing.
func NewElector(cfg ElectorConfig) (*Elector, error) {
	if cfg.Session == nil || cfg.DB == nil || cfg.InstanceID == "" {
		return nil, errors.New("election: Session, DB and InstanceID are required")
	}

	cfg.RetryEvery = cmp.Or(cfg.RetryEvery, 500*time.Millisecond)
	cfg.StaleAfter = cmp.Or(cfg.StaleAfter, time.Minute)
	cfg.CoolDown = cmp.Or(cfg.CoolDown, 10*time.Second)

	if cfg.Eligible == nil {
		cfg.Eligible = func() bool { return true }
	}

	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))

	return &Elector{cfg: cfg}, nil
}

// Run contends until ctx ends (nil) or the session is lost (ErrLost), and calls lead for each term
// that it wins. The context of lead ends with ctx and with the session. When lead returns, with or
// without an error, Run releases the lock, leaves it to the others for CoolDown, and goes on: an
// error of lead ends the term only.
func (e *Elector) Run(ctx context.Context, lead func(context.Context, Term) error) error {
	ticker := time.NewTicker(e.cfg.RetryEvery)
	defer ticker.Stop()
	hint := e.cfg.Session.Hint(Channel)
	var resignedUntil time.Time
	lastCheck, suspect := time.Now(), int32(0)
	for {
		if e.cfg.Eligible() && !time.Now().Before(resignedUntil) {
			key, err := e.try(ctx)
			switch {
			case key != 0: // also where ctx has ended meanwhile: then the lock is given up at once
				err := e.serve(ctx, key, lead)
				if ctx.Err() != nil {
					return nil
				}

				if errors.Is(err, ErrLost) {
					return err
				}

				resignedUntil = time.Now().Add(e.cfg.CoolDown)
				e.cfg.Log.WarnContext(ctx, "leadership given up", slog.Any("err", err), slog.Duration("for", e.cfg.CoolDown))
			case ctx.Err() != nil:
				return nil
			case err != nil:
				return err
			case time.Since(lastCheck) > e.cfg.StaleAfter/6:
				lastCheck = time.Now()
				var err error
				if suspect, err = e.endHungLeader(ctx, suspect); err != nil && ctx.Err() == nil {
					e.cfg.Log.WarnContext(ctx, "check of the leader failed, retrying", slog.Any("err", err))
				}
			}
		}

		select {
		case <-ctx.Done():
			return nil
		case <-e.cfg.Session.Done():
			return ErrLost
		case <-ticker.C:
		case <-hint:
		}
	}
}

// try returns the key of the leader lock if this session gets it, else 0.
func (e *Elector) try(ctx context.Context) (key int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err = e.cfg.Session.Do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		key, err = Lock{Leader, e.cfg.ChainID, ""}.try(ctx, conn, e.cfg.Log)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("contend for the leadership of chain %d: %w", e.cfg.ChainID, err)
	}

	return key, nil
}

// serve runs one term. At its end, for any reason, it releases the lock and notifies the others.
func (e *Elector) serve(ctx context.Context, key int64, lead func(context.Context, Term) error) error {
	termCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	watcher := make(chan struct{})
	go func() { // ends with serve
		defer close(watcher)
		select {
		case <-e.cfg.Session.Done():
			cancel(ErrLost)
		case <-stop:
		}
	}()
	defer func() { close(stop); <-watcher }()

	term, err := e.begin(termCtx, key)
	if err == nil {
		e.cfg.Log.InfoContext(ctx, "became leader", slog.Int64("epoch", term.Epoch))
		err = lead(termCtx, term)
	}

	if errors.Is(context.Cause(termCtx), ErrLost) {
		return ErrLost
	}

	return errors.Join(err, e.resign(ctx, key))
}

// begin opens a term: from now on the commits of any earlier leader fail. The former leader may be
// frozen in the middle of a commit with a lock on the row, so its open transactions are ended
// first.
func (e *Elector) begin(ctx context.Context, key int64) (t Term, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var former *string
	if err := e.cfg.DB.QueryRow(ctx, `select instance_id from leadership where chain_id = $1`,
		e.cfg.ChainID).Scan(&former); err != nil {
		return t, fmt.Errorf("look for the former leader of chain %d: %w", e.cfg.ChainID, err)
	}

	if former != nil && *former != e.cfg.InstanceID {
		if _, err := EndTransactions(ctx, e.cfg.DB, []string{*former}); err != nil {
			return t, err
		}
	}

	err = e.cfg.DB.QueryRow(ctx, beginTerm, e.cfg.ChainID, e.cfg.InstanceID, key).Scan(&t.Epoch)
	if err != nil {
		return t, fmt.Errorf("begin a term as leader of chain %d: %w", e.cfg.ChainID, err)
	}

	return t, nil
}

const beginTerm = `
	update leadership set instance_id = $2, lock_key = $3, epoch = epoch + 1, since = now(), last_heartbeat = now()
	where chain_id = $1 returning epoch`

// resign frees the lock on the session, under a separate deadline, because ctx may have ended.
func (e *Elector) resign(ctx context.Context, key int64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()

	return e.cfg.Session.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `select pg_advisory_unlock($1), pg_notify('`+Channel+`', $2::bigint::text)`,
			key, e.cfg.ChainID)
		if err != nil {
			return fmt.Errorf("give up the leadership of chain %d: %w", e.cfg.ChainID, err)
		}

		return nil
	})
}

// Beats returns a function that writes a heartbeat of the term's leader at each call. It logs a
// failed heartbeat, since the next one makes up for it. It returns ErrFenced when the term is over,
// and ErrResign after half of StaleAfter without a heartbeat: after the whole of it, others end the
// leader's session. The function belongs to one goroutine.
func (e *Elector) Beats(t Term) func(context.Context) error {
	last := time.Now()

	return func(ctx context.Context) error {
		err := e.Beat(ctx, t)
		switch {
		case err == nil:
			last = time.Now()
			return nil
		case errors.Is(err, ErrFenced) || ctx.Err() != nil:
			return err
		case time.Since(last) > e.cfg.StaleAfter/2:
			return fmt.Errorf("%w: no heartbeat for %s: %w", ErrResign, time.Since(last).Round(time.Second), err)
		}

		e.cfg.Log.WarnContext(ctx, "leader's heartbeat failed, retrying", slog.Any("err", err))

		return nil
	}
}

// Beat writes one heartbeat of the term's leader. It returns ErrFenced when the term is over.
func (e *Elector) Beat(ctx context.Context, t Term) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	tag, err := e.cfg.DB.Exec(ctx, `update leadership set last_heartbeat = now() where chain_id = $1 and epoch = $2`,
		e.cfg.ChainID, t.Epoch)
	if err != nil {
		return fmt.Errorf("write the heartbeat of the leader of chain %d: %w", e.cfg.ChainID, err)
	}

	if tag.RowsAffected() == 0 {
		return ErrFenced
	}

	return nil
}

// endHungLeader ends the server session of a leader that answers probes but writes no
// heartbeats, once two consecutive checks have found it stale. The first check returns the leader's
// server process, which the next one gets as suspect: a candidate that has just won the lock writes
// its first heartbeat within callTimeout. A rollback locks the leadership row, and delays
// heartbeats, while it holds the ownership lock; meanwhile leaders are spared.
func (e *Elector) endHungLeader(ctx context.Context, suspect int32) (pid int32, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var ended bool
	err = e.cfg.DB.QueryRow(ctx, endHungLeader, e.cfg.ChainID, e.cfg.StaleAfter.Seconds(), Leader, suspect).
		Scan(&pid, &ended)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}

	if err != nil {
		return 0, fmt.Errorf("look for a leader that hangs: %w", err)
	}

	if ended {
		e.cfg.Log.WarnContext(ctx, "ended the session of a leader that hangs", slog.Duration("stale_after", e.cfg.StaleAfter))
	}

	return pid, nil
}

const endHungLeader = `
	select l.pid, case when l.pid = $4 then pg_terminate_backend(l.pid) else false end
	from leadership s
	join held_locks() l on l.key = lock_key($3, $1, '')
	where s.chain_id = $1 and s.last_heartbeat < now() - make_interval(secs => $2)
	  and (exists (select from ownership_lock where chain_id = $1 for update skip locked)
	       or not exists (select from ownership_lock where chain_id = $1))`
