package redact_test

import (
	"errors"
	"fmt"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/redact"
)

func TestURL(t *testing.T) {
	for raw, want := range map[string]string{
		"https://mainnet.infura.io/v3/0123456789abcdef":  "https://***.infura.io",
		"wss://user:secret@node.example.com:8546/?key=k": "wss://***.example.com:8546",
		"http://127.0.0.1:8545/abc":                      "http://127.0.0.1:8545",
		"http://[::1]:8545":                              "http://[::1]:8545",
		"http://localhost":                               "http://localhost",
		"://":                                            "***",
		"\x7f":                                           "***",
		"":                                               "***",
	} {
		require.Equal(t, want, redact.URL(raw), raw)
	}
}

func TestMask(t *testing.T) {
	s := redact.New(
		"https://mainnet.infura.io/v3/0123456789abcdef", "https://user:hunter2@rpc.example.com/?apikey=topsecret",
		"postgresql://relayer:p%40ssword@db.example.com/escrows_of_chain?sslmode=require",
		"host=db user=me password='qu oted' dbname=escrows",
	)
	for in, want := range map[string]string{
		"key 0123456789abcdef is over its limit":                      "key *** is over its limit",
		"Post \"https://mainnet.infura.io/v3/0123456789abcdef\": EOF": "Post \"https://***.infura.io\": EOF",
		"hunter2 topsecret p@ssword p%40ssword":                       "*** *** *** ***",
		"qu oted":                                                     "***",
		"database \"escrows_of_chain\" does not exist":                "database \"escrows_of_chain\" does not exist",
		"lookup mainnet.infura.io: no such host":                      "lookup ***.infura.io: no such host",
	} {
		require.Equal(t, want, s.Mask(in))
	}
}

// A list of URLs is one text to whoever does not know that it is a list.
func TestListOfURLs(t *testing.T) {
	raw := "http://127.0.0.1:8545,ws://rpc.customer.example.com:8546"
	require.NotPanics(t, func() { require.NotContains(t, redact.New(raw).Mask("dial "+raw), "customer") })
}

func TestErrorKeepsItsChain(t *testing.T) {
	cause := errors.New("connection refused")
	err := fmt.Errorf("ask: %w", &url.Error{Op: "Post", URL: "https://a.b.example.com/v2/qwertyuiop", Err: cause})
	got := redact.New().Error(err)
	require.EqualError(t, got, `ask: Post "https://***.example.com": connection refused`)
	require.ErrorIs(t, got, cause)
	var u *url.Error
	require.ErrorAs(t, got, &u)
	require.NoError(t, redact.New().Error(nil))
	require.Same(t, cause, redact.New("https://x.example.com/another-key").Error(cause))
}

// A password that is an ordinary word is masked where a password stands, and nowhere else: not in the name of the
// program, of an instance or of a database. With a plus it is masked in every form.
func TestAWordIsASecretOnlyWhereSecretsStand(t *testing.T) {
	t.Parallel()
	s := redact.New("postgresql://relayer:relayer@db.internal/relayer")
	for text, want := range map[string]string{
		"instance relayer-0 of escrow-relayer":                  "instance relayer-0 of escrow-relayer",
		"run `escrow-relayer migrate` as relayer":               "run `escrow-relayer migrate` as relayer",
		"dial postgres://relayer:relayer@db: refused":           "dial postgres://***@db: refused",
		"user=relayer password=relayer dbname=relayer":          "user=relayer password=*** dbname=relayer",
		"user=relayer password='relayer' sslmode=disable":       "user=relayer password='***' sslmode=disable",
		`database "relayer" of user "relayer" on relayer.local`: "database \"relayer\" of user \"relayer\" on relayer.local",
	} {
		require.Equal(t, want, s.Mask(text))
	}

	for _, url := range []string{"postgres://u:horse+battery9@h/d", "postgres://u:horse%2Bbattery9@h/d",
		"postgres://u@h/d?password=horse+battery9"} {
		s := redact.New(url)
		for _, form := range []string{"horse+battery9", "horse%2Bbattery9"} {
			require.NotContains(t, s.Mask("it says "+form+" here"), form, url)
		}
	}

	for url, weak := range map[string]bool{
		"postgres://relayer:relayer@h/d": true, "postgres://u:secret@h/d": true, "postgres://u:hunter2@h/d": true,
		"postgres://u:9f0c2b7ad1e84c55@h/d": false, "postgres://u@h/d": false, "host=h": false,
	} {
		require.Equal(t, weak, redact.Weak(url), url)
	}
}
