package publish_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/publish"
)

func TestCheckTopics(t *testing.T) {
	t.Parallel()
	server, err := testpubsub.Start(t.Context(), testpubsub.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	w := &world{t: t, server: server}
	require.NoError(t, testpubsub.CreateTopic(t.Context(), server.Addr(), project, settlement))
	for _, c := range []struct {
		name, project string
		topics        publish.Topics
		want          []string
	}{
		{"all is well", project, publish.Topics{Default: settlement}, nil},
		{"missing", project, publish.Topics{Default: "nothing", Other: settlement, Retractions: "neither"},
			[]string{"PUBSUB_TOPIC_ID=nothing", "gcloud pubsub topics create nothing --project test-project", "RETRACTIONS_TOPIC_ID=neither"}},
		{"a whole name", project, publish.Topics{Default: settlement, Other: "projects/p/topics/t"}, []string{"OTHER_EVENTS_TOPIC_ID=projects/p/topics/t", "not a topic id"}},
		{"the service's own", project, publish.Topics{Default: "google-topic"}, []string{"not a topic id"}},
		{"a number for the project", "Test Project", publish.Topics{Default: settlement}, []string{"PUBSUB_PROJECT_ID=Test Project", "gcloud projects list"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := publish.CheckTopics(t.Context(), c.project, c.topics, w.options()...)
			if c.want == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, publish.ErrNoTopic)
			for _, part := range c.want {
				require.ErrorContains(t, err, part)
			}
			require.NotContains(t, err.Error(), settlement)
		})
	}
}

func TestBacklog(t *testing.T) {
	t.Parallel()
	w := setup(t, testpubsub.Options{})
	w.approve(nil, 1, 2, 3)
	w.exec(`update slot_ownership set owner = 'r1' where slot = 3`)
	w.exec(`update outbox set created_at = now() - interval '90 seconds' where slot <> 2`)
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
