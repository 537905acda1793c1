package election

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var (
	// ErrTaken means that another live session holds the lock of this instance id.
	ErrTaken = errors.New("instance id in use")
	// ErrPooled means that statements of one connection reach different server sessions.
	ErrPooled = errors.New("not one server session: a transaction-pooling proxy stands in front of the database")
	// ErrElsewhere means that the pool reaches another server than the session.
	ErrElsewhere = errors.New("the pool does not reach the session's database")
	// ErrLost means that the session is over, and with it every lock held through it.
	ErrLost = errors.New("database session lost")
)

// LeaseProbes is how many probe intervals a right lasts after the start of the last answered probe.
// The server ends the session after three.
const LeaseProbes = 2.5

// SessionConfig configures a Session.
type SessionConfig struct {
	Conn       *pgx.ConnConfig // to Postgres itself, or through a proxy that pools sessions
	ChainID    int64
	InstanceID string
	ProbeEvery time.Duration // 0 means 2 s; the server ends a silent session after three
	Wait       time.Duration // how long to wait for another live session of the same instance id to end; 0: fail at once
	Channels   []string      // notifications to listen for; those whose payload is another chain's id are ignored
	Waiting    func(error)   // gets ErrTaken after each failed attempt while Open waits for that session; may be nil
	Clock      Clock         // measures the lease; nil: the system's, which goes on while the machine is suspended
	Started    time.Time     // of the process, see EndFormer; zero: when Open is called
	Log        *slog.Logger
}

// Session is the database session of an instance. Run owns the connection; the other methods may be
// called from any goroutine.
type Session struct {
	cfg      SessionConfig
	conn     *pgx.Conn
	key      int64        // of the instance's lock
	pid      uint32       // of the server process, as the server says: a proxy gives connections other numbers
	since    time.Time    // when it got the instance's lock, by the database's clock
	memory   string       // see Memory
	chain    string       // the payload of this chain's notifications
	lease    atomic.Int64 // end of the lease by cfg.Clock, in nanoseconds
	requests chan request
	done     chan struct{} // closed when Run has returned
	hints    map[string]chan struct{}
}

type request struct {
	ctx  context.Context
	run  func(context.Context, *pgx.Conn) error
	done chan error
}

// openTimeout bounds each statement until the lease runs: a silent connection must not delay a
// start.
const openTimeout = 5 * time.Second

// Open connects and takes the lock of the instance. All statements of the connection must reach one
// server session: see CheckPooling. The caller must call Run, which closes the session when it ends,
// or Close.
func Open(ctx context.Context, cfg SessionConfig) (*Session, error) {
	cfg.ProbeEvery = cmp.Or(cfg.ProbeEvery, 2*time.Second)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if cfg.Started.IsZero() {
		cfg.Started = time.Now()
	}

	if cfg.Clock == nil {
		cfg.Clock = systemClock()
	}

	s := &Session{cfg: cfg, chain: strconv.FormatInt(cfg.ChainID, 10), requests: make(chan request),
		done: make(chan struct{}), hints: map[string]chan struct{}{}}
	for _, c := range cfg.Channels {
		s.hints[c] = make(chan struct{}, 1)
	}

	conn, err := pgx.ConnectConfig(ctx, cfg.Conn)
	if err != nil {
		return nil, fmt.Errorf("open the database session: %w", err)
	}

	s.conn = conn
	if err := s.prepare(ctx); err != nil {
		s.Close()
		return nil, err
	}

	if err := s.lockInstance(ctx); err != nil {
		s.Close()
		return nil, err
	}

	if err := s.remember(ctx); err != nil {
		s.Close()
		return nil, err
	}

	return s, nil
}

// Close ends a session that was opened but not run.
func (s *Session) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.ProbeEvery)
	defer cancel()
	_ = s.conn.Close(ctx) // the connection is gone, with or without an error
}

