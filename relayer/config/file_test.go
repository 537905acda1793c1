package config

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const twoChains = `
database_url: postgres://u:${PASSWORD}@db/relayer
pubsub_project_id: fusion-prime
pubsub_topic_id: settlement.events.v1
total_partitions: 3
partition_number: 1
confirmations: 20
chains:
  - chain_id: 1
    rpc_urls:
      - https://a.example.com/v2/${KEY}
      - wss://b.example.com
    factory_address: 0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914
    start_block: 20000000
  - chain_id: 8453
    rpc_urls: file:base.rpc
    factory_address: 0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914
    start_block: 9508300
    confirmations: 30
    total_partitions: 1
    partition_number: 0
`

func written(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "relayer.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(path), "base.rpc"),
		[]byte("https://c.example.com/k3yk3yk3y\n"), 0o600))

	return path
}

func environOf(path string, more ...string) map[string]string {
	e := map[string]string{"CONFIG_FILE": path, "PASSWORD": "s3cret", "KEY": "k3yk3yk3y", "INSTANCE_ID": "relayer-1"}
	for i := 0; i < len(more); i += 2 {
		e[more[i]] = more[i+1]
	}

	return e
}

func TestAFileGivesEachChainItsConfig(t *testing.T) {
	all, err := Chains(environOf(written(t, twoChains)), Load)
	require.NoError(t, err)
	require.Len(t, all, 2)
	one, base := all[0], all[1]
	require.EqualValues(t, 1, one.ChainID)
	require.Equal(t, []string{"https://a.example.com/v2/k3yk3yk3y", "wss://b.example.com"}, one.RPCURLs)
	require.Equal(t, "postgres://u:s3cret@db/relayer", one.DatabaseURL)
	require.Equal(t, 3, one.Partition.Total)
	require.EqualValues(t, 20, one.Confirmations)
	require.Equal(t, []string{"https://c.example.com/k3yk3yk3y"}, base.RPCURLs)
	require.Equal(t, 1, base.Partition.Total, "a chain may say otherwise than the common part")
	require.EqualValues(t, 30, base.Confirmations)
}

// The entry of a chain wins over the environment, and that over the common part.
func TestWhichOfSeveralValuesCounts(t *testing.T) {
	all, err := Chains(environOf(written(t, twoChains), "CONFIRMATIONS", "7", "PUBSUB_TOPIC_ID", "other.events"), Load)
	require.NoError(t, err)
	require.EqualValues(t, 7, all[0].Confirmations)
	require.EqualValues(t, 30, all[1].Confirmations)
	require.Equal(t, "other.events", all[0].Topic)
	from := map[string]string{}
	for _, s := range all[1].Settings() {
		require.NotContains(t, s.Value, "s3cret")
		require.NotContains(t, s.Value, "k3yk3yk3y")
		from[s.Name] = s.From
	}

	require.Equal(t, "chains[1]", from["CONFIRMATIONS"])
	require.Equal(t, "environment", from["PUBSUB_TOPIC_ID"])
	require.Equal(t, "common part", from["PUBSUB_PROJECT_ID"])
	require.Equal(t, "default", from["FINALITY"])
}

func TestWithoutAFileTheEnvironmentIsOneChain(t *testing.T) {
	all, err := Chains(good(), Load)
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.EqualValues(t, 11155111, all[0].ChainID)
}

// replaced is twoChains with one text in place of another.
func replaced(old, replacement string) string {
	if !strings.Contains(twoChains, old) {
		panic(old)
	}

	return strings.Replace(twoChains, old, replacement, 1)
}

