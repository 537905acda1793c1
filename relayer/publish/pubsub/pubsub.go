// Package pubsub is the relayer's client of Google Pub/Sub: it publishes over monitored connections
// and checks that topics exist.
//
// A broken connection may stay silent for ever: a gateway lost it, or a proxy behind it died. TCP
// misses this if a device in between still acknowledges, and pings more frequent than every 30 s
// make Google's front ends close the connection with all its requests. So each request has a
// deadline, and a connection on which a deadline passed without any answer in the meantime is
// replaced. Requests that wait on it end then, with an error that leaves open whether they were
// stored.
package pubsub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"time"

	apiv1 "cloud.google.com/go/pubsub/v2/apiv1"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/googleapis/gax-go/v2"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

const (
	// requestTimeout bounds one request. A healthy service answers within a second.
	requestTimeout = 10 * time.Second
	// maxConnections is the limit of Google's client.
	maxConnections = 4
)

// dialing configures how a connection is made and kept. A lost one is redialled after at most 5 s:
// the default is two minutes. Pings are sent while requests are in flight, as often as Google's
// front ends allow (googleapis/google-cloud-php#3565); on Linux Timeout also bounds how long sent
// bytes may stay unacknowledged.
//
// The client's telemetry is off: messages carry spans of ours, and an uncollected span per request
// costs 40 of a request's 294 allocations and 5 % or more of its processor time.
var dialing = []option.ClientOption{
	option.WithGRPCConnectionPool(1),
	option.WithTelemetryDisabled(),
	option.WithGRPCDialOption(grpc.WithConnectParams(grpc.ConnectParams{
		Backoff: backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
			MaxDelay: 5 * time.Second},
		MinConnectTimeout: 5 * time.Second,
	})),
	option.WithGRPCDialOption(grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second,
		Timeout: 10 * time.Second})),
}

// Dialing returns the same connection options for another Google client.
func Dialing() []option.ClientOption { return slices.Clone(dialing) }

// At makes a client use an endpoint, host:port: a locational one stores everything in its region.
// Empty: the client's default, the nearest region's.
func At(endpoint string) []option.ClientOption {
	if endpoint == "" {
		return nil
	}

	return []option.ClientOption{option.WithEndpoint(endpoint)}
}

// Message is what a subscriber receives. Attribute values have up to 1,024 bytes.
type Message struct {
	Data       []byte
	Attributes map[string]string
}

// Config of a Client. Project is required.
type Config struct {
	Project string
	Options []option.ClientOption
	Timeout time.Duration // of one request. Zero: 10 s
	Log     *slog.Logger  // nil: none
}

// Client publishes. It is safe for concurrent use. It honours PUBSUB_EMULATOR_HOST as Google's
// client does.
type Client struct {
	cfg Config

	mu     sync.Mutex
	conns  []*conn // replaced one by one; empty only after Close
	closed bool
}

// conn is one connection. Its fields are guarded by the Client's mutex.
type conn struct {
	api       *apiv1.TopicAdminClient
	pending   int       // requests in flight
	answered  time.Time // when the last answer came, of any kind
	replacing bool      // a goroutine replaces it, or has: only one does
}

// New prepares connections lazily: the service may be away. Close frees them.
func New(ctx context.Context, cfg Config) (*Client, error) {
	cfg.Timeout = cmp.Or(cfg.Timeout, requestTimeout)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))

	c := &Client{cfg: cfg}
	for range min(runtime.GOMAXPROCS(0), maxConnections) {
		api, err := open(ctx, cfg.Project, cfg.Options)
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}

		c.conns = append(c.conns, &conn{api: api})
	}

	return c, nil
}

