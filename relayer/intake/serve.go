package intake

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	google "cloud.google.com/go/pubsub/v2"
	"golang.org/x/sync/errgroup"
	"google.golang.org/api/option"

	"github.com/fusion-prime/escrow-relayer/relayer/pubsub"
)

// Serve serves Handler, behind guard, on a port of its own until ctx ends.
func (i *Intake) Serve(ctx context.Context, port int, guard func(http.Handler) http.Handler) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", ":"+strconv.Itoa(port))
	if err != nil {
		return fmt.Errorf("serve commands: %w: set COMMANDS_PORT to a free port", err)
	}

	server := &http.Server{
		Handler: guard(i.Handler()), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(i.cfg.Log.Handler(), slog.LevelDebug),
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve commands: %w", err)
		}

		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close() // a client that does not read its answer
		}

		return nil
	})

	return g.Wait()
}

// ackWithin is how long a stop waits for what was taken to be acknowledged. What is not comes again, and is known.
const ackWithin = 2 * time.Second

// lease is how long a message belongs to an instance that does not ask for more time: when one was killed,
// what it held comes again after that. 10 s is the least that Pub/Sub allows; the client's own is 60 s.
const lease = 10 * time.Second

// Receive takes the messages of a subscription until ctx ends. A message is acknowledged when its
// commands are committed, or refused; what could not be stored comes again. Trouble with Pub/Sub
// never ends it.
func (i *Intake) Receive(ctx context.Context, project, subscription string, options ...option.ClientOption) error {
	client, err := google.NewClient(ctx, project, append(pubsub.Dialing(), options...)...)
	if err != nil {
		return fmt.Errorf("open the Pub/Sub client for COMMANDS_SUBSCRIPTION_ID=%s: %w", subscription, err)
	}

	defer func() { _ = client.Close() }() // nothing is under way any more
	subscriber := client.Subscriber(subscription)
	subscriber.ReceiveSettings.MaxOutstandingMessages = maxAtOnce
	subscriber.ReceiveSettings.MaxDurationPerAckExtension = lease
	// By default a stop waits for a connection that answers nothing as long as that takes.
	subscriber.ReceiveSettings.ShutdownOptions = &google.ShutdownOptions{Timeout: ackWithin}
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		err := subscriber.Receive(ctx, func(ctx context.Context, m *google.Message) {
			taking, cancel := context.WithTimeout(ctx, takeTimeout)
			defer cancel()
			if _, err := i.Take(taking, m.Data, true); err != nil {
				i.cfg.Log.WarnContext(ctx, "commands not stored, they will come again", slog.String("message_id", m.ID),
					slog.Any("err", err))
				m.Nack()

				return
			}

			m.Ack()
		})
		if ctx.Err() != nil {
			return nil
		}

		i.cfg.Log.WarnContext(ctx, "subscription cannot be read, trying again", slog.String("subscription", subscription),
			slog.Any("err", err))
		pause.Reset(2 * time.Second)
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
	}
}
