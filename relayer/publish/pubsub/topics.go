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

// ErrNoTopic means that a configured topic does not exist, or that its id cannot be one.
var ErrNoTopic = errors.New("no such topic")

// Topics names the topics by their ids. Other and Retractions may be empty: then no event goes to
// Other, and retractions are dropped.
type Topics struct {
	Default, Other, Retractions string
}

var (
	projectForm = regexp.MustCompile(`^([a-z0-9.-]+:)?[a-z][a-z0-9-]{1,61}[a-z0-9]$`)
	topicForm   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._~+%-]{2,254}$`)
)

// IsProjectID says whether a text can be the id of a project, by the documentation of Google Cloud.
func IsProjectID(id string) bool { return projectForm.MatchString(id) }

// IsTopicID says whether a text can be the id of a topic, by the documentation of Pub/Sub.
func IsTopicID(id string) bool { return topicForm.MatchString(id) && !strings.HasPrefix(id, "goog") }

// CheckTopics says whether the topics exist and may be published to, as far as can be known without
// publishing; every problem, not the first only. The error wraps ErrNoTopic unless the service did
// not answer; it is given 10 s per topic. PUBSUB_EMULATOR_HOST is honoured as Google's client does.
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
		{"OTHER_EVENTS_TOPIC_ID", t.Other}, {"RETRACTIONS_TOPIC_ID", t.Retractions}} {
		if topic.id != "" {
			problems = append(problems, checkTopic(ctx, client, project, topic.variable, topic.id))
		}
	}

	return errors.Join(problems...)
}

// CheckTopic is CheckTopics for one topic, which a variable names.
func CheckTopic(ctx context.Context, project, variable, id string, opts ...option.ClientOption) error {
	client, err := open(ctx, project, opts)
	if err != nil {
		return err
	}

	defer func() { _ = client.Close() }() // nothing was written

	return checkTopic(ctx, client, project, variable, id)
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

// Emulated says whether PUBSUB_EMULATOR_HOST redirects the client.
func Emulated() bool { return os.Getenv("PUBSUB_EMULATOR_HOST") != "" }
