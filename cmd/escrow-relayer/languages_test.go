//go:build languages

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// The consumers that the documents show, in each language, end with exactly the approvals of the
// chain, through reorganisations that take published events back and a replay of everything.
func TestConsumersInEveryLanguage(t *testing.T) {
	const root = "../../relayer/message/"
	program := filepath.Join(t.TempDir(), "approvals")
	require.NoError(t, lab.Build(t.Context(), "./"+root+"subscriber/approvals", program))

	w := newWorld(t, func(o *lab.Options) { o.Confirmations = 1 })
	consumers := map[string]*consumer{
		"go":         w.consume("go", root, program),
		"python":     w.consume("python", root+"python", "/usr/bin/python3", "examples/approvals.py"),
		"typescript": w.consume("typescript", root+"typescript", "node", "dist/examples/approvals.js"),
	}
	w.run("a", 0, 1, nil)
	w.ready("a")
	for _, fate := range []testchain.Fate{testchain.Keep, testchain.Drop, testchain.Keep} {
		w.blocks(6)
		w.told()
		require.NoError(t, w.Chain.Reorg(t.Context(), w.Confirmations+3, fate))
		require.NoError(t, w.traffic.Settle(t.Context()))
	}

	w.blocks(6)
	w.told()
	require.NotEmpty(t, w.Retracted.Messages())
	code, text := w.operator(nil, "replay", "--from", "1", "--to", "1000")
	require.Zero(t, code, text)
	want := w.approvals(0)
	require.NotEmpty(t, want)
	for language, c := range consumers {
		if !w.soon(func() bool { return slices.Equal(want, c.approvals()) }) {
			require.Equal(t, want, c.approvals(), "%s: %s", language, c)
		}

		t.Logf("%s: %d approvals, %d retractions", language, len(want), len(w.Retracted.Messages()))
	}
}

// soon waits for something to be true.
func (w *world) soon(ok func() bool) bool {
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*time.Minute)
	defer cancel()
	done := errors.New("it is true")
	err := lab.Every(ctx, 100*time.Millisecond, func() error {
		if ok() {
			return done
		}

		return nil
	})

	return errors.Is(err, done)
}

// told mines what makes everything processable, and waits until each approval was published.
func (w *world) told() {
	require.NoError(w.t, w.Chain.Mine(w.t.Context(), w.Confirmations))
	require.True(w.t, w.soon(func() bool {
		got := map[string]bool{}
		for _, m := range w.Received.Messages() {
			d, err := message.Decode(m.Data, m.Attributes)
			require.NoError(w.t, err)
			if d.EventType == "Approved" {
				got[strings.ToLower(fmt.Sprint(d.Escrow, " ", d.Args["approver"]))] = true
			}
		}

		return !slices.ContainsFunc(w.approvals(w.Confirmations), func(a string) bool { return !got[a] })
	}))
}

// approvals are those of the chain, as escrow and approver, but for the newest blocks.
func (w *world) approvals(newest int) (all []string) {
	head, err := w.Head(w.t.Context())
	require.NoError(w.t, err)
	truth, err := testchain.ReadTruth(w.t.Context(), w.Chain.HTTP(), w.Contracts.Block, head-uint64(newest),
		w.Contracts.Factory)
	require.NoError(w.t, err)
	for _, events := range truth.Events {
		for _, e := range events {
			if e.Name == "Approved" {
				args, err := e.Args()
				require.NoError(w.t, err)
				all = append(all, strings.ToLower(e.Escrow.Hex()+" "+args["approver"]))
			}
		}
	}

	slices.Sort(all)

	return all
}

// consumer is a running program with a database of its own.
type consumer struct {
	t   *testing.T
	url string
	log string
}

// consume starts a program in a folder, with subscriptions of its own to both topics.
func (w *world) consume(name, dir, program string, args ...string) *consumer {
	c := &consumer{t: w.t, url: testpg.Bare(w.t), log: filepath.Join(w.Dir, name+".log")}
	for _, topic := range []string{lab.Topic, lab.Retractions} {
		require.NoError(w.t, testpubsub.CreateSubscription(w.t.Context(), w.PubSub.Addr(), lab.Project, topic,
			name+"-"+topic))
	}

	log, err := os.Create(c.log)
	require.NoError(w.t, err)
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.Env = append(os.Environ(), "DATABASE_URL="+c.url, "PUBSUB_EMULATOR_HOST="+w.PubSub.Addr(),
		"PUBSUB_PROJECT_ID="+lab.Project, "EVENTS_SUBSCRIPTION="+name+"-"+lab.Topic,
		"RETRACTIONS_SUBSCRIPTION="+name+"-"+lab.Retractions,
		// Python: the package, and the client library that no Debian package has
		"PYTHONPATH=.:tests/standin", "PYTHONDONTWRITEBYTECODE=1")
	require.NoError(w.t, cmd.Start())
	w.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		require.NoError(w.t, log.Close())
	})

	return c
}

func (c *consumer) approvals() []string {
	conn, err := pgx.Connect(c.t.Context(), c.url)
	require.NoError(c.t, err)
	defer conn.Close(c.t.Context())
	rows, _ := conn.Query(c.t.Context(), `select lower(escrow || ' ' || approver) from approvals order by 1`)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil // the program has not made its table yet
	}

	slices.Sort(all)

	return all
}

// String is what the program said.
func (c *consumer) String() string {
	log, err := os.ReadFile(c.log)
	require.NoError(c.t, err)

	return string(log)
}
