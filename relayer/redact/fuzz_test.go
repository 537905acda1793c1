package redact_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/redact"
)

// marked is a secret that is told from everything else.
const marked = "s3cr3tM4rk"

// withSecret are URLs with the secret in every position, some of them not as a URL should be.
var withSecret = []string{
	"https://%s.example.com/", "https://eth.%s.quiknode.pro/", "https://rpc.example.com/%s",
	"https://rpc.example.com/v2/%s/", "https://rpc.example.com/v2/x%sy", "https://rpc.example.com/?apikey=%s",
	"https://rpc.example.com/?x=%s&network=ethereum", "https://rpc.example.com/#%s", "https://%s@rpc.example.com/",
	"https://user:%s@rpc.example.com/", "https://%s:pw@rpc.example.com/",
	"wss://user:%s@rpc.example.com:8546/ws", "wss://rpc.example.com/ws/%s", "postgres://user:%s@db:5432/escrow",
	"postgres://user:a?%s@db/escrow", "postgres://user?%s@db/escrow",
	"postgres://user#%s@db/escrow", "postgres://user@%s:5432@db/escrow", "postgres://user:p@%s@db:5432/escrow",
	"postgres://user:p/%s@db/escrow", "postgresql://user:%%41%s@db/escrow",
	"postgres://user@db/escrow?password=%s", "postgres://db/escrow?user=u&sslpassword=%s", "host=db user=me password=%s",
	"host=db user=me password='a %s'", "http://127.0.0.1:8545/%s",
	"https://user:%s@[::1]:8545/", "https://rpc.example.com/a@%s", "https://rpc.example.com/?mail=a@%s",
	"https://rpc.example.com;%s/", "HTTPS://USER:%s@rpc.example.com/", "https://:%s@rpc.example.com/",
	"https://rpc.example.com/v2;%s", "https://rpc.example.com/a%%2F%s", "https://[2001:db8::1]:8545/v2/%s",
	"https://user:a&b<%s@rpc.example.com/",
	"host=db user=me password = %s", `host=db user=me password=a\ %s`, `host=db user=me password='a\'%s'`,
	"host=db user=me PASSWORD=%s", "postgres://user:%s@h1:5432,h2:5432/escrow", "postgres://user:%s@[::1]/escrow",
}

// texts are what is said about a URL that does not work, with everything that a library adds.
func texts(raw string) []string {
	inJSON, _ := json.Marshal("could not reach " + raw)
	list := []string{raw, strings.ToUpper(raw), url.QueryEscape(raw), fmt.Sprintf("%q", raw), "dial " + raw + ": refused",
		string(inJSON), raw + "," + raw, "node says: " + raw}
	if u, err := url.Parse(raw); err != nil {
		list = append(list, err.Error())
	} else {
		list = append(list, u.String(), u.Redacted(), "lookup "+u.Hostname()+": no such host", "path "+u.Path,
			"query "+u.RawQuery, u.Host)
	}

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if req, err := http.NewRequestWithContext(ctx, http.MethodGet, raw, http.NoBody); err != nil {
		list = append(list, err.Error())
	} else if _, err := http.DefaultClient.Do(req); err != nil { //nolint:bodyclose // it never has one
		list = append(list, err.Error())
	}

	if _, err := pgx.ParseConfig(raw); err != nil {
		list = append(list, err.Error())
	}

	return list
}

// No position of a URL shows what stands there.
func TestEveryPosition(t *testing.T) {
	for _, form := range withSecret {
		raw := fmt.Sprintf(form, marked)
		require.NotContains(t, strings.ToLower(redact.URL(raw)), strings.ToLower(marked), form)
		s := redact.New(raw)
		for _, text := range texts(raw) {
			require.NotContains(t, strings.ToLower(s.Mask(text)), strings.ToLower(marked), "%s in %s", form, text)
		}
	}
}

// Plain words of a URL are not taken for secrets: the log stays legible.
func TestPlainWordsStay(t *testing.T) {
	for _, user := range []string{"a", "postgres", "relayer"} {
		for _, raw := range []string{"postgres://" + user + "@db/escrow", "postgres://" + user + ":Xq7pw@db/escrow",
			"host=db user=" + user + " password=Xq7pw", "https://" + user + "@rpc.example.com/",
			"https://" + user + ":Xq7pw@rpc.example.com/"} {
			text := "a relayer of postgres: a database of " + user
			require.Equal(t, text, redact.New(raw).Mask(text), raw)
		}
	}

	log := "component=relayer escrow-relayer/relayer-0 application_name mapped postgres https://github.com/fusion-prime/escrow-relayer network=ethereum app db"
	s := redact.New("postgres://relayer@10.0.0.5/escrow", "postgresql://escrow-relayer@/escrow?host=/cloudsql",
		"postgres://app@db/x", "https://lb.drpc.org/ogrpc?network=ethereum&dkey=AbCdEf")
	require.Equal(t, log, s.Mask(log))
	require.Equal(t, "key ***", s.Mask("key ABCDEF"), "the value of dkey, whatever its case")
}

// The user of an endpoint's URL is a token or goes with one: it is not shown either, nor is what the
// Authorization header makes of both.
func TestUserOfAnEndpoint(t *testing.T) {
	for _, raw := range []string{"https://hushing:pw@rpc.example.com/", "https://hushing@rpc.example.com/",
		"https://hushing:@rpc.example.com/", "https://hushing:p%40w@rpc.example.com/", "wss://hushing:pw@rpc.example.com/"} {
		s := redact.New(raw)
		u, err := url.Parse(raw)
		require.NoError(t, err)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, raw, http.NoBody)
		require.NoError(t, err)
		password, _ := u.User.Password()
		req.SetBasicAuth(u.User.Username(), password)
		basic := req.Header.Get("Authorization")
		require.NotContains(t, s.Mask("it sent "+basic), strings.TrimPrefix(basic, "Basic "), raw)
		for _, text := range texts(raw) {
			require.NotContains(t, strings.ToLower(s.Mask(text)), "hushing", "%s in %s", raw, text)
		}
	}
}

func FuzzSecret(f *testing.F) {
	for _, form := range withSecret {
		before, after, _ := strings.Cut(form, "%s")
		f.Add(before, after)
	}

	f.Fuzz(func(t *testing.T, before, after string) {
		const long = "0123abcdef4567890123abcdef456789"
		scheme, rest, ok := strings.Cut(before, "://")
		if !ok || strings.Contains(scheme, long) || strings.ContainsAny(rest+after, "% \\\"\n\r\t") {
			return
		}

		raw := before + long + after
		if u, err := url.Parse(raw); err != nil || u.Host == "" || strings.Contains(u.Port(), long) ||
			strings.Count(u.Hostname(), ".") < 2 && strings.Contains(u.Hostname(), long) {
			return // the secret is the registered domain: that is no secret
		}

		if labels := strings.Split(hostOf(raw), "."); strings.Contains(strings.Join(labels[max(0, len(labels)-2):], "."),
			long) {
			return
		}

		if strings.HasPrefix(strings.ToLower(scheme), "postgres") {
			return // user names and databases of Postgres are shown
		}

		require.NotContains(t, redact.URL(raw), long)
		require.NotContains(t, strings.ToLower(redact.New(raw).Mask("dial "+raw+": refused")), long)
	})
}

func hostOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}

	return u.Hostname()
}
