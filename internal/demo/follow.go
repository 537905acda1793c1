package demo

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// follow prints messages and uses the contracts until ctx ends, or the relayer does.
func (d *dev) follow(ctx context.Context, p *lab.Process) error {
	g, running := errgroup.WithContext(ctx)
	g.Go(func() error {
		select {
		case <-running.Done():
			return nil
		case <-p.Exited():
			return errors.New("the relayer has ended")
		}
	})
	published := d.pubsub.TapRaw() // consumers are tried with what does not decode, too
	d.closers = append(d.closers, published.Stop)
	g.Go(func() error {
		for running.Err() == nil {
			some := func(held []testpubsub.Message) bool { return len(held) > 0 }
			if err := published.WaitFor(running, some); err != nil {
				return unlessEnded(running, err)
			}

			for _, m := range published.Drain() {
				if m.Topic == testpubsub.TopicName(devProject, devDead) {
					d.say("dead letter: %s %s, refused %s times by %s", cmp.Or(m.Attributes[message.AttrEventType], "unknown"),
						cmp.Or(m.Attributes[message.AttrEventID], fmt.Sprintf("%.60q", m.Data)),
						m.Attributes["CloudPubSubDeadLetterSourceDeliveryCount"],
						m.Attributes["CloudPubSubDeadLetterSourceSubscription"])

					continue
				}

				var line bytes.Buffer
				if json.Compact(&line, m.Data) != nil { // not the relayer's: somebody tries a consumer with it
					fmt.Fprintf(&line, "%q", m.Data)
				}

				fmt.Fprintln(d.o.Out, line.String())
			}
		}

		return nil
	})
	if d.sim != nil && !d.o.Quiet {
		g.Go(func() error { return d.traffic(running) })
	}

	return g.Wait()
}

// traffic uses the contracts of the chain that was brought along, and reorganises it now and then.
func (d *dev) traffic(ctx context.Context) error {
	traffic, err := testchain.NewTraffic(ctx, testchain.TrafficConfig{
		URL: d.sim.HTTP(), Deployment: d.deployment, Accounts: d.sim.Accounts()[:8], Open: 50,
	})
	if err != nil {
		return unlessEnded(ctx, err)
	}
	defer traffic.Close()
	next := time.Now().Add(d.o.Reorganise)

	return lab.Every(ctx, d.o.Interval, func() error {
		if d.o.Reorganise > 0 && time.Now().After(next) {
			next = time.Now().Add(d.o.Reorganise)
			d.say("the chain takes back its last %d blocks", devDepth)
			if err := d.sim.Reorg(ctx, devDepth, testchain.Drop); err != nil {
				return unlessEnded(ctx, err)
			}
		}

		return unlessEnded(ctx, traffic.Step(ctx, devPerBlock))
	})
}
