package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/lab"
)

// Forms of URLs with a secret in each place that one may stand in: of endpoints that live (H is one),
// of some that do not, and of what people write by mistake.
var (
	livingForms = []string{"http://%s@H/", "http://%s:pw@H/", "http://user:%s@H/", "http://:%s@H", "http://H/%s",
		"http://H/v3/%s/", "http://H/?apikey=%s", "http://H/?%s", "http://H/x?a=b&c=%s", "HTTP://user:%s@H", "ws://H/ws/%s",
		"ws://user:%s@H/?token=1", "http://H/a%%2F%s"}
	deadForms = []string{"https://%s.example.invalid/", "https://rpc.%s.example.invalid/v2", "http://[::1]:1/%s",
		"http://user:%s@[::1]:1/", "ws://%s@[::1]:1/", "wss://user:%s@127.0.0.1:1/", "https://127.0.0.1:1/v2/%s?x=y"}
	brokenForms = []string{"http://user@%s:5432@127.0.0.1:1/",
		"http://user?%s@127.0.0.1:1/", "http://user#%s@127.0.0.1:1/", "http://user:p/%s@127.0.0.1:1/",
		"http://user:p?%s@127.0.0.1:1/", "http://user:%s@127.0.0.1:port/", "ftp://user:%s@127.0.0.1/", "http:/%s@h/",
		"http://user:%s@h:1/ http://other/", "%s", "user:%s@host", "http://127.0.0.1:1;%s/", "http://%%zz%s/"}
	databaseForms = []string{"postgres://user:%s@127.0.0.1:1/escrow", "postgres://user:a?%s@127.0.0.1:1/escrow",
		"postgres://user?%s@127.0.0.1:1/escrow", "postgres://user#%s@127.0.0.1:1/escrow",
		"postgres://user@%s:5432@127.0.0.1:1/escrow", "postgres://user:p@%s@127.0.0.1:1/escrow",
		"postgres://user:p/%s@127.0.0.1:1/escrow", "postgresql://user:%%41%s@127.0.0.1:1/escrow",
		"postgres://user@127.0.0.1:1/escrow?password=%s", "POSTGRES://user:%s@127.0.0.1:1/escrow",
		"host=127.0.0.1 port=1 user=me password=%s", "host=127.0.0.1 port=1 user=me password='a %s'",
		`host=127.0.0.1 port=1 user=me password=a\ %s`, "host=127.0.0.1 port=x password=%s",
		"postgres://user:%s@no.such.host.invalid/escrow"}
)

// places makes URLs and remembers their secrets.
type places struct {
	t       *testing.T
	secrets []string
}

func (p *places) url(form, host string) string {
	secret := fmt.Sprintf("Hush7%02dPlace", len(p.secrets))
	p.secrets = append(p.secrets, secret)

	return strings.ReplaceAll(fmt.Sprintf(form, secret), "H/", host+"/")
}

// clean fails where a secret stands in a text, in whatever form.
func (p *places) clean(what, text string) {
	p.t.Helper()
	lower := strings.ToLower(text)
	for i, s := range p.secrets {
		for _, pair := range []string{s + ":", "user:" + s, ":" + s, s + ":pw"} {
			require.NotContains(p.t, text, base64.StdEncoding.EncodeToString([]byte(pair)), "%s: secret %d", what, i)
		}

		at := strings.Index(lower, strings.ToLower(s))
		require.Negative(p.t, at, "%s: %s", what, text[max(0, at-200):min(len(text), max(0, at)+100)])
	}
}

// No secret of a URL is shown, wherever in it it stands, whether its endpoint lives, repeats it, does
// not answer, or is none.
func TestSecretsInEveryPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *lab.Options) { o.Env["LOG_LEVEL"], o.Env["RPC_TIMEOUT"] = "debug", "1s" })
	w.blocks(3)
	node, err := faults.NewNode(w.Chain.HTTP(), w.Chain.WS(), 1)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, node.Close()) })
	host := strings.TrimPrefix(node.HTTP(), "http://")
	p := &places{t: t}

	t.Run("endpoints", func(t *testing.T) {
		var urls []string
		for _, form := range livingForms {
			urls = append(urls, strings.ReplaceAll(p.url(form, host), "@H", "@"+host))
		}

		for _, form := range deadForms {
			urls = append(urls, p.url(form, host))
		}

		env := w.Environ("places", 0, 1, map[string]string{"RPC_URLS": strings.Join(urls, ",")})
		for _, args := range [][]string{{"doctor", "--timeout", "20s"}, {"doctor", "--timeout", "20s", "--json"}} {
			_, out := call(t, env, args...)
			require.Contains(t, out, "example.invalid")
			p.clean(strings.Join(args, " "), out)
		}

		r := w.run("r0", 0, 1, map[string]string{"RPC_URLS": strings.Join(urls, ",")})
		w.ready("r0")
		w.blocks(2)
		for _, f := range []faults.Fault{
			{Mode: faults.Refused, Words: "no project " + strings.Join(p.secrets, " ") + " at " + urls[0]},
			{Mode: faults.Down},
		} {
			hit := node.Inject(f)
			require.Eventually(t, func() bool { return hit.Hits() > 20 }, patience, 20*time.Millisecond)
			for _, path := range []string{"/", "/metrics", "/status", "/readyz", "/api/v1/instances"} {
				p.clean(path, page(t, r.URL+path))
			}

			hit.Remove()
		}

		log, err := os.ReadFile(r.LogFile)
		require.NoError(t, err)
		p.clean("log", string(log))
	})

	t.Run("what is none", func(t *testing.T) {
		for _, form := range brokenForms {
			env := w.Environ("places", 0, 1, map[string]string{"RPC_URLS": p.url(form, host)})
			_, out := call(t, env, "doctor", "--timeout", "2s")
			require.NotEmpty(t, out)
			p.clean(form, out)
		}
	})

	t.Run("database", func(t *testing.T) {
		for _, form := range databaseForms {
			env := w.Environ("places", 0, 1, map[string]string{"DATABASE_URL": p.url(form, "")})
			for _, args := range [][]string{{"doctor", "--timeout", "1s"}, {"status"}} {
				code, out := call(t, env, args...)
				require.NotZero(t, code)
				p.clean(form, out)
			}
		}
	})
}

// page reads one of an instance's pages.
func page(t *testing.T, at string) string {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)

	return fmt.Sprint(resp.Header) + string(b)
}
