package ledger_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testfleet"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// BenchmarkCommit measures one commit of a slot watch, with its outbox rows, against a real
// Postgres that does not wait for the disk: of one block at the head, and of a range of a backfill.
// The outbox is emptied now and then, as the publisher would.
func BenchmarkCommit(b *testing.B) {
	const escrows = 20_000
	for _, size := range []int{0, 20, 1000} {
		b.Run(fmt.Sprintf("events=%d", size), func(b *testing.B) {
			f := testfleet.New(b, chain)
			f.Alone(me, 1, "0xfac")
			ctx := b.Context()
			led := ledger.New(ledger.Config{DB: f.DB, ChainID: chain, InstanceID: me, EventNames: names, Publishes: publishes})
			at, err := led.SlotPosition(ctx, 1)
			require.NoError(b, err)
			var found []contract.Event
			for i := range escrows {
				found = append(found, deployed(i, 1, uint(100_000+i), int64(1+i)))
			}

			_, err = led.CommitSlots(ctx, ledger.SlotCommit{Epoch: 1, From: at, To: at.To(2, blockHash(0, 1)), Events: found})
			require.NoError(b, err)
			at = at.To(2, blockHash(0, 1))
			f.Publish()
			f.Exec(`analyze`)
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				b.StopTimer()
				events := make([]contract.Event, size)
				for i := range events {
					events[i] = approved((n*size+i)%escrows, at.Next, uint(i), int64(1_000_000+n))
				}

				if n%100 == 99 {
					f.Publish()
				}

				c := ledger.SlotCommit{Epoch: 1, From: at, To: at.To(at.Next+1, blockHash(0, at.Next)), Time: uint64(at.Next),
					Events: events}
				b.StartTimer()
				r, err := led.CommitSlots(ctx, c)
				if err != nil || r.New != size || len(r.Log) != size {
					b.Fatalf("stored %d, and %d of the log, of %d events: %v", r.New, len(r.Log), size, err)
				}

				at = c.To
			}

			b.ReportMetric(float64(size*b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
