package publish_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/publish"
	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
)

// picky is a client of the local server that refuses some keys.
type picky struct {
	publish.Sender
	refuse func(key string) bool // nil: nothing

	guard   sync.Mutex
	largest int // bytes of a request
}

func (s *picky) Publish(ctx context.Context, topic, key string, messages []pubsub.Message) ([]string, error) {
	size := 0
	for _, m := range messages {
		size += len(m.Data)
	}

	s.guard.Lock()
	s.largest = max(s.largest, size)
	s.guard.Unlock()
	if s.refuse != nil && s.refuse(key) {
		return nil, status.Error(codes.PermissionDenied, "refused by the test")
	}

	return s.Sender.Publish(ctx, topic, key, messages)
}

// answering is a publisher of answers at work.
type answering struct {
	*world
	sender *picky
	hint   chan struct{}
}

func answers(t *testing.T) *answering {
	w := setup(t, testpubsub.Options{})
	return &answering{world: w, sender: &picky{Sender: w.sender}, hint: make(chan struct{}, 1)}
}

// run publishes until the test ends.
func (a *answering) run(o publish.Tuning) {
	cfg := a.config()
	cfg.Sender, cfg.Topics, cfg.Hint = a.sender, pubsub.Topics{Default: extra}, a.hint
	cfg.Metrics = publish.NewAnswerMetrics(prometheus.NewRegistry())
	p, err := publish.NewAnswers(cfg)
	require.NoError(a.t, err)
	p.Tune(o)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	a.t.Cleanup(func() { cancel(); require.NoError(a.t, <-ended) })
}

func (a *answering) add(tx pgx.Tx, all ...command.Answer) {
	require.NoError(a.t, outbox.AddAnswers(a.t.Context(), tx, chainID, all))
}

func (a *answering) insert(all ...command.Answer) {
	require.NoError(a.t, pgx.BeginFunc(a.t.Context(), a.DB, func(tx pgx.Tx) error { a.add(tx, all...); return nil }))
}

func (a *answering) awaitLeft(n int) {
	a.t.Helper()
	require.Eventually(a.t, func() bool {
		var left int
		require.NoError(a.t, a.DB.QueryRow(a.t.Context(), `select count(*) from replies`).Scan(&left))
		return left == n
	}, patience, 20*time.Millisecond)
}

// revisions are those that arrived of each command, in order.
func (a *answering) revisions() map[string][]int {
	all := map[string][]int{}
	for _, m := range a.tap.Messages() {
		answer, err := command.DecodeAnswer(m.Data)
		require.NoError(a.t, err)
		require.Equal(a.t, map[string]string{"command_id": answer.CommandID, "state": string(answer.State),
			"code": answer.Code, "reply_to": answer.ReplyTo, "chain_id": strconv.Itoa(chainID)}, m.Attributes)
		require.Equal(a.t, answer.CommandID, m.Key)
		all[answer.CommandID] = append(all[answer.CommandID], answer.Revision)
	}

	return all
}

func done(n, revision int) command.Answer {
	return command.Answer{CommandID: fmt.Sprintf("0x%064x", n), Revision: revision, State: command.Done, ReplyTo: "desk"}
}

// However long refusals are, and however many: each request stays within what the service takes,
// and the answers behind them arrive.
func TestManyLongRefusals(t *testing.T) {
	t.Parallel()
	a := answers(t)
	garbage := command.Answer{State: command.Refused, Code: command.CodeMalformed, Detail: strings.Repeat("9", 240_000)}
	for range 60 {
		a.insert(garbage, garbage)
	}

	a.insert(done(1, 1))
	a.run(publish.Tuning{})
	a.awaitLeft(0)
	require.Len(t, a.revisions()[done(1, 1).CommandID], 1)
	require.LessOrEqual(t, a.sender.largest, 2<<20, "bytes of a request")
}

// Answers that the service refuses, however many and however old, hold up those of their own
// command only.
func TestRefusedAnswersHoldUpNobodyElse(t *testing.T) {
	t.Parallel()
	a := answers(t)
	good := done(1_000_000, 1)
	a.sender.refuse = func(key string) bool { return key != good.CommandID }
	for n := range 600 {
		a.insert(done(n, 1))
	}

	a.insert(good)
	a.run(publish.Tuning{})
	a.awaitLeft(600)
	require.Equal(t, map[string][]int{good.CommandID: {1}}, a.revisions())
}

// The answers to one command arrive in their order, also when some of them had to be sent again.
func TestAnswersInOrderAfterFailures(t *testing.T) {
	t.Parallel()
	a := answers(t)
	var guard sync.Mutex
	fails := map[string]int{}
	a.sender.refuse = func(key string) bool {
		guard.Lock()
		defer guard.Unlock()
		fails[key]++

		return fails[key] <= 2
	}
	for revision := range 5 {
		for n := range 200 {
			a.insert(done(n, revision))
		}
	}

	a.run(publish.Tuning{Delay: 5 * time.Millisecond, PageRows: 100})
	a.awaitLeft(0)
	all := a.revisions()
	require.Len(t, all, 200)
	for id, revisions := range all {
		require.Equal(t, []int{0, 1, 2, 3, 4}, revisions, id)
	}
}

// An answer that is committed behind those with higher numbers is published by the next hint,
// however far the publisher has come meanwhile, and hints that never end keep no pass from its end.
func TestAnswersCommittedLate(t *testing.T) {
	t.Parallel()
	a := answers(t)
	a.run(publish.Tuning{PageRows: 2, RereadEvery: time.Hour})
	late, err := a.DB.Begin(t.Context())
	require.NoError(t, err)
	a.add(late, done(1, 1))
	stop := make(chan struct{})
	var hints sync.WaitGroup
	hints.Go(func() {
		for {
			select {
			case <-stop:
				return
			case a.hint <- struct{}{}:
			}
		}
	})
	for n := range 100 {
		a.insert(done(2+n, 1))
	}

	a.awaitLeft(0)
	close(stop)
	hints.Wait()
	require.NoError(t, late.Commit(t.Context()))
	a.hint <- struct{}{}
	a.awaitLeft(0)
	require.Len(t, a.revisions(), 101)
}