func open(ctx context.Context, project string, opts []option.ClientOption) (*apiv1.TopicAdminClient, error) {
	// The credentials' renewal keeps the context.
	api, err := apiv1.NewTopicAdminClient(context.WithoutCancel(ctx),
		append(slices.Clip(dialing), opts...)...)
	if err != nil {
		return nil, fmt.Errorf("open the Pub/Sub client for PUBSUB_PROJECT_ID=%s; are there credentials (GOOGLE_APPLICATION_CREDENTIALS), or PUBSUB_EMULATOR_HOST: %w", project, err)
	}

	return api, nil
}

// Close ends every request in flight.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	conns := c.conns
	c.mu.Unlock()

	var errs []error
	for _, n := range conns {
		errs = append(errs, n.api.Close())
	}

	return errors.Join(errs...)
}

// Publish stores 1 to 1,000 messages, 10 MB at most, under one ordering key of a topic, all or
// none, and returns their ids in order. It tries once. An error has a gRPC code; unless Refused
// reports true, the messages may have been stored.
func (c *Client) Publish(ctx context.Context, topic, key string, messages []Message) ([]string, error) {
	all := make([]pubsubpb.PubsubMessage, len(messages))
	req := &pubsubpb.PublishRequest{Topic: topicName(c.cfg.Project, topic),
		Messages: make([]*pubsubpb.PubsubMessage, len(messages))}
	for i := range messages {
		m := &all[i]
		m.Data, m.Attributes, m.OrderingKey = messages[i].Data, messages[i].Attributes, key
		req.Messages[i] = m
	}

	n := c.take()
	sent := time.Now()
	attempt, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	resp, err := n.api.Publish(attempt, req, gax.WithRetry(nil)) // the caller retries
	silent := err != nil && attempt.Err() != nil && ctx.Err() == nil
	if c.put(n, sent, silent, err) {
		c.replace(ctx, n)
	}

	return resp.GetMessageIds(), err
}

func topicName(project, id string) string { return "projects/" + project + "/topics/" + id }

// take returns the connection with the fewest requests in flight.
func (c *Client) take() *conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	best := c.conns[0]
	for _, n := range c.conns[1:] {
		if n.pending < best.pending {
			best = n
		}
	}

	best.pending++

	return best
}

// put records the end of a request, and reports whether the caller must replace its connection: its
// deadline passed without any answer since it was sent.
func (c *Client) put(n *conn, sent time.Time, silent bool, err error) (replace bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n.pending--
	if code := Code(err); code != codes.DeadlineExceeded && code != codes.Canceled && code != codes.Unavailable {
		n.answered = time.Now()
	}

	if !silent || n.answered.After(sent) || n.replacing || c.closed {
		return false
	}

	n.replacing = true

	return true
}

// replace replaces a silent connection.
func (c *Client) replace(ctx context.Context, old *conn) {
	c.cfg.Log.WarnContext(ctx, "connection to Pub/Sub is silent, replacing it",
		slog.Duration("after", c.cfg.Timeout))
	api, err := open(ctx, c.cfg.Project, c.cfg.Options)

	c.mu.Lock()
	switch {
	case err != nil:
		old.replacing = false
	case !c.closed:
		c.conns[slices.Index(c.conns, old)] = &conn{api: api}
		api = old.api
	}

	c.mu.Unlock()

	if err != nil {
		c.cfg.Log.WarnContext(ctx, "connection to Pub/Sub could not be replaced", slog.Any("err", err))
		return
	}

	_ = api.Close() // requests in flight on it end: their callers retry
}

// Code is the gRPC code of an error of Publish; a deadline of ours lacks one.
func Code(err error) codes.Code {
	switch {
	case err == nil:
		return codes.OK
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	}

	return status.Code(err)
}

// Refused reports whether an answer proves that the messages were not stored.
func Refused(c codes.Code) bool {
	switch c {
	case codes.PermissionDenied, codes.Unauthenticated, codes.NotFound, codes.InvalidArgument, codes.FailedPrecondition,
		codes.OutOfRange,
		codes.AlreadyExists, codes.Unimplemented, codes.ResourceExhausted:
		return true
	}

	return false
}
