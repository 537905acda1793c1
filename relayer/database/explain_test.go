package database

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

// What a real server and real networks answer to wrong settings is said in words, with the remedy,
// and without the password.
func TestExplain(t *testing.T) {
	t.Parallel()
	right := testpg.New(t)
	run(t, right, `create role reader login`, `grant select on all tables in schema public to reader`,
		`create role nobody login`, `create role frozen login`, `alter role frozen set default_transaction_read_only = on`,
		`grant insert, select on leadership to frozen`)
	t.Cleanup(func() {
		run(t, right, `drop owned by reader`, `drop role reader`, `drop role nobody`, `drop owned by frozen`,
			`drop role frozen`)
	})
	page := answering(t, "HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\n\r\n<html></html>")
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, silent.Close()) })

	const write = `insert into leadership (chain_id, next_block, start_block, verified_block) values (1, 1, 1, 0)`
	for name, c := range map[string]struct {
		change  func(*url.URL)
		sql     string
		says    []string
		lasting bool
	}{
		"no such database": {func(u *url.URL) { u.Path = "/nowhere" }, `select 1`,
			[]string{`"nowhere" does not exist`, "DATABASE_URL", "create"}, true},
		"no such user": {func(u *url.URL) { u.User = url.UserPassword("stranger", "s3cret") }, `select 1`,
			[]string{"stranger", "correct the user"}, true},
		"no schema": {func(*url.URL) {}, `select 1 from nothing_of_ours`,
			[]string{"no schema", "escrow-relayer migrate"}, true},
		"prepared twice": {func(*url.URL) {}, `prepare a as select 1; prepare a as select 1`,
			[]string{"already exists", "set SESSION_DATABASE_URL"}, true},
		"prepared elsewhere": {func(*url.URL) {}, `execute a`, []string{"does not exist", "set SESSION_DATABASE_URL"}, false},
		"no right": {func(u *url.URL) { u.User = url.User("nobody") }, `select 1 from leadership`,
			[]string{"permission denied", "grant"}, true},
		"reader writes": {func(u *url.URL) { u.User = url.User("reader") }, write,
			[]string{"permission denied for table leadership", "grant"}, true},
		"read-only": {func(u *url.URL) { u.User = url.User("frozen") }, write,
			[]string{"read-only", "primary"}, false},
		"no TLS": {func(u *url.URL) { u.RawQuery = "sslmode=require" }, `select 1`,
			[]string{"has no TLS", "sslmode=disable"}, true},
		"nobody listens": {func(u *url.URL) { u.Host = "127.0.0.1:1" }, `select 1`,
			[]string{"nothing accepts connections at 127.0.0.1:1", "start the database"}, false},
		"unknown host": {func(u *url.URL) { u.Host = "no.such.host.invalid:5432" }, `select 1`,
			[]string{"no.such.host.invalid", "not known", "DNS"}, false},
		"a web server": {func(u *url.URL) { u.Host = page }, `select 1`,
			[]string{"does not answer as Postgres does", "port"}, true},
		"silence": {func(u *url.URL) { u.Host = silent.Addr().String() }, `select 1`,
			[]string{"does not answer", "firewall"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			u, err := url.Parse(right)
			require.NoError(t, err)
			u.User = url.UserPassword("postgres", "s3cret")
			c.change(u)
			limit := time.Minute
			if name == "silence" {
				limit = 3 * time.Second
			}

			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()

			err = Explain(execute(ctx, u.String(), c.sql))
			e := new(Explained)
			require.ErrorAs(t, err, &e)
			for _, words := range c.says {
				require.Contains(t, e.Error(), words)
			}

			require.Equal(t, c.lasting, Lasting(err), e)
			require.NotContains(t, e.Error(), "s3cret")
			require.Equal(t, name == "no schema", errors.Is(err, ErrNoSchema))
			require.Same(t, err, Explain(err), "once is enough")
		})
	}

	other := errors.New("something else")
	require.Equal(t, other, Explain(other))
	require.NoError(t, Explain(nil))
}

// What a server answers to a wrong password, and to somebody without TLS whom it admits only with it.
func TestExplainAuthentication(t *testing.T) {
	t.Parallel()
	pg, err := testpg.Start(t.Context(), testpg.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pg.Stop(context.Background())) })
	admin, err := pgx.Connect(t.Context(), pg.URL("postgres"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, admin.Close(context.Background())) })
	var rules string
	require.NoError(t, admin.QueryRow(t.Context(), `show hba_file`).Scan(&rules))
	_, err = admin.Exec(t.Context(), `create role locked login password 'right'; create role encrypted login;
		copy (select unnest(array['local all all trust', 'host all postgres all trust',
			'host all locked all scram-sha-256', 'hostssl all encrypted all trust'])) to '`+rules+`'; select pg_reload_conf()`)
	require.NoError(t, err)

	for name, c := range map[string]struct {
		user *url.Userinfo
		says []string
	}{
		"wrong password": {url.UserPassword("locked", "s3cret"),
			[]string{"password authentication failed", "correct the user or the password in DATABASE_URL"}},
		"only with TLS": {url.User("encrypted"), []string{"no encryption", "sslmode=require"}},
	} {
		u, err := url.Parse(pg.URL("postgres"))
		require.NoError(t, err)
		u.User, u.RawQuery = c.user, "sslmode=disable"
		require.Eventually(t, func() bool { // the server has read its rules anew
			err = execute(t.Context(), u.String(), `select 1`)
			return err != nil
		}, 10*time.Minute, 20*time.Millisecond, name)

		err = Explain(err)
		for _, words := range c.says {
			require.ErrorContains(t, err, words, name)
		}

		require.True(t, Lasting(err), name)
		require.NotContains(t, err.Error(), "s3cret", name)
	}
}

// execute connects, runs one statement and returns what went wrong.
func execute(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}

	_, err = conn.Exec(ctx, sql)

	return errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
}

func run(t *testing.T, url string, statements ...string) {
	t.Helper()
	require.NoError(t, execute(context.WithoutCancel(t.Context()), url, strings.Join(statements, "; ")))
}

// answering is a server that says the same to everybody, once it has heard something.
func answering(t *testing.T, text string) (address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	go func() { // ends when the listener is closed
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}

			_, _ = conn.Read(make([]byte, 1024))
			_, _ = conn.Write([]byte(text)) // the client finds out
			_ = conn.Close()
		}
	}()

	return l.Addr().String()
}

// A frozen server accepts connections and says nothing: however an attempt ends, it is told as what it is.
func TestFrozenServerIsExplained(t *testing.T) {
	t.Parallel()
	frozen, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, frozen.Close()) })
	pool, err := pgxpool.New(t.Context(), "postgres://u:secret@"+frozen.Addr().String()+"/d?sslmode=disable")
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	for range 20 {
		err := Within(t.Context(), 5*time.Millisecond, func(ctx context.Context) error {
			_, err := pool.Exec(ctx, `select 1`)
			return err
		})
		require.EqualError(t, err, "the database has not answered within 5ms: look at it, and at the network between")
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}

	config := pool.Config()
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err == nil {
			time.AfterFunc(5*time.Millisecond, func() { _ = c.Close() }) // as Renew does
		}

		return c, err
	}
	renewed, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(renewed.Close)
	_, err = renewed.Exec(t.Context(), `select 1`)
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorContains(t, Explain(err), frozen.Addr().String()+" does not answer: look at the network")

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	err = Within(ended, time.Minute, func(ctx context.Context) error { return ctx.Err() })
	require.ErrorIs(t, err, context.Canceled, "the caller has gone: nothing is known of the database")
}
