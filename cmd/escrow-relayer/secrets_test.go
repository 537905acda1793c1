package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/port"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// keyed puts a secret into every place of a URL that may hold one.
type keyed struct {
	t       *testing.T
	secrets []string
}

func (k *keyed) secret(where string) string {
	s := fmt.Sprintf("hush-%d-%s", len(k.secrets), where)
	k.secrets = append(k.secrets, s)
	return s
}

func (k *keyed) rpc(raw string) string {
	u, err := url.Parse(raw)
	require.NoError(k.t, err)
	u.User = url.UserPassword("project", k.secret("password"))
	u.Path = "/v3/" + k.secret("path")
	u.RawQuery = "apikey=" + k.secret("query")

	return u.String()
}

func (k *keyed) database(raw string) string {
	u, err := url.Parse(raw)
	require.NoError(k.t, err)
	u.User = url.UserPassword(u.User.Username(), k.secret("database"))

	return u.String()
}

// clean fails if a text has a secret in it. It does not print the text, but where it stands.
func (k *keyed) clean(what, text string) {
	k.t.Helper()
	for _, s := range k.secrets {
		for _, form := range []string{s, url.QueryEscape(s)} {
			if at := strings.Index(text, form); at >= 0 {
				require.Fail(k.t, "a secret got out", "%s: %s", what, text[max(0, at-200):min(len(text), at+len(form)+50)])
			}
		}
	}
}