func TestWrongFiles(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		path string // of the problem
		says string
	}{
		"no YAML":                {"chains: [", "CONFIG_FILE", "is not YAML"},
		"a secret for an alias":  {"database_url: *s3cretpassword", "CONFIG_FILE", "in quotes"},
		"empty":                  {"", "CONFIG_FILE", "is empty"},
		"two documents":          {twoChains + "\n---\na: 1\n", "CONFIG_FILE", "several documents"},
		"a list":                 {"- chain_id: 1", "CONFIG_FILE", "must hold keys and values"},
		"no chains":              {"confirmations: 3", "chains", "list the chains"},
		"chains without entries": {"chains: []", "chains", "list the chains"},
		"a chain without keys":   {replaced("chains:", "chains:\n  - 1"), "chains[0]", "must hold keys"},
		"one chain twice":        {replaced("8453", "0x1"), "chains[1].chain_id", "must be a whole number"},
		"one chain in two ways":  {replaced("8453", "01"), "chains[1].chain_id", "is that of chains[0] too"},
		"unknown key": {replaced("start_block: 20", "start_blok: 20"), "chains[0].start_blok",
			"was start_block meant"},
		"unknown key of no kind": {replaced("confirmations: 20", "finalty: safe"), "finalty", "was finality meant"},
		"a key in upper case": {replaced("confirmations: 20", "CONFIRMATIONS: 20"), "confirmations",
			"was confirmations meant"},
		"a key twice": {replaced("confirmations: 20", "confirmations: 20\nconfirmations: 21"), "confirmations",
			"set twice"},
		"a mapping for a value": {replaced("confirmations: 20", "confirmations: {a: 1}"), "confirmations",
			"one value"},
		"a list for a value": {replaced("confirmations: 20", "confirmations: [1]"), "confirmations",
			"one value"},
		"ABIs as a list": {replaced("confirmations: 20", "factory_abi: [a.json, b.json]"), "factory_abi",
			"must be one value: ABI of the factory, JSON or a path; several paths, of its versions, are comma-separated"},
		"an ABI without quotes": {replaced("confirmations: 20", "escrow_abi: [{type: event, name: Approved}]"), "escrow_abi",
			"put quotes around a value that begins with [ or {"},
		"typos in names of events": {replaced("confirmations: 20", "event_names: [Approved, ArbiterChangd, approved]"),
			"event_names", "ArbiterChangd is not an event of the ABI; was ArbiterChanged meant?"},
		"a missing variable":      {replaced("${PASSWORD}", "${MISSING}"), "database_url", "refers to ${MISSING}"},
		"a missing key":           {replaced("${KEY}", "${MISSING}"), "chains[0].rpc_urls", "refers to ${MISSING}"},
		"an unfinished reference": {replaced("${PASSWORD}@", "${PASSWORD@"), "database_url", "write ${VARIABLE}"},
		"a missing file": {replaced("file:base.rpc", "file:nowhere"), "chains[1].rpc_urls",
			"cannot be read"},
		"a wrong value of a chain": {replaced("confirmations: 30", "confirmations: x"), "chains[1].confirmations",
			"must be a whole number"},
		"a wrong value of all": {replaced("confirmations: 20", "finality: soon"), "finality", "must be one of"},
		"no factory": {replaced("factory_address", "# factory_address"), "chains[0].factory_address",
			"must be an address"},
		"no endpoint": {replaced("rpc_urls: file:base.rpc", "rpc_urls: []"), "chains[1].rpc_url",
			"is missing"},
		"an endpoint of no scheme": {replaced("wss://b", "ftp://b"), "chains[0].rpc_urls", "endpoint 2 of 2"},
		"a partition beyond all": {replaced("partition_number: 0", "partition_number: 1"), "chains[1].partition_number",
			"below"},
		"a chain's own port": {replaced("confirmations: 30", "port: 8081"), "chains[1].port", "whole process"},
		"a chain's id for all": {replaced("confirmations: 20", "chain_id: 5"), "chain_id",
			"belongs to one chain"},
		"a file of another file": {replaced("confirmations: 20", "config_file: x"), "config_file",
			"of the environment"},
		"tracing": {replaced("confirmations: 20", "otel_traces_exporter: x"), "otel_traces_exporter",
			"OpenTelemetry"},
		"one subscription": {replaced("confirmations: 20", "commands_subscription_id: commands"),
			"chains[1].commands_subscription_id", "is that of chains[0] too"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Chains(environOf(written(t, c.text)), Load)
			var problems Problems
			require.ErrorAs(t, err, &problems)
			found := false
			for _, p := range problems {
				found = found || p.Variable == c.path && strings.Contains(p.Remedy, c.says)
			}

			require.True(t, found, err)
			require.NotContains(t, err.Error(), "s3cret")
			require.NotContains(t, err.Error(), "k3yk3yk3y")
		})
	}
}

// What could not be read is one problem, and is not reported as missing too.
func TestOneCauseIsOneProblem(t *testing.T) {
	for _, text := range []string{replaced("${PASSWORD}", "${MISSING}"), replaced("${KEY}", "${MISSING}"),
		replaced("file:base.rpc", "file:nowhere")} {
		_, err := Chains(environOf(written(t, text)), Load)
		var problems Problems
		require.ErrorAs(t, err, &problems)
		require.Len(t, problems, 1, err)
	}
}

// All problems of all chains are told at once, and one of the common part once.
func TestAllProblemsOfAllChains(t *testing.T) {
	text := strings.NewReplacer("confirmations: 20", "finality: soon", "start_block: 20000000", "start_block: -1",
		"wss://b", "ftp://b", "confirmations: 30", "adopt_after: soon").Replace(twoChains)
	_, err := Chains(environOf(written(t, text)), Load)
	var problems Problems
	require.ErrorAs(t, err, &problems)
	var paths []string
	for _, p := range problems {
		paths = append(paths, p.Variable)
	}

	require.ElementsMatch(t,
		[]string{"finality", "chains[0].start_block", "chains[0].rpc_urls", "chains[1].adopt_after"}, paths)
}

