package main

import (
	"context"
	"errors"
	"slices"

	"cloud.google.com/go/iam/apiv1/iampb"
	google "cloud.google.com/go/pubsub/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fusion-prime/escrow-relayer/relayer/pubsub"
)

// publishRight is what roles/pubsub.publisher grants.
const publishRight = "pubsub.topics.publish"

func (d *doctor) topics(ctx context.Context) {
	const of = "topics"
	cfg := d.cfg
	topics := []struct{ variable, id string }{{"PUBSUB_TOPIC_ID", cfg.Topic}, {"OTHER_EVENTS_TOPIC_ID", cfg.OtherTopic},
		{"RETRACTIONS_TOPIC_ID", cfg.RetractionsTopic}}
	client, err := google.NewClient(ctx, cfg.Project)
	if err != nil {
		d.judge(of, "client", "", err)
		return
	}

	defer func() { _ = client.Close() }() // nothing was written
	for _, t := range topics {
		if t.id == "" {
			continue
		}

		// The check's default topic is the one that must be there; each is checked as one to name its variable.
		err := pubsub.CheckTopics(ctx, cfg.Project, only(t.variable, t.id))
		if !d.judge(of, t.variable, t.id+" in project "+cfg.Project, err) {
			continue
		}

		answer, err := client.TopicAdminClient.TestIamPermissions(ctx, &iampb.TestIamPermissionsRequest{
			Resource: "projects/" + cfg.Project + "/topics/" + t.id, Permissions: []string{publishRight},
		})
		switch {
		case err == nil && slices.Contains(answer.GetPermissions(), publishRight):
			d.say(fine, of, "publish", "%s may be published to", t.id)
		case err == nil && !pubsub.Emulated(), status.Code(err) == codes.PermissionDenied:
			d.say(wrong, of, "publish", "%s is missing on %s=%s: grant roles/pubsub.publisher on it to the service account",
				publishRight, t.variable, t.id)
		default: // an emulator has no rights to test
			d.say(unknown, of, "publish", "the server does not tell whether %s may be published to (%s)", t.id, status.Code(err))
		}
	}

	if cfg.RetractionsTopic == "" {
		d.say(note, of, "retractions",
			"RETRACTIONS_TOPIC_ID is not set: after a reorganisation deeper than FINALITY allows for, consumers are not told; an alert fires")
	}
}

// only is a check of one topic under its variable.
func only(variable, id string) pubsub.Topics {
	switch variable {
	case "OTHER_EVENTS_TOPIC_ID":
		return pubsub.Topics{Other: id}
	case "RETRACTIONS_TOPIC_ID":
		return pubsub.Topics{Retractions: id}
	}

	return pubsub.Topics{Default: id}
}

var errNoEndpoint = errors.New("no endpoint can be used: correct RPC_URLS")
