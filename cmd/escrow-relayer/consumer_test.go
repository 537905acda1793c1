package main

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/long"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// The consumer that the documents show ends with what the escrows hold on the chain: killed at each step of each
// round, and the relayer with it, through reorganisations that take published events back, and a replay of everything.
// In `make long` and `make languages` the rounds go on for two minutes.
func TestConsumer(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "balances")
	require.NoError(t, lab.Build(t.Context(), "../../relayer/message/subscriber/balances", program))
	testConsumer(t, ".", program)
}

func testConsumer(t *testing.T, dir, program string, args ...string) {
	w := newWorld(t, func(o *lab.Options) { o.Confirmations = 1 })
	c := w.consume(dir, program, args...)
	relayer := w.run("a", 0, 1, nil)
	w.ready("a")
	rounds, begun := 0, time.Now()
	for fates := []testchain.Fate{testchain.Keep, testchain.Drop}; rounds < 3 || long.Tables &&
		time.Since(begun) < 2*time.Minute; rounds++ {
		fate := fates[rounds%2]
		for _, at := range steps {
			c.dieAt(at)
		}

		relayer.Kill() // what it had sent and not noted comes again
		relayer = w.run("a", 0, 1, nil)
		c.start()
		w.equal(c)
		w.reorg(w.Confirmations+3, fate)
		require.NoError(t, w.traffic.Settle(t.Context()))
	}

	w.blocks(6)
	w.equal(c)
	require.NotEmpty(t, w.Retracted.Messages())
	head, err := w.Head(t.Context())
	require.NoError(t, err)
	code, text := w.operator(nil, "replay", "--from", "1", "--to", strconv.FormatUint(head, 10))
	require.Zero(t, code, text)
	require.True(t, w.soon(func() bool {
		again := map[string]bool{}
		for _, m := range w.Received.Messages() {
			if m.Attributes[message.AttrReplay] != "" {
				again[m.Attributes[message.AttrEventID]] = true
			}
		}

		return len(again) >= w.truth().Count(contract.DefaultEvents...) && c.drained()
	}), "every event is replayed, and the consumer has acknowledged it")
	require.Equal(t, w.balances(), c.balances(), c)
	t.Logf("%d escrows, %d messages, %d retractions, killed %d times", len(w.balances()), w.Received.Len(),
		w.Retracted.Len(), rounds*len(steps))
}

// soon waits for something to be true, and reports whether it came to be.
func (w *world) soon(ok func() bool) bool {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	for !ok() {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return false
		}
	}

	return true
}

// equal waits until a consumer has what the chain has.
func (w *world) equal(c *consumer) {
	require.NoError(w.t, w.Chain.Mine(w.t.Context(), w.Confirmations)) // what comes before is published
	want := w.balances()
	require.NotEmpty(w.t, want)
	if !w.soon(func() bool { return maps.Equal(want, c.balances()) }) {
		require.Equal(w.t, want, c.balances(), "drained: %t\n%s", c.drained(), c)
	}
}

// truth is what the chain has.
func (w *world) truth() *testchain.Truth {
	head, err := w.Head(w.t.Context())
	require.NoError(w.t, err)
	truth, err := testchain.ReadTruth(w.t.Context(), w.Chain.Client(), w.Contracts.Block, head, w.Contracts.Factory)
	require.NoError(w.t, err)

	return truth
}

// balances are what the node says that the escrows hold, in wei. Those that hold nothing are left out, as are
// those that a reorganisation removed.
func (w *world) balances() map[string]string {
	node := w.Chain.Client()
	all := map[string]string{}
	for _, escrow := range w.truth().Escrows {
		wei, err := node.BalanceAt(w.t.Context(), escrow, nil)
		require.NoError(w.t, err)
		if wei.Sign() != 0 {
			all[escrow.Hex()] = wei.String()
		}
	}

	return all
}

// step is where a consumer may be killed.
type step struct {
	name      string
	statement string            // that its Postgres is about to get, in lower case or upper case
	moment    testpubsub.Moment // of its Pub/Sub server
}

var steps = []step{
	{name: "receive", moment: testpubsub.Delivered},
	{name: "begin", statement: "begin"},
	{name: "write", statement: "insert into balances"},
	{name: "commit", statement: "commit"},
	{name: "acknowledge", moment: testpubsub.Acknowledged},
}

// consumer is a program that is started and killed, with a database and subscriptions of its own.
type consumer struct {
	w       *world
	url     string      // of the database
	proxy   *faults.TCP // that the program reaches it through
	log     *os.File
	command func() *exec.Cmd
	cmd     *exec.Cmd // nil: not running
}

