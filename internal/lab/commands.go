package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/ethereum/go-ethereum/accounts/keystore"
	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
)

// Topics of the way back.
const (
	commandsTopic = "escrow-commands"
	RepliesTopic  = "escrow-replies" // for those that need no Commands: nobody reads it
)

// Sender is an account whose key relayers get. Amounts are wei; empty or zero: the relayer's default.
type Sender struct {
	Account     testchain.Account
	Name        string
	MaxFee      string
	DayFees     string
	DayValue    string
	MaxInFlight int
}

// Requester is an entry of the policy.
type Requester struct {
	Name    string         `json:"name"`
	Address common.Address `json:"address"`
	Allow   []Grant        `json:"allow"`

	MaxOpen int `json:"max_open,omitempty"` // 0: the relayer's default
}

// Grant allows kinds of commands to one sender.
type Grant struct {
	Sender   common.Address `json:"sender"`
	Kinds    []string       `json:"kinds"`
	MaxValue string         `json:"max_value"`
	MaxFee   string         `json:"max_fee"`
}

// CommandFiles writes keys, the senders file and the policy into Dir, and returns the environment of relayers
// that have them, take commands over HTTP, and publish answers.
func (l *Lab) CommandFiles(senders []Sender, requesters []Requester) (map[string]string, error) {
	const secret = "pass word"
	path := func(name string) string { return filepath.Join(l.Dir, name) }
	files := map[string][]byte{"password": []byte(secret + "\n")}
	var entries []map[string]any
	for i, s := range senders {
		key, err := keystore.EncryptKey(&keystore.Key{Id: [16]byte{byte(i)}, Address: s.Account.Address,
			PrivateKey: s.Account.Key}, secret, 2, 1) // cheap to open: a start may open forty
		if err != nil {
			return nil, fmt.Errorf("encrypt the key of %s: %w", s.Account.Address, err)
		}

		file := fmt.Sprintf("key%d.json", i)
		files[file] = key
		entry := map[string]any{"name": s.Name, "address": s.Account.Address, "keystore": path(file),
			"password_file": path("password"), "max_fee": s.MaxFee, "day_fees": s.DayFees, "day_value": s.DayValue}
		if s.MaxInFlight > 0 {
			entry["max_in_flight"] = s.MaxInFlight
		}

		entries = append(entries, entry)
	}

	for name, content := range map[string]any{"senders.json": map[string]any{"senders": entries},
		"policy.json": map[string]any{"requesters": requesters}} {
		body, err := json.Marshal(content)
		if err != nil {
			return nil, err
		}

		files[name] = body
	}

	for name, content := range files {
		if err := os.WriteFile(path(name), content, 0o600); err != nil {
			return nil, err
		}
	}

	return map[string]string{"SENDERS_FILE": path("senders.json"), "COMMANDS_POLICY_FILE": path("policy.json"),
		"COMMANDS_HTTP": "true", "REPLIES_TOPIC_ID": RepliesTopic}, nil
}

// Commands is the way back at the Pub/Sub server.
type Commands struct {
	Subscription string               // of commands, for relayers
	Replies      *testpubsub.Recorder // every answer
	server       *testpubsub.Server
}

// OpenCommands makes the topics, and the subscription of commands. What a relayer took and did not acknowledge comes
// again after ten seconds.
func (l *Lab) OpenCommands() (*Commands, error) {
	l.PubSub.CreateTopic(Project, commandsTopic)
	c := &Commands{Subscription: commandsTopic, server: l.PubSub, Replies: l.record(RepliesTopic)}

	return c, l.PubSub.Subscribe(&pubsubpb.Subscription{
		Name:  testpubsub.SubscriptionName(Project, commandsTopic),
		Topic: testpubsub.TopicName(Project, commandsTopic), AckDeadlineSeconds: 10,
	})
}

// Publish sends one message of commands.
func (c *Commands) Publish(ctx context.Context, body []byte) error {
	return c.server.Publish(ctx, testpubsub.TopicName(Project, commandsTopic), body)
}