// A variable that belongs to one chain is refused beside a file, unless the file refers to it.
func TestAVariableOfOneChainBesideAFile(t *testing.T) {
	_, err := Chains(environOf(written(t, twoChains), "RPC_URLS", "https://c.example.com/k3yk3yk3y"), Load)
	require.ErrorContains(t, err, "RPC_URLS=***: belongs to one chain")
	all, err := Chains(environOf(written(t, replaced("file:base.rpc", "${RPC_URLS}")),
		"RPC_URLS", "https://c.example.com,https://d.example.com"), Load)
	require.NoError(t, err)
	require.Len(t, all[0].RPCURLs, 2)
	require.Equal(t, []string{"https://c.example.com", "https://d.example.com"}, all[1].RPCURLs)
}

// A file that every user can read must not hold a secret.
func TestSecretsInAFileThatOthersCanRead(t *testing.T) {
	for old, replacement := range map[string]string{
		"u:${PASSWORD}@": "u:s3cret@", "/v2/${KEY}": "/v2/k3yk3yk3y",
		"file:base.rpc":                       "https://c.example.com/k3yk3yk3y",
		"postgres://u:${PASSWORD}@db/relayer": "host=db password=s3cret",
	} {
		path := written(t, replaced(old, replacement))
		_, err := Chains(environOf(path), Load)
		require.NoError(t, err)
		require.NoError(t, os.Chmod(path, 0o644))
		_, err = Chains(environOf(path), Load)
		require.ErrorContains(t, err, "every user can read")
		require.NotContains(t, err.Error(), "k3yk3yk3y")
		require.NotContains(t, err.Error(), "s3cret")
	}

	path := written(t, twoChains)
	require.NoError(t, os.Chmod(path, 0o644))
	_, err := Chains(environOf(path), Load)
	require.NoError(t, err)
}

func TestAFileIsBounded(t *testing.T) {
	_, err := Chains(environOf(written(t, "#"+strings.Repeat("x", maxFile))), Load)
	require.ErrorContains(t, err, "larger than")
	_, err = Chains(environOf(filepath.Join(t.TempDir(), "nowhere.yaml")), Load)
	require.ErrorContains(t, err, "no such file")
	_, err = Chains(environOf(t.TempDir()), Load)
	require.ErrorContains(t, err, "is a directory")
}

// The schema for editors is that of the settings, and accepts what the relayer accepts.
func TestSchema(t *testing.T) {
	const path = "config.schema.json"
	var b bytes.Buffer
	require.NoError(t, Schema(&b))
	if *update {
		require.NoError(t, os.WriteFile(path, b.Bytes(), 0o644))
	}

	stored, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(stored), b.String(), "if it is meant to be so: go test ./relayer/config -update")

	doc, err := jsonschema.UnmarshalJSON(&b)
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource(path, doc))
	schema, err := c.Compile(path)
	require.NoError(t, err)
	for _, text := range []string{twoChains, string(example(t))} {
		require.NoError(t, schema.Validate(asJSON(t, text)))
	}

	for _, text := range []string{replaced("confirmations: 20", "chain_id: 5"),
		replaced("start_block: 20", "start_blok: 20"), replaced("confirmations: 30", "port: 8081")} {
		require.Error(t, schema.Validate(asJSON(t, text)))
	}
}

func asJSON(t *testing.T, text string) any {
	t.Helper()
	var v any
	require.NoError(t, yaml.Unmarshal([]byte(text), &v))
	raw, err := json.Marshal(v)
	require.NoError(t, err)
	v, err = jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	require.NoError(t, err)

	return v
}

func example(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile("../../deploy/chains.example.yaml")
	require.NoError(t, err)

	return text
}

func TestExampleFileLoads(t *testing.T) {
	environ := map[string]string{"CONFIG_FILE": "../../deploy/chains.example.yaml",
		"DATABASE_PASSWORD": "p", "MAINNET_KEY": "k",
		"BASE_RPC_URLS": "https://base.example.com/k,wss://base.example.org/k"}
	all, err := Chains(environ, Load)
	require.NoError(t, err)
	require.Len(t, all, 2)
	for _, c := range all {
		require.Empty(t, c.Warnings)
	}
}

// However a file is, it is read or refused, without a secret.
func FuzzFile(f *testing.F) {
	f.Add(twoChains)
	f.Add("chains: &a [*a]")
	f.Add("a: &a {b: *a}\nchains: [*a]")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "file:") || strings.Contains(text, "_abi") {
			return // a path
		}

		all, err := Chains(environOf(written(t, text)), Load)
		require.Equal(t, err == nil, len(all) > 0)
	})
}
