package pubsub

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	apiv1 "cloud.google.com/go/pubsub/v2/apiv1"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ErrNoTopic means that a configured topic does not exist, or that its id is invalid.
var ErrNoTopic = errors.New("no such topic")

// Topics names the topics by their ids. All but Default may be empty: rows for an empty topic leave the outbox
// unpublished.
type Topics struct {
	Default, Other, Retractions, Replies string
}

var (
	projectForm = regexp.MustCompile(`^([a-z0-9.-]+:)?[a-z][a-z0-9-]{1,61}[a-z0-9]$`)
	topicForm   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._~+%-]{2,254}$`)
)

// IsProjectID reports whether a text has the form of a project id, by the documentation of Google
// Cloud.
func IsProjectID(id string) bool { return projectForm.MatchString(id) }

// IsTopicID reports whether a text has the form of a topic id, by the documentation of Pub/Sub.
func IsTopicID(id string) bool { return topicForm.MatchString(id) && !strings.HasPrefix(id, "goog") }

// CheckTopics checks that the topics exist and may be published to, as well as this can be checked
// without publishing, and reports every problem. The error wraps ErrNoTopic unless the service
// failed to answer; it has 10 s per topic. It honours PUBSUB_EMULATOR_HOST as Google's client does.
func CheckTopics(ctx context.Context, project string, t Topics, opts ...option.ClientOption) error {
	if !IsProjectID(project) {
		return fmt.Errorf("PUBSUB_PROJECT_ID=%s: %w: not a project id; it is the id, not the name or the number, as `gcloud projects list` shows it",
			project, ErrNoTopic)
	}

	client, err := open(ctx, project, opts)
	if err != nil {
		return err
	}

	defer func() { _ = client.Close() }() // nothing was written
	var problems []error
	for _, topic := range []struct{ variable, id string }{{"PUBSUB_TOPIC_ID", t.Default},
		{"OTHER_EVENTS_TOPIC_ID", t.Other}, {"RETRACTIONS_TOPIC_ID", t.Retractions}, {"REPLIES_TOPIC_ID", t.Replies}} {
		if topic.id != "" {
			problems = append(problems, checkTopic(ctx, client, project, topic.variable, topic.id))
		}
	}

	return errors.Join(problems...)
}

func checkTopic(ctx context.Context, client *apiv1.TopicAdminClient, project, variable, id string) error {
	if !IsTopicID(id) {
		return fmt.Errorf("%s=%s: %w: not a topic id, which is a letter and 2 to 254 letters, digits or -._~+%%; without projects/%s/topics/ before it",
			variable, id, ErrNoTopic, project)
	}

	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := client.GetTopic(ctx, &pubsubpb.GetTopicRequest{Topic: topicName(project, id)})
	switch status.Code(err) {
	case codes.OK:
		return nil
	case codes.NotFound:
		return fmt.Errorf("%s=%s: %w in project %s; create it (`gcloud pubsub topics create %s --project %s`), or name one that exists",
			variable, id, ErrNoTopic, project, id, project)
	case codes.PermissionDenied:
		return nil // roles/pubsub.publisher lacks pubsub.topics.get, and publishing needs no other role
	}

	return fmt.Errorf("look for the topic %s=%s: %w", variable, id, err)
}

// Emulated reports whether PUBSUB_EMULATOR_HOST redirects the client.
func Emulated() bool { return os.Getenv("PUBSUB_EMULATOR_HOST") != "" }
