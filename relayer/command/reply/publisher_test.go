package reply_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/reply"
	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
)

const (
	chain    = 1337
	patience = 2 * time.Minute
	project  = "replies-test"
	topic    = "replies"
)

// service is a client of the local server, which refuses requests beyond the service's limits, and that
// refuses some keys.
type service struct {
	client *pubsub.Client
	refuse func(key string) bool // nil: nothing

	guard   sync.Mutex
	largest int // bytes of a request
}

var errRefused = errors.New("refused by the test")

func (s *service) Publish(ctx context.Context, topic, key string, messages []pubsub.Message) ([]string, error) {
	size := 0
	for _, m := range messages {
		size += len(m.Data)
	}

	s.guard.Lock()
	s.largest = max(s.largest, size)
	s.guard.Unlock()
	if s.refuse != nil && s.refuse(key) {
		return nil, errRefused
	}

	return s.client.Publish(ctx, topic, key, messages)
}

type fixture struct {
	t        *testing.T
	db       *pgxpool.Pool
	service  *service
	recorder *testpubsub.Recorder
}

func setup(t *testing.T) *fixture {
	t.Helper()
	server, err := testpubsub.Start(t.Context(), testpubsub.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	require.NoError(t, testpubsub.CreateTopic(t.Context(), server.Addr(), project, topic))
	require.NoError(t, testpubsub.CreateSubscription(t.Context(), server.Addr(), project, topic, topic+"-sub"))
	recorder, err := testpubsub.Record(t.Context(), server.Addr(), project, topic+"-sub")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, recorder.Stop()) })
	client, err := pubsub.New(t.Context(), pubsub.Config{Project: project, Options: []option.ClientOption{
		option.WithEndpoint(server.Addr()), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials()))}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })

	return &fixture{t: t, db: testpg.Pool(t), service: &service{client: client}, recorder: recorder}
}

// run publishes until the test ends.
func (f *fixture) run() {
	publisher, err := reply.NewPublisher(reply.Config{DB: f.db, ChainID: chain, Topic: topic, Sender: f.service,
		Metrics: reply.NewMetrics(prometheus.NewRegistry())})
	require.NoError(f.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); publisher.Run(ctx, nil) }()
	f.t.Cleanup(func() { cancel(); <-done })
}

func (f *fixture) insert(answers ...command.Answer) {
	require.NoError(f.t, pgx.BeginFunc(f.t.Context(), f.db, func(tx pgx.Tx) error {
		return reply.Insert(f.t.Context(), tx, chain, answers)
	}))
}

func (f *fixture) left() (n int) {
	require.NoError(f.t, f.db.QueryRow(f.t.Context(), `select count(*) from replies`).Scan(&n))
	return n
}

// revisions are those that arrived of a command, in order.
func (f *fixture) revisions(id string) (all []int) {
	for _, m := range f.recorder.Messages() {
		var a command.Answer
		require.NoError(f.t, json.Unmarshal(m.Data, &a))
		if a.CommandID == id {
			all = append(all, a.Revision)
		}
	}

	return all
}

func id(n int) string { return fmt.Sprintf("0x%064x", n) }

func done(n, revision int) command.Answer {
	return command.Answer{CommandID: id(n), Revision: revision, State: command.Done}
}

// However long refusals are, and however many: each request stays within what the service takes, and the
// answers behind them arrive.
func TestManyLongRefusals(t *testing.T) {
	t.Parallel()
	f := setup(t)
	garbage := command.Answer{State: command.Refused, Code: command.CodeMalformed, Detail: strings.Repeat("9", 240_000)}
	for range 60 {
		f.insert(garbage, garbage)
	}

	f.insert(done(1, 1))
	f.run()
	require.Eventually(t, func() bool { return f.left() == 0 }, patience, 20*time.Millisecond)
	require.Eventually(t, func() bool { return len(f.revisions(id(1))) == 1 }, patience, 20*time.Millisecond)
	require.LessOrEqual(t, f.service.largest, 2<<20, "bytes of a request")
}

// Answers that the service refuses, however many and however old, hold up those of their own command only.
func TestRefusedAnswersHoldUpNobodyElse(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.service.refuse = func(key string) bool { return key != id(1_000_000) }
	for n := range 600 {
		f.insert(done(n, 1))
	}

	f.insert(done(1_000_000, 1))
	f.run()
	require.Eventually(t, func() bool { return len(f.revisions(id(1_000_000))) == 1 }, patience, 20*time.Millisecond)
	require.Eventually(t, func() bool { return f.left() == 600 }, patience, 20*time.Millisecond)
}

// The answers to one command arrive in their order, also when some of them had to be sent again.
func TestOrderAfterFailures(t *testing.T) {
	t.Parallel()
	f := setup(t)
	var guard sync.Mutex
	fails := map[string]int{}
	f.service.refuse = func(key string) bool {
		guard.Lock()
		defer guard.Unlock()
		fails[key]++

		return fails[key] <= 2
	}
	for revision := range 5 {
		for n := range 200 {
			f.insert(done(n, revision))
		}
	}

	f.run()
	require.Eventually(t, func() bool { return f.left() == 0 }, patience, 20*time.Millisecond)
	for n := range 200 {
		require.Eventually(t, func() bool { return len(f.revisions(id(n))) == 5 }, patience, 20*time.Millisecond)
		require.Equal(t, []int{0, 1, 2, 3, 4}, f.revisions(id(n)))
	}
}
