package publish_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/publish"
)

// BenchmarkPublish measures from committed rows to acknowledged and deleted ones, against a real
// Postgres and Google's in-process server, all on one machine: 100,000 events of 20,000 escrows, in
// commits of 2,000.
func BenchmarkPublish(b *testing.B) {
	const events, escrows, batch = 100_000, 20_000, 2_000
	for _, key := range []string{"escrow", "slot"} {
		for _, source := range []string{"offered", "outbox"} {
			b.Run(fmt.Sprintf("key=%s/from=%s", key, source), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					b.StopTimer()
					w := setup(b, testpubsub.Options{})
					cfg := w.config()
					cfg.BySlot = key == "slot"
					var commits [][]outbox.Pending
					numbers := make([]int, batch)
					for at := 0; at < events; at += batch {
						for i := range numbers {
							numbers[i] = (at + i) * 7919 % escrows
						}

						commits = append(commits, w.approve(nil, numbers...))
					}

					if source == "offered" { // it starts with nothing to read, and the rows come as it acknowledges
						w.Exec(`update slot_ownership set owner = 'nobody'`)
					}

					b.StartTimer()
					p := w.start(cfg, publish.Tuning{})
					if source == "offered" {
						w.Exec(`update slot_ownership set owner = $1`, me)
						for i, rows := range commits {
							p.OfferRows(1, rows)
							require.NoError(b, w.tap.Wait(b.Context(), max(0, (i-3)*batch)))
						}
					}

					require.NoError(b, w.tap.Wait(b.Context(), events))
					require.NoError(b, p.stop())
					b.StopTimer()
					require.Zero(b, w.outbox())
					require.Equal(b, events, w.tap.Len())
					b.StartTimer()
				}

				b.ReportMetric(float64(events*b.N)/b.Elapsed().Seconds(), "msg/s")
			})
		}
	}
}

// BenchmarkLone measures from the offer of one row to its storage at the server: the latency that
// publishing adds when there is nothing else to do.
func BenchmarkLone(b *testing.B) {
	w := setup(b, testpubsub.Options{Forget: true})
	p := w.start(w.config(), publish.Tuning{})
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		b.StopTimer()
		rows := w.commit("Approved", message.Original, n%1000)
		b.StartTimer()
		p.OfferRows(1, rows)
		require.NoError(b, w.tap.Wait(b.Context(), n+1))
	}

	require.NoError(b, p.stop())
}
