package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
)

// What an instance waits for, and what to do about it, is in the log from the first second on; and
// one line says what it is about to do.
func TestWhatAStartSays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, silent.Close()) })
	page := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(rw, "<html><body>Please log in</body></html>")
	}))
	t.Cleanup(page.Close)
	locked := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		http.Error(rw, "who are you", http.StatusUnauthorized)
	}))
	t.Cleanup(locked.Close)
	hanging := silent.Addr().String()

	for i, c := range []struct {
		name, variable, value string
		says                  []string
	}{
		{"Pub/Sub hangs", "PUBSUB_EMULATOR_HOST", hanging,
			[]string{"waiting for an answer", "PUBSUB_EMULATOR_HOST=" + hanging, "start it"}},
		{"the node hangs", "RPC_URLS", "http://" + hanging, []string{"waiting for an answer", "RPC_URLS"}},
		{"the database hangs", "DATABASE_URL", "postgres://u@" + hanging + "/d",
			[]string{"waiting for an answer", "DATABASE_URL"}},
		{"a page for a node", "RPC_URLS", page.URL, []string{"with a page and not with JSON-RPC",
			"correct its host, port and path in RPC_URLS"}},
		{"no key for a node", "RPC_URLS", locked.URL, []string{"does not accept the key", "RPC_URLS"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := w.run(fmt.Sprintf("s%d", i), 0, 1, map[string]string{c.variable: c.value, "CONFIRMATION": "3"})
			require.Eventually(t, func() bool {
				log := readLog(t, p)
				for _, words := range c.says {
					if !strings.Contains(log, words) {
						return false
					}
				}

				return true
			}, 60*time.Second, 50*time.Millisecond, "%v: %s", c.says, logReader{t, p})

			log := readLog(t, p)
			for _, words := range []string{
				`"message":"configured"`, `"chain":1337`, `"factories":["` + w.Contracts.Factory.Hex(),
				`"finality":"2 confirmations"`,
				`"partition":"0 of 1, modulo"`, `"endpoints":[`, `"topic":"` + lab.Topic, "was CONFIRMATIONS meant?",
			} {
				require.Contains(t, log, words)
			}

			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			require.NoError(t, p.Stop(ctx), "a stop is not held up by what it waits for")
		})
	}
}

// logReader reads a log when a test has failed.
type logReader struct {
	t *testing.T
	p *lab.Process
}

func (l logReader) String() string { return readLog(l.t, l.p) }

// An address with code that is not a factory is refused: nothing would ever come.
func TestSomethingElseThanAFactory(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.run("r0", 0, 1, nil)
	w.ready("r0")
	w.blocks(5)
	w.audit(false)
	var escrow string
	require.NoError(t, w.DB.QueryRow(t.Context(), `select address from escrow_registry limit 1`).Scan(&escrow))

	code, out := call(t, w.Environ("r1", 0, 1, map[string]string{"FACTORY_ADDRESS": escrow, "PORT": "0",
		"DATABASE_URL": w.another("other")}), "run")
	require.Equal(t, exitRefused, code, out)
	require.Contains(t, out, "looks like an escrow; name the factory that deployed it")
}
