package config

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func good() map[string]string {
	return map[string]string{
		"CHAIN_ID": "11155111", "RPC_URL": "https://sepolia.example.com/v2/k3yk3yk3y", "FACTORY_ADDRESS": "0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914",
		"PUBSUB_PROJECT_ID": "fusion-prime", "PUBSUB_TOPIC_ID": "settlement.events.v1", "START_BLOCK": "9508300", "INSTANCE_ID": "relayer-0",
		"PARTITION_NUMBER": "0", "TOTAL_PARTITIONS": "3", "DATABASE_URL": "postgresql://u:s3cret@db/relayer",
	}
}

func with(pairs ...string) map[string]string {
	m := good()
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return m
}

func TestTheFirstDesignsConfigurationLoads(t *testing.T) {
	c, err := Load(with("DATABASE_URL", "postgresql+asyncpg://u:s3cret@db/relayer?ssl=require"))
	require.NoError(t, err)
	require.EqualValues(t, 11155111, c.ChainID)
	require.Equal(t, []string{"https://sepolia.example.com/v2/k3yk3yk3y"}, c.RPCURLs)
	require.Equal(t, "postgresql://u:s3cret@db/relayer?sslmode=require", c.DatabaseURL)
	require.Equal(t, c.DatabaseURL, c.SessionDatabaseURL)
	require.Equal(t, 30*time.Second, c.HeartbeatInterval)
	require.Equal(t, 3, c.Partition.Total)
	require.True(t, c.Publishes("Approved"))
	require.False(t, c.Publishes("EscrowCreated"))
}

func TestExampleIsComplete(t *testing.T) {
	text, err := os.ReadFile("../../.env.example")
	require.NoError(t, err)
	environ := map[string]string{}
	for _, line := range strings.Split(string(text), "\n") {
		if name, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			environ[name] = value
		}
	}
	c, err := Load(environ)
	require.NoError(t, err)
	require.Len(t, c.RPCURLs, 2)
}

func TestProblems(t *testing.T) {
	for name, c := range map[string]struct {
		environ  map[string]string
		variable string
	}{
		"partition beyond the total": {with("PARTITION_NUMBER", "3"), "PARTITION_NUMBER"},
		"partition is a word":        {with("PARTITION_NUMBER", "first"), "PARTITION_NUMBER"},
		"no total":                   {with("TOTAL_PARTITIONS", "0"), "TOTAL_PARTITIONS"},
		"total too large":            {with("TOTAL_PARTITIONS", "2521"), "TOTAL_PARTITIONS"},
		"total is a word":            {with("TOTAL_PARTITIONS", "three"), "TOTAL_PARTITIONS"},
		"malformed address":          {with("FACTORY_ADDRESS", "0x311E63"), "FACTORY_ADDRESS"},
		"zero address":               {with("FACTORY_ADDRESS", "0x0000000000000000000000000000000000000000"), "FACTORY_ADDRESS"},
		"no chain id":                {with("CHAIN_ID", ""), "CHAIN_ID"},
		"chain id too large":         {with("CHAIN_ID", "1099511627776"), "CHAIN_ID"},
		"no endpoint":                {with("RPC_URL", ""), "RPC_URL"},
		"ftp endpoint":               {with("RPC_URLS", "ftp://node"), "RPC_URLS"},
		"no database":                {with("DATABASE_URL", ""), "DATABASE_URL"},
		"database of another kind":   {with("DATABASE_URL", "mysql://u:s3cret@h/d"), "DATABASE_URL"},
		"long instance id":           {with("INSTANCE_ID", strings.Repeat("x", 49)), "INSTANCE_ID"},
		"instance id with a space":   {with("INSTANCE_ID", "a b"), "INSTANCE_ID"},
		"bad duration":               {with("ADOPT_AFTER", "soon"), "ADOPT_AFTER"},
		"negative duration":          {with("ADOPT_AFTER", "-1s"), "ADOPT_AFTER"},
		"zero duration":              {with("RPC_TIMEOUT", "0s"), "RPC_TIMEOUT"},
		"latest without retractions": {with("FINALITY", "latest"), "RETRACTIONS_TOPIC_ID"},
		"unknown finality":           {with("FINALITY", "soonish"), "FINALITY"},
		"unknown event":              {with("EVENT_NAMES", "Deposit", "OTHER_EVENTS_TOPIC_ID", "other"), "EVENT_NAMES"},
		"other events without topic": {with("EVENT_NAMES", "ArbiterChanged"), "OTHER_EVENTS_TOPIC_ID"},
		"one-letter topic":           {with("PUBSUB_TOPIC_ID", "t"), "PUBSUB_TOPIC_ID"},
		"retractions to the events":  {with("RETRACTIONS_TOPIC_ID", "settlement.events.v1"), "RETRACTIONS_TOPIC_ID"},
		"broken ABI":                 {with("ESCROW_ABI", "[{]"), "ESCROW_ABI"},
		"missing ABI file":           {with("FACTORY_ABI", "/nowhere.json"), "FACTORY_ABI"},
		"IAM without instance":       {with("CLOUDSQL_IAM_AUTH", "true"), "CLOUDSQL_INSTANCE"},
		"malformed Cloud SQL name":   {with("CLOUDSQL_INSTANCE", "db"), "CLOUDSQL_INSTANCE"},
		"few connections":            {with("DB_MAX_CONNS", "2"), "DB_MAX_CONNS"},
		"port":                       {with("PORT", "70000"), "PORT"},
		"strategy":                   {with("PARTITION_STRATEGY", "random"), "PARTITION_STRATEGY"},
		"explorer":                   {with("EXPLORER_URL", "javascript:alert(1)"), "EXPLORER_URL"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load(c.environ)
			var problems Problems
			require.ErrorAs(t, err, &problems)
			var variables []string
			for _, p := range problems {
				variables = append(variables, p.Variable)
				require.NotEmpty(t, p.Remedy)
			}
			require.Contains(t, variables, c.variable, err)
			require.NotContains(t, err.Error(), "s3cret")
			require.NotContains(t, err.Error(), "k3yk3yk3y")
		})
	}
}

