package bench

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
)

const (
	plainBatch    = 2048 // messages, of which those of one key go together
	plainRequest  = 1000 // messages: the service takes no more
	plainInFlight = 1000 // requests
)

// plain is the rate of publishing messages from memory alone, with the relayer's client and their ordering keys: no
// outbox, no order within a key, no second attempt. It is the floor of draining.
func plain(ctx context.Context, messages []testpubsub.Message) (rate float64, err error) {
	sink, err := sinkOf(ctx)
	if err != nil {
		return 0, err
	}

	defer func() { err = errors.Join(err, sink.Stop()) }()
	client, err := pubsub.New(ctx, pubsub.Config{Project: lab.Project, Log: slog.New(slog.DiscardHandler),
		Options: testpubsub.ClientOptions(sink.Addr())})
	if err != nil {
		return 0, err
	}

	defer func() { err = errors.Join(err, client.Close()) }()
	start := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(plainInFlight)
	for batch := range slices.Chunk(messages, plainBatch) {
		requests := map[string][]pubsub.Message{}
		for _, m := range batch {
			requests[m.Key] = append(requests[m.Key], pubsub.Message{Data: m.Data, Attributes: m.Attributes})
		}

		for key, of := range requests {
			for some := range slices.Chunk(of, plainRequest) {
				g.Go(func() error {
					_, err := client.Publish(ctx, lab.Topic, key, some)
					return err
				})
			}
		}
	}

	if err := g.Wait(); err != nil {
		return 0, err
	}

	return perSecond(len(messages), time.Since(start)), nil
}

// sinkOf is a Pub/Sub server with the lab's topics, which forgets what it was sent.
func sinkOf(ctx context.Context) (*testpubsub.Server, error) {
	sink, err := testpubsub.Start(ctx, testpubsub.Options{Forget: true})
	if err != nil {
		return nil, err
	}

	for _, topic := range []string{lab.Topic, lab.Retractions} {
		if err := testpubsub.CreateTopic(ctx, sink.Addr(), lab.Project, topic); err != nil {
			return nil, errors.Join(err, sink.Stop())
		}
	}

	return sink, nil
}
