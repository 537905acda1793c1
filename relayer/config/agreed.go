package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/fusion-prime/escrow-relayer/partition"
)

// Agreed are the settings that the instances of a fleet must agree on. They contain no secret: every reader of the
// database sees them.
func (c *Config) Agreed() partition.Settings {
	events := slices.Sorted(slices.Values(c.EventNames))

	return partition.Settings{
		Stream: map[string]string{
			"PUBSUB_PROJECT_ID": c.Project, "PUBSUB_TOPIC_ID": c.Topic, "OTHER_EVENTS_TOPIC_ID": c.OtherTopic,
			"RETRACTIONS_TOPIC_ID": c.RetractionsTopic, "PUBSUB_ENDPOINT": c.PubSubEndpoint,
			"EVENT_NAMES": strings.Join(events, ","), "ORDERING_KEY": c.OrderingKey,
			partition.ABI: abiDigest(c), "FINALITY": c.Processed(),
		},
		Other: map[string]string{
			"PARTITION_STRATEGY": string(c.Partition.Strategy), "TOTAL_PARTITIONS": strconv.Itoa(c.Partition.Total),
			"START_BLOCK": strconv.FormatInt(c.StartBlock, 10), "RETENTION": c.Retention.String(),
			"ADOPT_AFTER": c.AdoptAfter.String(), "FINALITY_LIMIT": c.FinalityLimit.String(),
		},
		Events: c.ABI.Shapes(),
		Mixed:  c.AllowMixedSettings,
	}
}

// Processed is what may be processed: FINALITY, with CONFIRMATIONS if they are used.
func (c *Config) Processed() string {
	if c.Finality != "confirmations" {
		return c.Finality
	}

	return fmt.Sprintf("confirmations %d", c.Confirmations)
}

// Newest reports whether every block is processed at once, so that reorganisations take published events back.
func (c *Config) Newest() bool { return c.Finality == "latest" || c.Processed() == "confirmations 0" }

// abiDigest represents the events that the ABIs define, in any order.
func abiDigest(c *Config) string {
	definitions := slices.Sorted(slices.Values(c.ABI.Definitions()))
	sum := sha256.Sum256([]byte(strings.Join(definitions, "\n")))

	return hex.EncodeToString(sum[:])[:12]
}