func (s *Session) prepare(ctx context.Context) error {
	probe := s.cfg.ProbeEvery.Milliseconds()
	settings := map[string]string{
		"client_connection_check_interval": fmt.Sprint(probe),
		"idle_session_timeout":             fmt.Sprint(3 * probe),
		"statement_timeout":                fmt.Sprint(2 * probe),
		"tcp_keepalives_idle":              "5",
		"tcp_keepalives_interval":          "2",
		"tcp_keepalives_count":             "3",
	}
	for name, value := range settings {
		if err := s.open(ctx, func(ctx context.Context) error {
			_, err := s.conn.Exec(ctx, `select set_config($1, $2, false)`, name, value)
			return err
		}); err != nil {
			return fmt.Errorf("set %s on the database session: %w", name, err)
		}
	}

	for c := range s.hints {
		if err := s.open(ctx, func(ctx context.Context) error {
			_, err := s.conn.Exec(ctx, `listen `+pgx.Identifier{c}.Sanitize())
			return err
		}); err != nil {
			return fmt.Errorf("listen for %s: %w", c, err)
		}
	}

	return nil
}

// open runs one statement of the opening under openTimeout.
func (s *Session) open(ctx context.Context, statement func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, openTimeout,
		fmt.Errorf("no answer from the database within %s", openTimeout))
	defer cancel()
	err := statement(ctx)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}

	return err
}

// CheckPooling returns ErrPooled if a proxy that pools transactions stands in front of the
// database: there, a second connection with an open transaction occupies the server session that
// the first one used last, so the first one's next statement reaches another server session. The
// check uses simple statements only, because such proxies break prepared statements and session
// settings.
func CheckPooling(ctx context.Context, cfg *pgx.ConnConfig) error {
	const simple = pgx.QueryExecModeSimpleProtocol
	const where = `select pg_backend_pid()`
	first, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}

	defer func() { _ = first.Close(context.WithoutCancel(ctx)) }()
	var before, after, second int
	if err := first.QueryRow(ctx, where, simple).Scan(&before); err != nil {
		return fmt.Errorf("check for a pooling proxy: %w", err)
	}

	other, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("open a second connection to check for a pooling proxy: %w", err)
	}

	defer func() { _ = other.Close(context.WithoutCancel(ctx)) }()
	if _, err := other.Exec(ctx, `begin`, simple); err != nil {
		return fmt.Errorf("check for a pooling proxy: %w", err)
	}

	if err := other.QueryRow(ctx, where, simple).Scan(&second); err != nil {
		return fmt.Errorf("check for a pooling proxy: %w", err)
	}

	if err := first.QueryRow(ctx, where, simple).Scan(&after); err != nil {
		return fmt.Errorf("check for a pooling proxy: %w", err)
	}

	if before != after || second == before {
		return fmt.Errorf("%w; set SESSION_DATABASE_URL to the address of Postgres itself (or of a pool in session mode)",
			ErrPooled)
	}

	return nil
}