// consume prepares a program.
func (w *world) consume(dir, program string, args ...string) *consumer {
	c := &consumer{w: w, url: testpg.Bare(w.t)}
	proxy, url, err := faults.ProxyURL(c.url)
	require.NoError(w.t, err)
	c.proxy = proxy
	w.t.Cleanup(func() { require.NoError(w.t, proxy.Close()) })
	for _, topic := range []string{lab.Topic, lab.Retractions} {
		require.NoError(w.t, w.PubSub.SubscribeInOrder(lab.Project, topic, "consumer-"+topic))
	}

	c.log, err = os.Create(filepath.Join(w.Dir, "consumer.log"))
	require.NoError(w.t, err)
	c.command = func() *exec.Cmd {
		cmd := exec.Command(program, args...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, c.log, c.log
		cmd.Env = append(os.Environ(), "DATABASE_URL="+url, "PUBSUB_EMULATOR_HOST="+w.PubSub.Addr(),
			"PUBSUB_PROJECT_ID="+lab.Project, "EVENTS_SUBSCRIPTION=consumer-"+lab.Topic,
			"RETRACTIONS_SUBSCRIPTION=consumer-"+lab.Retractions,
			// Python: the package, and the client library that no Debian package has
			"PYTHONPATH=.:tests/standin", "PYTHONDONTWRITEBYTECODE=1")

		return cmd
	}

	w.t.Cleanup(func() {
		c.kill()
		require.NoError(w.t, c.log.Close())
	})

	return c
}

func (c *consumer) start() {
	c.cmd = c.command()
	require.NoError(c.w.t, c.cmd.Start())
}

// kill ends the program by SIGKILL.
func (c *consumer) kill() {
	if c.cmd != nil {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait() // it was killed
		c.cmd = nil
	}
}

// dieAt starts the program, gives it something to do, and kills it at a step: before its statement reaches
// Postgres, which it does after the program's death, or before its acknowledgement has an effect, which is lost.
func (c *consumer) dieAt(at step) {
	c.kill() // one that runs would get the messages, and has prepared its statements
	var caught <-chan struct{}
	if at.moment != "" {
		var disarm func()
		caught, disarm = c.moment(at.moment)
		defer disarm()
	} else {
		words := at.statement
		if strings.Contains(c.command().Path, "python") && !strings.Contains(words, " ") {
			words = strings.ToUpper(words) // as psycopg has it
		}

		trap := c.proxy.Trap(words)
		defer trap.Release()
		caught = trap.Caught()
	}

	c.start()
	c.w.blocks(3)
	ctx, cancel := context.WithTimeout(c.w.t.Context(), patience)
	defer cancel()
	select {
	case <-caught:
	case <-ctx.Done():
		require.NoError(c.w.t, ctx.Err(), "the consumer never came to %s:\n%s", at.name, c)
	}

	c.kill()
}

// moment says when a moment comes for the first time, which it holds up until the program is dead.
func (c *consumer) moment(what testpubsub.Moment) (caught <-chan struct{}, disarm func()) {
	came, dead := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(came) })
	c.w.PubSub.Watch(func(subscription string, now testpubsub.Moment) error {
		if now != what || !strings.Contains(subscription, "/consumer-") {
			return nil
		}

		once()
		<-dead

		return context.Canceled
	})

	return came, func() {
		c.w.PubSub.Watch(nil)
		close(dead)
	}
}

// drained reports whether the consumer has acknowledged everything.
func (c *consumer) drained() bool {
	return !slices.ContainsFunc([]string{lab.Topic, lab.Retractions}, func(topic string) bool {
		return c.w.PubSub.Unacknowledged(testpubsub.SubscriptionName(lab.Project, "consumer-"+topic)) > 0
	})
}

// balances are what the consumer has.
func (c *consumer) balances() map[string]string {
	conn, err := pgx.Connect(c.w.t.Context(), c.url)
	require.NoError(c.w.t, err)
	defer conn.Close(c.w.t.Context())
	rows, _ := conn.Query(c.w.t.Context(), `select escrow, wei::text from balances where wei <> 0`)
	all := map[string]string{}
	var escrow, wei string
	_, err = pgx.ForEachRow(rows, []any{&escrow, &wei}, func() error {
		all[common.HexToAddress(escrow).Hex()] = wei
		return nil
	})
	require.NoError(c.w.t, err)

	return all
}

// String is what the program said.
func (c *consumer) String() string {
	log, err := os.ReadFile(c.log.Name())
	require.NoError(c.w.t, err)

	return string(log)
}
