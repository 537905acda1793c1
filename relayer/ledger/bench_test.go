package ledger_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
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
			db := testpg.Pool(b)
			ctx := b.Context()
			require.NoError(b, election.Prepare(ctx, db, chain, 1, "0xfac"))
			for _, sql := range []string{
				`update leadership set instance_id = 'r0', epoch = 1`,
				`insert into cursors (chain_id, instance_id, epoch, next_block) select chain_id, 'r0', 1, 1 from leadership`,
				`insert into slot_ownership (chain_id, slot, owner, next_block) select chain_id, s, 'r0', 1 from leadership, generate_series(0, 2519) s`,
			} {
				_, err := db.Exec(ctx, sql)
				require.NoError(b, err)
			}

			led := ledger.New(ledger.Config{DB: db, ChainID: chain, InstanceID: me, EventNames: names, Publishes: publishes})
			fact, err := led.FactoryPosition(ctx, 1)
			require.NoError(b, err)
			at, err := led.SlotPosition(ctx, 1)
			require.NoError(b, err)
			var found []contract.Event
			for i := range escrows {
				found = append(found, deployed(i, 1, uint(100_000+i), int64(1+i)))
			}

			_, err = led.CommitFactory(ctx, ledger.FactoryCommit{Epoch: 1, From: fact, To: fact.To(2, blockHash(0, 1)),
				Events: found})
			require.NoError(b, err)
			_, err = db.Exec(ctx, `delete from late_escrows`)
			require.NoError(b, err)
			_, err = db.Exec(ctx, `analyze`)
			require.NoError(b, err)
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				b.StopTimer()
				events := make([]contract.Event, size)
				for i := range events {
					events[i] = approved((n*size+i)%escrows, at.Next, uint(i), int64(1_000_000+n))
				}

				if n%100 == 99 {
					_, err := db.Exec(ctx, `delete from outbox`)
					require.NoError(b, err)
				}

				c := ledger.SlotCommit{Epoch: 1, From: at, To: at.To(at.Next+1, blockHash(0, at.Next)), Time: uint64(at.Next),
					Events: events}
				b.StartTimer()
				r, err := led.CommitSlots(ctx, c)
				if err != nil || r.New != size || len(r.Pending) != size {
					b.Fatalf("stored %d and queued %d of %d events: %v", r.New, len(r.Pending), size, err)
				}

				at = c.To
			}

			b.ReportMetric(float64(size*b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
