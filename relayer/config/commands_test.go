package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What concerns commands is checked like everything else, and without any of it there is nothing to
// check.
func TestCommandsAreChecked(t *testing.T) {
	_, err := Load(good())
	require.NoError(t, err)
	_, err = Load(with("COMMANDS_SUBSCRIPTION_ID", "commands", "REPLIES_TOPIC_ID", "replies", "COMMANDS_POLICY_FILE",
		"policy.json"))
	require.NoError(t, err)
	_, err = Load(with("COMMANDS_HTTP", "true", "REPLIES_TOPIC_ID", "replies", "COMMANDS_POLICY_FILE", "policy.json"))
	require.NoError(t, err)
	_, err = Load(with("SENDERS_FILE", "senders.json", "REPLIES_TOPIC_ID", "replies", "COMMANDS_POLICY_FILE",
		"policy.json"))
	require.NoError(t, err)
	_, err = Load(with("SENDERS_FILE", "senders.json", "REPLIES_TOPIC_ID", "replies", "KEEPER_SENDER",
		"0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914"))
	require.NoError(t, err)

	for _, c := range []struct {
		variable string
		set      []string
	}{
		{"COMMANDS_POLICY_FILE", []string{"COMMANDS_HTTP", "true"}},
		{"COMMANDS_POLICY_FILE", []string{"COMMANDS_POLICY_FILE", "policy.json"}},
		{"COMMANDS_POLICY_FILE", []string{"SENDERS_FILE", "senders.json"}},
		{"REPLIES_TOPIC_ID=(not set): is needed with COMMANDS_HTTP, ", []string{"COMMANDS_SUBSCRIPTION_ID", "commands",
			"COMMANDS_POLICY_FILE", "policy.json"}},
		{"REPLIES_TOPIC_ID=(not set): is needed with COMMANDS_HTTP, ", []string{"COMMANDS_HTTP", "true",
			"COMMANDS_POLICY_FILE", "policy.json"}},
		{"REPLIES_TOPIC_ID=(not set): is needed with COMMANDS_HTTP, ", []string{"SENDERS_FILE", "senders.json",
			"COMMANDS_POLICY_FILE", "policy.json"}},
		{"REPLIES_TOPIC_ID=(not set): is needed with COMMANDS_HTTP, ", []string{"SENDERS_FILE", "senders.json",
			"KEEPER_SENDER", "0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914"}},
		{"REPLIES_TOPIC_ID", []string{"REPLIES_TOPIC_ID", "settlement.events.v1"}},
		{"COMMANDS_SUBSCRIPTION_ID", []string{"COMMANDS_SUBSCRIPTION_ID", "projects/p/subscriptions/s"}},
		{"COMMANDS_PORT", []string{"COMMANDS_PORT", "9000"}},
		{"COMMANDS_PORT", []string{"COMMANDS_PORT", "70000", "COMMANDS_HTTP", "true"}},
		{"KEEPER_SENDER", []string{"KEEPER_SENDER", "arbiter", "SENDERS_FILE", "senders.json"}},
		{"KEEPER_SENDER", []string{"KEEPER_SENDER", "0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914"}},
		{"KEEPER_MAX_FEE", []string{"KEEPER_MAX_FEE", "0.01 ether"}},
		{"KEEPER_DAY_FEES", []string{"KEEPER_DAY_FEES", "-1"}},
		{"KEEPER_MIN_AMOUNT", []string{"KEEPER_MIN_AMOUNT", "0"}},
		{"KEEPER_PAYERS", []string{"KEEPER_PAYERS", "0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914,somebody"}},
	} {
		_, err := Load(with(c.set...))
		require.ErrorContains(t, err, c.variable, "%v", c.set)
	}
}
