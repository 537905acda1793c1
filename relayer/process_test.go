package relayer

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
	"github.com/fusion-prime/escrow-relayer/relayer/start"
)

// What is wrong with any chain is told before anything runs, of all chains at once, each by its id.
func TestNewProcessNamesEachChainThatIsWrong(t *testing.T) {
	t.Parallel()
	var chains []*config.Config
	for _, id := range []string{"1", "8453", "10"} {
		environ := map[string]string{
			"CHAIN_ID": id, "RPC_URL": "http://127.0.0.1:1", "FACTORY_ADDRESS": "0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914",
			"PUBSUB_PROJECT_ID": "fusion-prime", "PUBSUB_TOPIC_ID": "settlement.events.v1", "INSTANCE_ID": "relayer-0",
			"DATABASE_URL": "postgresql://u:s3cret@127.0.0.1:1/relayer",
		}
		if id != "10" {
			environ["SENDERS_FILE"], environ["COMMANDS_POLICY_FILE"] = "/nowhere/senders-"+id, "/nowhere/policy"
			environ["REPLIES_TOPIC_ID"] = "settlement.answers.v1"
		}

		cfg, err := config.Load(environ)
		require.NoError(t, err)
		chains = append(chains, cfg)
	}

	_, err := NewProcess(chains, slog.New(slog.DiscardHandler), fleet.Build{})
	require.ErrorIs(t, err, start.ErrRefused)
	require.ErrorContains(t, err, "chain 1: ")
	require.ErrorContains(t, err, "/nowhere/senders-1:")
	require.ErrorContains(t, err, "chain 8453: ")
	require.NotContains(t, err.Error(), "chain 10: ")

	_, err = NewProcess(chains[2:], slog.New(slog.DiscardHandler), fleet.Build{})
	require.NoError(t, err)
}
