package pubsub_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
)

func TestCheckTopics(t *testing.T) {
	t.Parallel()
	server := testpubsub.New(t, testpubsub.Options{}, project, settlement)
	for _, c := range []struct {
		name, project string
		topics        pubsub.Topics
		want          []string
	}{
		{"all is well", project, pubsub.Topics{Default: settlement}, nil},
		{"missing", project, pubsub.Topics{Default: "nothing", Other: settlement, Retractions: "neither"},
			[]string{"PUBSUB_TOPIC_ID=nothing", "gcloud pubsub topics create nothing --project test-project",
				"RETRACTIONS_TOPIC_ID=neither"}},
		{"a whole name", project, pubsub.Topics{Default: settlement, Other: "projects/p/topics/t"},
			[]string{"OTHER_EVENTS_TOPIC_ID=projects/p/topics/t", "not a topic id"}},
		{"the service's own", project, pubsub.Topics{Default: "google-topic"}, []string{"not a topic id"}},
		{"a number for the project", "Test Project", pubsub.Topics{Default: settlement},
			[]string{"PUBSUB_PROJECT_ID=Test Project", "gcloud projects list"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := pubsub.CheckTopics(t.Context(), c.project, c.topics, options(server.Addr())...)
			if c.want == nil {
				require.NoError(t, err)
				return
			}

			require.ErrorIs(t, err, pubsub.ErrNoTopic)
			for _, part := range c.want {
				require.ErrorContains(t, err, part)
			}

			require.NotContains(t, err.Error(), settlement)
		})
	}
}