func TestAllProblemsAtOnceAndNoSecretAmongThem(t *testing.T) {
	_, err := Load(map[string]string{
		"CHAIN_ID": "x", "RPC_URLS": "ftp://h/v2/k3yk3yk3y12,wss://user:pa55word@h2/?token=t0kent0ken", "DATABASE_URL": "mysql://u:s3cret@h/d", "TOTAL_PARTITIONS": "0",
		"INSTANCE_ID": "relayer", "ADOPT_AFTER": "soon",
	})
	var problems Problems
	require.True(t, errors.As(err, &problems))
	require.GreaterOrEqual(t, len(problems), 7, err)
	for _, secret := range []string{"k3yk3yk3y12", "pa55word", "t0kent0ken", "s3cret"} {
		require.NotContains(t, err.Error(), secret)
	}
	require.NotContains(t, err.Error(), "environment=", "every problem names its variable: %s", err)
}

func TestAuto(t *testing.T) {
	c, err := Load(with("PARTITION_NUMBER", "auto"))
	require.NoError(t, err)
	require.True(t, c.Auto)
}

// The README's table is what the code says.
func TestReadmeDocumentsEveryVariable(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	var table bytes.Buffer
	Markdown(&table)
	require.Contains(t, string(readme), table.String(), "write the table of `config.Markdown` into README.md")
	var help bytes.Buffer
	Help(&help)
	for _, v := range Variables() {
		require.Contains(t, help.String(), v.Name)
		require.NotEmpty(t, v.Help, v.Name)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add("RPC_URLS", "https://a/b,c")
	f.Add("DATABASE_URL", "postgresql+asyncpg://u:p@h/d?ssl=true")
	f.Add("FACTORY_ABI", `{"abi":[]}`)
	f.Add("CLOUDSQL_INSTANCE", "p:r:i")
	f.Fuzz(func(t *testing.T, name, value string) {
		if strings.HasSuffix(name, "_ABI") && !strings.HasPrefix(strings.TrimSpace(value), "[") && !strings.HasPrefix(strings.TrimSpace(value), "{") {
			return // a path
		}
		c, err := Load(with(name, value))
		if err != nil {
			var problems Problems
			require.ErrorAs(t, err, &problems)
			return
		}
		require.NoError(t, c.Partition.Validate())
	})
}
