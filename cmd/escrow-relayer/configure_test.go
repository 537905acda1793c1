package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// twoChains is a configuration file of two chains.
const twoChains = `
pubsub_project_id: fusion-prime
pubsub_topic_id: settlement.events.v1
database_url: ${TEST_DATABASE_URL}
chains:
  - {chain_id: 1, rpc_url: "${TEST_RPC_URL}", start_block: 1,
     factory_address: "0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914"}
  - {chain_id: 8453, rpc_url: "${TEST_RPC_URL}", start_block: 1,
     factory_address: "0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914"}
`

// called runs a command in this process, with the configuration file of this text.
func called(t *testing.T, file string, args ...string) (out string, err error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "relayer.yaml")
	require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
	t.Setenv("TEST_DATABASE_URL", "postgresql://u:"+secretPassword+"@127.0.0.1:1/relayer")
	t.Setenv("TEST_RPC_URL", "https://node.example.com/"+secretKey)
	var b bytes.Buffer
	cmd := root()
	cmd.SetArgs(append(args, "--config", path))
	cmd.SetOut(&b)
	cmd.SetErr(&b)
	err = cmd.ExecuteContext(t.Context())
	if err != nil {
		noSecret(t, err.Error())
	}

	noSecret(t, b.String())

	return b.String(), err
}

func TestConfigCheckAndShow(t *testing.T) {
	out, err := called(t, twoChains, "config", "check")
	require.NoError(t, err)
	require.Contains(t, out, "chains 1, 8453")

	out, err = called(t, twoChains, "config", "show", "--all", "--chain", "8453")
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(out, "chain 8453\n"))
	require.NotContains(t, out, "chain 1\n")
	require.Contains(t, out, " https://***.example.com ")
	require.Regexp(t, "FLEET .* default", out)

	out, err = called(t, twoChains, "config", "show")
	require.NoError(t, err)
	require.Contains(t, out, "common part")

	out, err = called(t, "", "config", "schema")
	require.NoError(t, err)
	require.True(t, json.Valid([]byte(out)))
}

// Each wrong configuration ends a command with exit code 2, its path and a remedy, before anything is
// asked: there is no database here.
func TestWrongConfigurationFiles(t *testing.T) {
	for name, c := range map[string]struct{ old, replacement, args, says string }{
		"one chain twice":        {"8453", "1", "run", "chains[1].chain_id=1: is that of chains[0] too"},
		"an unknown key":         {"pubsub_topic_id", "pubsub_topik_id", "run", "was pubsub_topic_id meant"},
		"a missing variable":     {"TEST_DATABASE_URL", "MISSING", "status", "refers to ${MISSING}"},
		"a chain without node":   {`rpc_url: "${TEST_RPC_URL}", `, "", "run", "chains[0].rpc_url"},
		"two chains":             {"x", "x", "audit --from 1", "say by --chain which one is meant"},
		"two chains for replay":  {"x", "x", "replay --from 1", "chains 1, 8453: say by --chain"},
		"a chain that is not in": {"x", "x", "status --chain 5", "the configuration has chains 1, 8453"},
		"a port of each":         {"start_block: 1", "port: 8081, start_block: 1", "run", "chains[0].port"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := called(t, strings.Replace(twoChains, c.old, c.replacement, 1), strings.Fields(c.args)...)
			require.ErrorContains(t, err, c.says)
			require.Equal(t, exitRefused, exitCode(err))
		})
	}
}

// A command that asks every chain says of each what kept it from it.
func TestEachChainIsAsked(t *testing.T) {
	_, err := called(t, twoChains, "status")
	require.ErrorContains(t, err, "chain 1: ")
	require.ErrorContains(t, err, "chain 8453: ")
	require.Equal(t, exitRefused, exitCode(err))
}