// No secret gets out: not into logs, pages, metrics, help, or the database, whatever goes wrong.
func TestSecretsStay(t *testing.T) {
	t.Parallel()
	k := &keyed{t: t}
	w := newWorld(t, func(o *lab.Options) { o.Env["LOG_LEVEL"], o.Env["RPC_TIMEOUT"] = "debug", "1s" })
	nodes := [2]*faults.Node{}
	for i := range nodes {
		n, err := faults.NewNode(w.Chain.HTTP(), w.Chain.WS(), uint64(i))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, n.Close()) })
		nodes[i] = n
	}

	network, raw, err := faults.ProxyURL(w.URL)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, network.Close()) })
	httpURL, wsURL, database := k.rpc(nodes[0].HTTP()), k.rpc(nodes[1].WS()), k.database(raw)
	env := map[string]string{"RPC_URLS": httpURL + "," + wsURL, "DATABASE_URL": database,
		"SESSION_PROBE_INTERVAL": "1s"}
	with := func(name, value string) map[string]string {
		m := map[string]string{name: value}
		for key, v := range env {
			if key != name {
				m[key] = v
			}
		}

		return m
	}
	look := func(when string, p *lab.Process) {
		t.Helper()
		for _, path := range []string{"/", "/metrics", "/status", "/readyz", "/healthz", "/api/v1/instances", "/nowhere"} {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+path, nil)
			require.NoError(t, err)
			if resp, err := http.DefaultClient.Do(req); err == nil { // while the database is gone, some may take too long
				b, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				k.clean(when+": "+path, fmt.Sprint(resp.Header)+string(b))
			}

			cancel()
		}
	}
	logOf := func(p *lab.Process) string {
		b, err := os.ReadFile(p.LogFile)
		require.NoError(t, err)
		return string(b)
	}
	logged := func(p *lab.Process, words string) {
		t.Helper()
		require.Eventually(t, func() bool { return strings.Contains(logOf(p), words) }, patience, 20*time.Millisecond,
			"waiting for %q in the log of %s", words, p.ID)
	}

	// What goes wrong while it runs.
	p := w.run("r0", 0, 1, env)
	w.ready("r0")
	w.blocks(3)
	look("running", p)
	for _, f := range []faults.Fault{
		{Mode: faults.Down}, {Mode: faults.Limited}, {Mode: faults.Failing}, {Mode: faults.HTML}, {Mode: faults.Malformed},
		{Mode: faults.Refused, Words: "project " + k.secrets[1] + " may not do this, see " + httpURL},
		{Mode: faults.Chain, N: 5},
	} {
		var hit [2]*faults.Injected
		for i, n := range nodes {
			hit[i] = n.Inject(f)
		}

		w.blocks(1)
		require.Eventually(t, func() bool {
			return f.Mode == faults.Chain || hit[0].Hits()+hit[1].Hits() > 0
		}, patience, 20*time.Millisecond, f)
		look(string(f.Mode), p)
		for _, h := range hit {
			h.Remove()
		}
	}

	undo := network.Cut()
	w.until("without its session", func(f *fleet.Fleet) bool { i := f.Find("r0"); return i == nil || !i.Alive })
	logged(p, "tenure over")
	look("database gone", p)
	require.NoError(t, undo())
	w.until("back", slotsOf("r0", 2520))
	look("back", p)
	// Not every fault is logged: a line is written when an endpoint's trouble changes. Where the words
	// with a secret were, the mask is.
	if strings.Contains(logOf(p), "may not do this") {
		require.Contains(t, logOf(p), "***")
	}

	rows, err := w.DB.Query(t.Context(), `select tablename from pg_tables where schemaname = 'public'`)
	require.NoError(t, err)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Contains(t, tables, "relayer_instances")
	texts := 0
	for _, table := range tables {
		rows, err := w.DB.Query(t.Context(), "select t::text from "+pgx.Identifier{table}.Sanitize()+" t")
		require.NoError(t, err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		texts += len(lines)
		k.clean("table "+table, strings.Join(lines, "\n"))
	}

	require.Greater(t, texts, 2520)
	var activity string
	require.NoError(t, w.DB.QueryRow(t.Context(),
		`select string_agg(a::text, ' ') from pg_stat_activity a`).Scan(&activity))
	k.clean("pg_stat_activity", activity)
	p.Signal(syscall.SIGQUIT) // as a panic does, it prints every goroutine
	_, err = p.Wait(t.Context())
	require.NoError(t, err)
	require.Contains(t, logOf(p), "goroutine 1 ")
	k.clean("running", logOf(p))

	// What keeps it from starting.
	closed, err := port.Reserve()
	require.NoError(t, err)
	defer closed.Close()
	nobody := "http://" + closed.Addr()
	wrong := nodes[0].Inject(faults.Fault{Mode: faults.Chain, N: 5})
	for i, c := range []struct {
		name string
		env  map[string]string
		says string
		code int
	}{
		{"wrong chain", env, "serves chain 5", exitRefused},
		{"node down", with("RPC_URLS", k.rpc(nobody)), "no RPC endpoint is available", exitNo},
		{"wrong host", with("RPC_URLS", k.rpc("https://no.such.host.invalid")), "no RPC endpoint is available", exitNo},
		{"database down", with("DATABASE_URL",
			k.database(strings.Replace(w.URL, strings.Split(strings.Split(w.URL, "@")[1], "/")[0], closed.Addr(), 1))),
			"nothing accepts connections", exitNo},
		{"no such database", with("DATABASE_URL", k.database(strings.Replace(w.URL, "/relayer", "/nobody", 1))),
			"does not exist", exitRefused},
		{"unknown topic", with("PUBSUB_TOPIC_ID", "nobody-made-it"), "nobody-made-it", exitRefused},
		{"no URL", with("RPC_URLS", strings.Replace(k.rpc(nobody), "http://", "ftp://", 1)), "is not an http", exitRefused},
		{"broken URL", with("RPC_URLS", "http://user:"+k.secret("broken")+"@host:port/"+k.secret("broken-path")),
			"is not an http", exitRefused},
		{"broken DSN", with("DATABASE_URL", "postgres://user:"+k.secret("dsn")+"@host:port/relayer"),
			"is not a Postgres URL", exitRefused},
		{"broken keywords", with("DATABASE_URL", "host=x port=abc password="+k.secret("keyword")),
			"is not a Postgres URL", exitRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			// What is refused ends at once; the limit is for what has to be given up.
			c.env["DB_OUTAGE_LIMIT"] = map[int]string{exitRefused: "1m", exitNo: "5s"}[c.code]
			if i > 0 {
				wrong.Remove()
			}

			p := w.run(fmt.Sprintf("x%d", i), 0, 1, c.env)
			code := 0
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			for done := false; !done; {
				look(c.name, p)
				select {
				case <-p.Exited():
					done = true
				case <-ctx.Done():
					require.Fail(t, "it does not end", logOf(p))
				case <-time.After(100 * time.Millisecond):
				}
			}

			code, err := p.Wait(ctx)
			require.NoError(t, err)
			k.clean(c.name, logOf(p))
			require.Contains(t, logOf(p), c.says)
			require.Equal(t, c.code, code, logOf(p))
		})
	}

	// What people call.
	for _, args := range [][]string{{"run", "--help"}, {"--help"}, {"status"}, {"audit", "--help"}, {"replay", "--help"},
		{"migrate"}, {"run", "--nonsense"}} {
		var out bytes.Buffer
		cmd := exec.CommandContext(t.Context(), bin, args...)
		cmd.Env, cmd.Stdout, cmd.Stderr = w.Environ("cli", 0, 1, env), &out, &out
		_ = cmd.Run() // some are meant to fail
		require.NotEmpty(t, out.String(), args)
		k.clean(strings.Join(args, " "), out.String())
	}

	for _, database := range []string{k.database(strings.Replace(raw, "/relayer", "/nobody", 1)),
		"host=x port=abc password=" + k.secrets[0]} {
		cmd := exec.CommandContext(t.Context(), bin, "status")
		cmd.Env = w.Environ("cli", 0, 1, with("DATABASE_URL", database))
		out, err := cmd.CombinedOutput()
		require.Error(t, err)
		k.clean("status", string(out))
	}
}
