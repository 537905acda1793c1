package pubsub_test

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
)

func TestMain(m *testing.M) {
	// started by an init of the client's
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"))
}

const (
	project, settlement = "test-project", "settlement.events.v1"
	patience            = 10 * time.Minute // only what hangs waits so long, or a machine that does much else
)

func options(addr string) []option.ClientOption {
	return append(pubsub.At(addr), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
}

// behind is a server, and a way to it that can be broken.
type behind struct {
	*pubsub.Client
	t      *testing.T
	server *testpubsub.Server
	way    *faults.TCP
	lines  *atomic.Int64 // logged
}

func setup(t *testing.T, timeout time.Duration) *behind {
	server := testpubsub.New(t, testpubsub.Options{}, project, settlement)
	way, err := faults.NewTCP(server.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, way.Close()) })
	lines := new(atomic.Int64)
	log := slog.New(slog.NewTextHandler(counting{t.Output(), lines}, nil))
	client, err := pubsub.New(t.Context(), pubsub.Config{Project: project, Options: options(way.Addr()), Timeout: timeout,
		Log: log})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })

	return &behind{client, t, server, way, lines}
}

// counting counts writes: a line each.
type counting struct {
	io.Writer
	lines *atomic.Int64
}

func (c counting) Write(p []byte) (int, error) {
	c.lines.Add(1)
	return c.Writer.Write(p)
}

func (b *behind) publish(key string) error {
	ids, err := b.Publish(b.t.Context(), settlement, key,
		[]pubsub.Message{{Data: []byte("x"), Attributes: map[string]string{"key": key}}})
	if err == nil {
		require.Len(b.t, ids, 1)
	}

	return err
}

// many publishes under so many keys at once and returns the errors.
func (b *behind) many(keys int) (failed []error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range keys {
		wg.Go(func() {
			if err := b.publish("k"); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, err)
			}
		})
	}

	wg.Wait()

	return failed
}

// Connections that swallow bytes are replaced after one request's time, all of them, and none that answers is.
func TestConnectionsThatSwallow(t *testing.T) {
	t.Parallel()
	b := setup(t, 2*time.Second)
	require.Empty(t, b.many(20))
	_ = b.way.Swallow(false) // those that are open, for good
	failed := b.many(20)
	require.NotEmpty(t, failed)
	for _, err := range failed {
		require.False(t, pubsub.Refused(pubsub.Code(err)), "it may have been stored: %v", err)
	}

	require.Empty(t, b.many(20), "each connection has been replaced")
	require.NoError(t, b.publish("k"))
}

// With new connections dark as well nothing gets through, and when they work again publishing does at once.
func TestNewConnectionsThatSwallow(t *testing.T) {
	t.Parallel()
	b := setup(t, time.Second)
	require.NoError(t, b.publish("k"))
	undo := b.way.Swallow(true)
	for range 5 {
		require.NotEmpty(t, b.many(4))
	}

	require.NoError(t, undo())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for b.many(4) != nil {
		require.NoError(t, ctx.Err(), "it does not come back")
	}
}

// A server that takes long for one request and answers others is not taken for dead.
func TestSlowAnswer(t *testing.T) {
	t.Parallel()
	b := setup(t, 3*time.Second)
	fault := b.server.Inject(testpubsub.Fault{Key: "slow", Delay: time.Hour})
	done := make(chan error, 2)
	go func() { done <- b.publish("slow") }()
	require.Eventually(t, func() bool { return fault.Hits() == 1 }, patience, time.Millisecond)
	ended := make(chan codes.Code, 1)
	go func() { ended <- pubsub.Code(<-done) }()
	for running := true; running; {
		require.Empty(t, b.many(8))
		select {
		case code := <-ended:
			require.Equal(t, codes.DeadlineExceeded, code)
			running = false
		default:
		}
	}

	require.Zero(t, b.lines.Load(), "no connection was replaced")
	fault.Remove()
}

func TestErrorsSayWhetherItWasStored(t *testing.T) {
	t.Parallel()
	b := setup(t, time.Second)
	for code, refused := range map[codes.Code]bool{codes.PermissionDenied: true, codes.NotFound: true,
		codes.Unavailable: false, codes.Internal: false} {
		b.server.Inject(testpubsub.Fault{Code: code, Times: 1})
		err := b.publish("k")
		require.Equal(t, code, pubsub.Code(err))
		require.Equal(t, refused, pubsub.Refused(pubsub.Code(err)))
	}

	b.server.Inject(testpubsub.Fault{Match: func(*pubsubpb.PubsubMessage) bool { return true },
		Delay: time.Hour, Times: 1})
	require.Equal(t, codes.DeadlineExceeded, pubsub.Code(b.publish("k")))
}