// lockInstance takes the lock of the instance id, and waits for an earlier process to end: on Cloud
// Run the new revision starts before the old one is told to stop.
func (s *Session) lockInstance(ctx context.Context) error {
	lock := Lock{Instance, s.cfg.ChainID, s.cfg.InstanceID}
	deadline := time.Now().Add(s.cfg.Wait)
	ticker := time.NewTicker(min(s.cfg.ProbeEvery, 250*time.Millisecond))
	defer ticker.Stop()
	for logged := false; ; logged = true {
		start := s.cfg.Clock() // of this attempt: the lease does not count the time before it
		if err := s.open(ctx, func(ctx context.Context) (err error) {
			if s.key, err = lock.try(ctx, s.conn, s.cfg.Log); err != nil || s.key == 0 {
				return err
			}

			return s.conn.QueryRow(ctx, `select clock_timestamp(), pg_backend_pid()`).Scan(&s.since, &s.pid)
		}); err != nil {
			return fmt.Errorf("take the lock of instance %s: %w", s.cfg.InstanceID, err)
		}

		if s.key != 0 {
			s.extend(start)
			return nil
		}

		taken := fmt.Errorf("%w: another live process has INSTANCE_ID=%s on chain %d; this one waits for its end for %s "+
			"(INSTANCE_LOCK_WAIT) and then exits: give each instance its own INSTANCE_ID",
			ErrTaken, s.cfg.InstanceID, s.cfg.ChainID, s.cfg.Wait)
		if !time.Now().Before(deadline) {
			return taken
		}

		if !logged {
			s.cfg.Log.WarnContext(ctx, "another live process has this instance id, waiting for it to end",
				slog.Duration("wait", s.cfg.Wait))
		}

		if s.cfg.Waiting != nil {
			s.cfg.Waiting(taken)
		}

		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

func (s *Session) extend(start time.Duration) { s.lease.Store(int64(start + s.leaseTime())) }

func (s *Session) leaseTime() time.Duration {
	return time.Duration(LeaseProbes * float64(s.cfg.ProbeEvery))
}

// left is what remains of the lease; it may be negative.
func (s *Session) left() time.Duration { return time.Duration(s.lease.Load()) - s.cfg.Clock() }

// Valid reports whether the lease still runs: until it ends, every right held through the session
// stays here. It costs one reading of the clock, so ask before each act that the database cannot
// refuse, such as publishing.
func (s *Session) Valid() bool {
	select {
	case <-s.done:
		return false
	default:
		return s.left() > 0
	}
}

// Memory identifies what the database server remembers. The identity changes when the server, or
// one of its processes, crashes and when a standby is promoted: commits made before may be lost
// there. An orderly restart keeps it. It is constant for the life of a session.
func (s *Session) Memory() string { return s.memory }

// remember reads the identity, or creates it where it is missing.
func (s *Session) remember(ctx context.Context) error {
	for s.memory == "" { // the second time, where another session has drawn one at the same moment
		if err := s.open(ctx, func(ctx context.Context) error {
			return s.conn.QueryRow(ctx, nameMemory).Scan(&s.memory)
		}); err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("ask what the database server remembers: %w", err)
		}
	}

	return nil
}

const nameMemory = `
	with drawn as (
		insert into memory select where not exists (select from memory) on conflict do nothing returning id)
	select id::text from drawn union all select id::text from memory limit 1`

// Done is closed when the session is over.
func (s *Session) Done() <-chan struct{} { return s.done }

// Key is the key of the instance's advisory lock, which shows the others that it is alive.
func (s *Session) Key() int64 { return s.key }

// Hint returns the channel that fires after a notification on one of SessionConfig.Channels. Its
// capacity is one: several notifications become one hint. Each channel has one reader.
func (s *Session) Hint(channel string) <-chan struct{} { return s.hints[channel] }

// Find looks for the session's lock through the pool. ErrElsewhere means that the lock is missing
// there, so the other instances would see this one as dead.
func (s *Session) Find(ctx context.Context, db *pgxpool.Pool) error {
	return find(ctx, db, s.key, s.pid, func() error {
		return s.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error { return conn.Ping(ctx) })
	})
}

// CheckSame returns ErrElsewhere unless the session's connections and the pool's reach the same
// database of the same server. It runs before anything is written to either.
func CheckSame(ctx context.Context, cfg *pgx.ConnConfig, db *pgxpool.Pool) error {
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("connect to the database: %w", err)
	}

	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var pid uint32 // as the server says: a proxy gives connections other numbers
	if err := conn.QueryRow(ctx, `select pg_backend_pid()`).Scan(&pid); err != nil {
		return fmt.Errorf("ask for the server process: %w", err)
	}

	var key int64 // random: unique to this check and unpredictable for other logins
	if err := conn.QueryRow(ctx, `select key from (select ('x' || encode(substr(uuid_send(gen_random_uuid()), 1, 8), 'hex'))::bit(64)::bigint as key
		offset 0) k, pg_advisory_lock(key)`).Scan(&key); err != nil {
		return fmt.Errorf("take an advisory lock: %w", err)
	}

	return find(ctx, db, key, pid, func() error { return conn.Ping(ctx) })
}

