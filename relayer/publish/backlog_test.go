package publish_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/publish"
)

func TestBacklog(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	w.approve(nil, 1, 2, 3)
	w.Exec(`update slot_ownership set owner = 'r1' where slot = 3`)
	w.Exec(`update outbox set created_at = now() - interval '90 seconds' where slot <> 2`)
	fault := w.server.Inject(testpubsub.Fault{Code: codes.Unavailable})
	p := w.start(w.config(), publish.Tuning{})
	b, err := p.Backlog(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, b.Messages)
	require.InDelta(t, 90, b.OldestAge.Seconds(), 30)
	fault.Remove()
	require.NoError(t, w.tap.Wait(w.within(), 2))
	require.Eventually(t, func() bool {
		b, err := p.Backlog(t.Context())
		return err == nil && b == outbox.Backlog{}
	}, patience, tick)
	require.NoError(t, p.stop())
}
