package main

import (
	"context"
	"fmt"
	"slices"

	"cloud.google.com/go/iam/apiv1/iampb"
	google "cloud.google.com/go/pubsub/v2"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	gax "github.com/googleapis/gax-go/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
)

// right is what an instance needs on a topic or a subscription, and the role that grants it.
type right struct{ permission, role, verb string }

var (
	publishing = right{"pubsub.topics.publish", "roles/pubsub.publisher", "published to"}
	consuming  = right{"pubsub.subscriptions.consume", "roles/pubsub.subscriber", "consumed"}
)

// topics does the step of the start, and asks for the rights on what it finds.
func (d *doctor) topics(ctx context.Context) {
	cfg := d.cfg
	there := d.steps(ctx, "topics")
	client, err := google.NewClient(ctx, cfg.Project, pubsub.At(cfg.PubSubEndpoint)...)
	if err != nil {
		d.judge("client", "", err)
		return
	}

	defer func() { _ = client.Close() }() // it only reads
	for _, t := range []struct{ variable, id string }{
		{"PUBSUB_TOPIC_ID", cfg.Topic}, {"OTHER_EVENTS_TOPIC_ID", cfg.OtherTopic},
		{"RETRACTIONS_TOPIC_ID", cfg.RetractionsTopic}, {"REPLIES_TOPIC_ID", cfg.RepliesTopic},
	} {
		if there && t.id != "" {
			d.may(ctx, "publish", t.variable, t.id, "topics", publishing, client.TopicAdminClient.TestIamPermissions)
		}
	}

	if cfg.RetractionsTopic == "" {
		d.say(note, "retractions",
			"RETRACTIONS_TOPIC_ID is not set: after a reorganisation deeper than FINALITY allows for, consumers are not told; an alert fires")
	}

	if cfg.CommandsSubscription != "" {
		d.subscription(ctx, client)
	}
}

// subscription examines the source of commands.
func (d *doctor) subscription(ctx context.Context, client *google.Client) {
	const variable = "COMMANDS_SUBSCRIPTION_ID"
	project, id := d.cfg.Project, d.cfg.CommandsSubscription
	s, err := client.SubscriptionAdminClient.GetSubscription(ctx, &pubsubpb.GetSubscriptionRequest{
		Subscription: "projects/" + project + "/subscriptions/" + id,
	})
	switch {
	case status.Code(err) == codes.PermissionDenied: // roles/pubsub.subscriber lacks pubsub.subscriptions.get
		d.say(unknown, variable, "the account may not see whether %s exists in project %s", id, project)
	case status.Code(err) == codes.NotFound:
		d.say(wrong, variable, "%s=%s: there is no such subscription in project %s; create it "+
			"(`gcloud pubsub subscriptions create %s --topic YOUR_TOPIC --project %s`), or name one that exists", variable, id,
			project, id, project)

		return
	case err == nil && (s.GetDetached() || s.GetTopic() == "_deleted-topic_"):
		d.say(wrong, variable, "%s=%s: the subscription has no topic any more; make it anew", variable, id)
		return
	case err == nil && s.GetPushConfig().GetPushEndpoint() != "":
		d.say(wrong, variable, "%s=%s: the subscription pushes; make it one that is pulled from", variable, id)
		return
	case !d.judge(variable, fmt.Sprintf("%s in project %s, of %s", id, project, s.GetTopic()), err):
		return
	}

	d.may(ctx, "consume", variable, id, "subscriptions", consuming, client.SubscriptionAdminClient.TestIamPermissions)
}

// rights is the permission test of a client for topics, or of one for subscriptions.
type rights func(context.Context, *iampb.TestIamPermissionsRequest, ...gax.CallOption) (
	*iampb.TestIamPermissionsResponse, error)

// may reports whether the account has a right on a topic or a subscription.
func (d *doctor) may(ctx context.Context, what, variable, id, kind string, r right, ask rights) {
	answer, err := ask(ctx, &iampb.TestIamPermissionsRequest{
		Resource: fmt.Sprintf("projects/%s/%s/%s", d.cfg.Project, kind, id), Permissions: []string{r.permission},
	})
	switch {
	case err == nil && slices.Contains(answer.GetPermissions(), r.permission):
		d.say(fine, what, "%s may be %s", id, r.verb)
	case err == nil && !pubsub.Emulated(), status.Code(err) == codes.PermissionDenied:
		d.say(wrong, what, "%s is missing on %s=%s: grant %s on it to the service account",
			r.permission, variable, id, r.role)
	default: // an emulator has no permissions to test
		d.say(unknown, what, "the server does not tell whether %s may be %s (%s)", id, r.verb, status.Code(err))
	}
}