// find looks through the pool for a lock that a server process holds while its session lives. If
// the database has ended that session meanwhile, as at a failover, the lock is gone everywhere, and
// find returns alive's error.
func find(ctx context.Context, db *pgxpool.Pool, key int64, pid uint32, alive func() error) error {
	var there bool
	err := db.QueryRow(ctx, `
		select exists (select from pg_locks where locktype = 'advisory' and granted and objsubid = 1 and pid = $2::bigint
		               and database = (select oid from pg_database where datname = current_database())
		               and (classid::bigint << 32 | objid::bigint) = $1)`, key, pid).Scan(&there)
	if err != nil {
		return fmt.Errorf("look for the session's lock through the pool: %w", err)
	}

	if there {
		return nil
	}

	if err := alive(); err != nil {
		return fmt.Errorf("the session ended while its lock was looked for: %w", err)
	}

	return fmt.Errorf("%w: DATABASE_URL and SESSION_DATABASE_URL must name the same database of the same server "+
		"(the primary)", ErrElsewhere)
}

// Do runs f on the session's connection, between probes, within the lease: f must use the context
// that it gets. Do returns ErrLost when the session is over. Once f has begun, the deadline of ctx
// applies but its cancellation does not: pgx closes a connection when its statement is cancelled, and
// a stop releases slots and leadership through it.
func (s *Session) Do(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	if ctx.Err() != nil { // select chooses at random
		return ctx.Err()
	}

	r := request{ctx: ctx, run: f, done: make(chan error, 1)}
	select {
	case s.requests <- r:
	case <-s.done:
		return ErrLost
	case <-ctx.Done():
		return ctx.Err()
	}

	select {
	case err := <-r.done:
		return err
	case <-s.done:
		return ErrLost
	}
}

// Run probes the session, forwards notifications and serves Do, until ctx ends (nil) or the session
// is lost (ErrLost). When it returns, the connection is closed and all locks are free.
func (s *Session) Run(ctx context.Context) (err error) {
	defer close(s.done)
	defer s.Close()
	next := time.Now().Add(s.cfg.ProbeEvery)
	for {
		r, err := s.wait(ctx, next)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("%w: %w", ErrLost, err)
		case r != nil:
			// An answered statement would prove as much, but a probe is known to be quick.
			ctx, cancel := deadlineOnly(r.ctx)
			err := s.within(ctx, func(ctx context.Context) error { return r.run(ctx, s.conn) })
			cancel()
			r.done <- err
			if s.conn.IsClosed() {
				return fmt.Errorf("%w: the connection was closed by a statement: %w", ErrLost, err)
			}
		}

		if time.Now().Before(next) {
			continue
		}

		start := s.cfg.Clock()
		next = time.Now().Add(s.cfg.ProbeEvery)
		err = s.within(ctx, func(ctx context.Context) error {
			_, err := s.conn.Exec(ctx, `select 1`)
			return err
		})
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}

			return fmt.Errorf("%w: %w", ErrLost, err)
		}

		s.extend(start)
	}
}

// within runs statements on the connection until the lease ends: Run must notice a silent
// connection.
func (s *Session) within(ctx context.Context, run func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.left(), fmt.Errorf("no answer within the lease of %s", s.leaseTime()))
	defer cancel()
	err := run(ctx)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}

	return err
}

// deadlineOnly returns a context that keeps the deadline of ctx but ignores its cancellation.
func deadlineOnly(ctx context.Context) (context.Context, context.CancelFunc) {
	free := context.WithoutCancel(ctx)
	if at, ok := ctx.Deadline(); ok {
		return context.WithDeadline(free, at)
	}

	return free, func() {}
}

// wait forwards notifications until a request comes (it is returned), the next probe is due (nil,
// nil), or an error occurs.
func (s *Session) wait(ctx context.Context, until time.Time) (*request, error) {
	waitCtx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	got := make(chan *request, 1)
	go func() { // ends with waitCtx, and is waited for below
		select {
		case r := <-s.requests:
			got <- &r
		case <-waitCtx.Done():
			got <- nil
		}

		cancel()
	}()
	for {
		n, err := s.conn.WaitForNotification(waitCtx)
		if err == nil {
			if n.Payload == s.chain { // the channels are shared by all chains of the database
				select {
				case s.hints[n.Channel] <- struct{}{}:
				default:
				}
			}

			continue
		}

		interrupted := waitCtx.Err() != nil
		cancel()
		if r := <-got; r != nil {
			if s.conn.IsClosed() {
				r.done <- ErrLost
				return nil, err
			}

			return r, nil
		}

		if interrupted && !s.conn.IsClosed() {
			return nil, nil
		}

		return nil, err
	}
}
