package intake

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	google "cloud.google.com/go/pubsub/v2"
	"google.golang.org/api/option"

	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
)

// ackWithin is how long a stop waits for what was taken to be acknowledged. The rest comes again, and is known.
const ackWithin = 2 * time.Second

// lease is how long a message belongs to an instance without asking for more time: when one was killed,
// what it held comes again after that. 10 s is the least that Pub/Sub allows; the client's own is 60 s.
const lease = 10 * time.Second

// Receive takes the messages of a subscription until ctx ends. A message is acknowledged when its
// commands are committed, or refused; the rest comes again. It goes on through
// trouble with Pub/Sub.
func (i *Intake) Receive(ctx context.Context, project, subscription string, options ...option.ClientOption) error {
	client, err := google.NewClient(ctx, project, append(pubsub.Dialing(), options...)...)
	if err != nil {
		return fmt.Errorf("open the Pub/Sub client for COMMANDS_SUBSCRIPTION_ID=%s: %w", subscription, err)
	}

	defer func() { _ = client.Close() }() // nothing is under way any more
	subscriber := client.Subscriber(subscription)
	subscriber.ReceiveSettings.MaxOutstandingMessages = maxAtOnce
	subscriber.ReceiveSettings.MaxDurationPerAckExtension = lease
	// By default a stop waits for a silent connection as long as that takes.
	subscriber.ReceiveSettings.ShutdownOptions = &google.ShutdownOptions{Timeout: ackWithin}
	for {
		err := subscriber.Receive(ctx, func(ctx context.Context, m *google.Message) {
			taking, cancel := context.WithTimeout(ctx, takeTimeout)
			defer cancel()
			if _, err := i.Take(taking, m.Data, true); err != nil {
				i.cfg.Log.WarnContext(ctx, "commands not stored, they will come again", slog.String("message_id", m.ID),
					slog.Any("err", err))
				i.returnLater(ctx, m)

				return
			}

			m.Ack()
		})
		if ctx.Err() != nil {
			return nil
		}

		i.cfg.Log.WarnContext(ctx, "subscription cannot be read, trying again", slog.String("subscription", subscription),
			slog.Any("err", err))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(2 * time.Second):
		}
	}
}

// returnAfter is how long a message that failed to be stored is kept before it is given back: Pub/Sub delivers
// it again at once, and the database may need a while.
const returnAfter = 5 * time.Second

// returnLater gives a message back after a pause, or at once when ctx ends.
func (i *Intake) returnLater(ctx context.Context, m *google.Message) {
	select {
	case <-ctx.Done():
	case <-time.After(returnAfter):
	}

	m.Nack()
}
