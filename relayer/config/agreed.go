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
			partition.ABI: abiDigest(c), "FINALITY": finality(c),
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

// finality is FINALITY, with CONFIRMATIONS if they are used.
func finality(c *Config) string {
	text := fmt.Sprint(c.Finality)
	if text == "confirmations" {
		text += " " + strconv.FormatUint(c.Confirmations, 10)
	}

	return text
}

// abiDigest represents the events that the ABIs define, in any order.
func abiDigest(c *Config) string {
	definitions := slices.Sorted(slices.Values(c.ABI.Definitions()))
	sum := sha256.Sum256([]byte(strings.Join(definitions, "\n")))

	return hex.EncodeToString(sum[:])[:12]
}
