package config

import (
	"bytes"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/registry"
)

var update = flag.Bool("update", false, "write config.schema.json")

func good() map[string]string {
	return map[string]string{
		"CHAIN_ID": "11155111", "RPC_URL": "https://sepolia.example.com/v2/k3yk3yk3y",
		"FACTORY_ADDRESS":   "0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914",
		"PUBSUB_PROJECT_ID": "fusion-prime", "PUBSUB_TOPIC_ID": "settlement.events.v1", "START_BLOCK": "9508300",
		"INSTANCE_ID":      "relayer-0",
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
	for line := range strings.SplitSeq(string(text), "\n") {
		if name, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			environ[name] = value
		}
	}

	c, err := Load(environ)
	require.NoError(t, err)
	require.Len(t, c.RPCURLs, 2)

	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	for _, topic := range []string{c.Topic, c.RetractionsTopic} {
		require.Contains(t, string(readme), "topics create "+topic+"\n",
			"the README creates the topics that the example names")
	}
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
		"wrong checksum": {with("FACTORY_ADDRESS", "0x311E63dfcEfe7f2c202715ef0DF01CDA82f58915"),
			"FACTORY_ADDRESS"},
		"wrong case": {with("FACTORY_ADDRESS", "0x311e63dfcEfe7f2c202715ef0DF01CDA82f58914"),
			"FACTORY_ADDRESS"},
		"zero address": {with("FACTORY_ADDRESS", "0x0000000000000000000000000000000000000000"),
			"FACTORY_ADDRESS"},
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
		"duration in another unit":   {with("POLL_INTERVAL", "1h"), "POLL_INTERVAL"},
		"retention of a second":      {with("RETENTION", "1s"), "RETENTION"},
		"retention below zero":       {with("RETENTION", "-24h"), "RETENTION"},
		"emulator with a scheme":     {with("PUBSUB_EMULATOR_HOST", "http://localhost:8085"), "PUBSUB_EMULATOR_HOST"},
		"endpoint with a scheme":     {with("PUBSUB_ENDPOINT", "https://a-pubsub.googleapis.com:443"), "PUBSUB_ENDPOINT"},
		"emulator without a port":    {with("PUBSUB_EMULATOR_HOST", "localhost"), "PUBSUB_EMULATOR_HOST"},
		"a time for a block":         {with("START_BLOCK", "1732231200000000"), "START_BLOCK"},
		"zero duration":              {with("RPC_TIMEOUT", "0s"), "RPC_TIMEOUT"},
		"latest without retractions": {with("FINALITY", "latest"), "RETRACTIONS_TOPIC_ID"},
		"no confirmations":           {with("CONFIRMATIONS", "0"), "RETRACTIONS_TOPIC_ID"},
		"absurd confirmations":       {with("CONFIRMATIONS", "18446744073709551615"), "CONFIRMATIONS"},
		"negative rate":              {with("RPC_MAX_RPS", "-1"), "RPC_MAX_RPS"},
		"rate that is no number":     {with("RPC_MAX_RPS", "NaN"), "RPC_MAX_RPS"},
		"endless rate":               {with("RPC_MAX_RPS", "Inf"), "RPC_MAX_RPS"},
		"rare heartbeat":             {with("HEARTBEAT_INTERVAL", "5m"), "HEARTBEAT_INTERVAL"},
		"rare probes":                {with("SESSION_PROBE_INTERVAL", "720h"), "SESSION_PROBE_INTERVAL"},
		"no time to stop":            {with("STOP_TIMEOUT", "0s"), "STOP_TIMEOUT"},
		"@ in a password":            {with("DATABASE_URL", "postgres://u:s3c@ret@h/d"), "DATABASE_URL"},
		"/ in a password":            {with("DATABASE_URL", "postgres://u:5432/s3cret@h/d"), "DATABASE_URL"},
		"@ and / in a password":      {with("DATABASE_URL", "postgres://u:s3@cr/et@h/d"), "DATABASE_URL"},
		"# in a password":            {with("SESSION_DATABASE_URL", "postgres://u:5432#s3cret@h/d"), "SESSION_DATABASE_URL"},
		"? in a password":            {with("DATABASE_URL", "postgres://u:5432?s3cret@h/d"), "DATABASE_URL"},
		"/ in a name":                {with("DATABASE_URL", "postgres://u:s3cret@h/d/e"), "DATABASE_URL"},
		"/ in a node's password":     {with("RPC_URL", "https://u:80/s3cret@h/k"), "RPC_URL"},
		"# in a key":                 {with("RPC_URLS", "https://h/k#ey"), "RPC_URLS"},
		"strict with one endpoint":   {with("AGREEMENT", "strict"), "AGREEMENT"},
		"strict with one twice": {with("AGREEMENT", "strict", "RPC_URLS", "https://a.example,https://a.example",
			"RPC_URL", ""), "AGREEMENT"},
		"size of the pool": {with("DATABASE_URL", "postgres://u:s3cret@h/d?pool_max_conns=3"), "DATABASE_URL"},
		"service account in full": {with("CLOUDSQL_INSTANCE", "p:r:i", "CLOUDSQL_IAM_AUTH", "true", "DATABASE_URL",
			"postgres://r%40p.iam.gserviceaccount.com@h/d"), "DATABASE_URL"},
		"full name of a topic": {with("PUBSUB_TOPIC_ID", "projects/p/topics/events"), "PUBSUB_TOPIC_ID"},
		"other events to the topic": {with("EVENT_NAMES", "ArbiterChanged", "OTHER_EVENTS_TOPIC_ID",
			"settlement.events.v1"), "OTHER_EVENTS_TOPIC_ID"},
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

			require.Len(t, problems, 1, "nothing else is wrong: %s", err)
			require.Contains(t, variables, c.variable, err)
			require.NotContains(t, err.Error(), "s3cret")
			require.NotContains(t, err.Error(), "k3yk3yk3y")
		})
	}
}

func TestAllProblemsAtOnceAndNoSecretAmongThem(t *testing.T) {
	_, err := Load(map[string]string{
		"CHAIN_ID": "x", "RPC_URLS": "ftp://h/v2/k3yk3yk3y12,wss://user:pa55word@h2/?token=t0kent0ken",
		"DATABASE_URL": "mysql://u:s3cret@h/d", "TOTAL_PARTITIONS": "0",
		"INSTANCE_ID": "relayer", "ADOPT_AFTER": "soon",
	})
	var problems Problems
	require.ErrorAs(t, err, &problems)
	require.GreaterOrEqual(t, len(problems), 7, err)
	for _, secret := range []string{"k3yk3yk3y12", "pa55word", "t0kent0ken", "s3cret"} {
		require.NotContains(t, err.Error(), secret)
	}

	require.NotContains(t, err.Error(), "environment=", "every problem names its variable: %s", err)
}

func TestValuesAsTheyAreShown(t *testing.T) {
	for name, c := range map[string]struct{ variable, value, want string }{
		"unset":       {"DATABASE_URL", "", "DATABASE_URL=(not set)"},
		"as it is":    {"ADOPT_AFTER", "soon", "ADOPT_AFTER=soon: must be a duration"},
		"line breaks": {"INSTANCE_ID", "a\nb=c: fine", `INSTANCE_ID="a\nb=c: fine"`},
		"long":        {"INSTANCE_ID", strings.Repeat("ü", 80), "INSTANCE_ID=" + strings.Repeat("ü", 50) + "…:"},
		"hosts of secrets": {"RPC_URLS", "ftp://u:pa55word@node:1/k3yk3yk3y,wss://b.example.com",
			"RPC_URLS=ftp://node:1,wss://***.example.com:"},
		"comma in a password":     {"RPC_URLS", "https://u:12345,pa55word@node/", "RPC_URLS=***:"},
		"comma in a DSN":          {"DATABASE_URL", "mysql://u:12345,pa55word@h/d", "DATABASE_URL=mysql://h:"},
		"a quotation of a secret": {"DATABASE_URL", "host=x port=abc password=pa55word", "DATABASE_URL=***:"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load(with(c.variable, c.value))
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "pa55word")
			require.NotContains(t, err.Error(), "12345")
		})
	}
}

func TestDatabaseURLs(t *testing.T) {
	const asyncpg, plain = "postgresql+asyncpg://u:s3cret@", "postgresql://u:s3cret@"
	for raw, want := range map[string]string{
		"postgres://u:s3cret@h/d?sslmode=verify-full":              "",
		"host=h user=u password=s3cret dbname=d":                   "",
		asyncpg + "h/d":                                            plain + "h/d",
		asyncpg + "h/d?ssl=verify-full":                            plain + "h/d?sslmode=verify-full",
		asyncpg + "h/d?ssl=True":                                   plain + "h/d?sslmode=require",
		asyncpg + "h/d?ssl=false&application_name=x":               plain + "h/d?application_name=x&sslmode=disable",
		asyncpg + "/d?host=/cloudsql/p:r:i":                        plain + "/d?host=%2Fcloudsql%2Fp%3Ar%3Ai",
		asyncpg + "h/d?prepared_statement_cache_size=0&timeout=10": plain + "h/d",
		"postgresql+psycopg2://u:s3cret@h/d":                       plain + "h/d",
		"  postgres://u:s3cret@h/d\n":                              "postgres://u:s3cret@h/d",
	} {
		c, err := Load(with("DATABASE_URL", raw))
		require.NoError(t, err, raw)
		if want == "" {
			want = raw
		}

		require.Equal(t, want, c.DatabaseURL)
		require.NotContains(t, c.Secrets().Mask("it is "+raw), "s3cret")
	}
}

func TestOpenTelemetry(t *testing.T) {
	c, err := Load(with("OTEL_TRACES_EXPORTER", "otlp", "OTEL_EXPORTER_OTLP_HEADERS",
		"api-key=s3cret%2Fk3y, authorization=Bearer%20t0kent0ken,tenant=a",
		"OTEL_EXPORTER_OTLP_ENDPOINT", "https://u:passw0rd@otlp.example.com/k3yk3yk3y", "OTEL_TRACES_SAMPLER",
		"parentbased_traceidratio"))
	require.NoError(t, err)
	shown := c.Secrets().Mask("s3cret/k3y s3cret%2Fk3y t0kent0ken passw0rd k3yk3yk3y a tenant")
	for _, secret := range []string{"s3cret", "t0ken", "passw0rd", "k3yk3yk3y"} {
		require.NotContains(t, shown, secret)
	}

	require.Contains(t, shown, " a tenant")

	_, err = Load(with("OTEL_TRACES_EXPORTER", "jaeger", "OTEL_EXPORTER_OTLP_HEADERS", "t0kent0ken",
		"OTEL_EXPORTER_OTLP_ENDPOINT", "k3yk3yk3y:4317",
		"OTEL_TRACES_SAMPLER", "some", "OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"))
	var problems Problems
	require.ErrorAs(t, err, &problems)
	require.Len(t, problems, 5, err.Error())
	require.NotContains(t, err.Error(), "t0ken")
	require.NotContains(t, err.Error(), "k3yk3yk3y")
}

func TestEndpointsOfBothVariables(t *testing.T) {
	c, err := Load(with("RPC_URL", "https://a.example/1", "RPC_URLS",
		" wss://b.example/2 ,, https://a.example/1,http://c.example"))
	require.NoError(t, err)
	require.Equal(t, []string{"https://a.example/1", "wss://b.example/2", "http://c.example"}, c.RPCURLs)
}

func TestAddressesInOneCaseAreNotChecked(t *testing.T) {
	for _, address := range []string{"0x311e63dfcefe7f2c202715ef0df01cda82f58914",
		"0x311E63DFCEFE7F2C202715EF0DF01CDA82F58914"} {
		c, err := Load(with("FACTORY_ADDRESS", address))
		require.NoError(t, err)
		require.Equal(t, "0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914", c.Factories[0].Address.Hex())
	}
}

func TestLoadDatabaseAsksForLittle(t *testing.T) {
	c, err := LoadDatabase(map[string]string{"CHAIN_ID": "1", "DATABASE_URL": "postgres://u:s3cret@h/d",
		"INSTANCE_ID": "cli"})
	require.NoError(t, err)
	require.Equal(t, "postgres://u:s3cret@h/d", c.SessionDatabaseURL)
	_, err = LoadDatabase(nil)
	var problems Problems
	require.ErrorAs(t, err, &problems)
	require.Len(t, problems, 2, err)
	require.Equal(t, "CHAIN_ID", problems[0].Variable)
	require.Equal(t, "DATABASE_URL", problems[1].Variable)
}

func TestAuto(t *testing.T) {
	c, err := Load(with("PARTITION_NUMBER", "auto"))
	require.NoError(t, err)
	require.True(t, c.Auto)
}

// What loads and may not do what it should is warned of, and nothing else is.
func TestWarnings(t *testing.T) {
	for name, c := range map[string]struct {
		environ  map[string]string
		variable string
		says     string
	}{
		"a letter is missing":       {with("CONFIRMATION", "3"), "CONFIRMATION", "CONFIRMATIONS"},
		"letters are swapped":       {with("FACTORY_ADRDESS", "0x"), "FACTORY_ADRDESS", "FACTORY_ADDRESS"},
		"cut short":                 {with("FACTORY_ADDR", "0x"), "FACTORY_ADDR", "FACTORY_ADDRESS"},
		"without its underscore":    {with("STARTBLOCK", "3"), "STARTBLOCK", "START_BLOCK"},
		"in lower case":             {with("database_url", "x"), "database_url", "DATABASE_URL"},
		"finality twice":            {with("FINALITY", "safe", "CONFIRMATIONS", "3"), "CONFIRMATIONS", "FINALITY=safe"},
		"topic without events":      {with("OTHER_EVENTS_TOPIC_ID", "other"), "OTHER_EVENTS_TOPIC_ID", "EVENT_NAMES"},
		"events published anyway":   {with("EVENT_NAMES", "Approved"), "EVENT_NAMES", "anyway"},
		"no first block":            {with("START_BLOCK", ""), "START_BLOCK", "block 0"},
		"a timeout above the other": {with("RPC_TIMEOUT", "20s"), "RPC_TIMEOUT", "RESIGN_AFTER=15s"},
		"a trickle":                 {with("RPC_MAX_RPS", "0.1"), "RPC_MAX_RPS", "keep up"},
	} {
		t.Run(name, func(t *testing.T) {
			loaded, err := Load(c.environ)
			require.NoError(t, err)
			require.Len(t, loaded.Warnings, 1, loaded.Warnings)
			require.Equal(t, c.variable, loaded.Warnings[0].Variable)
			require.Contains(t, loaded.Warnings[0].Remedy, c.says)
		})
	}

	platform := with("HOME", "/", "PATH", "/bin", "HOSTNAME", "h", "K_SERVICE", "s", "K_REVISION", "r",
		"KUBERNETES_SERVICE_HOST", "h", "TERM", "xterm",
		"ESCROW_RELAYER_SERVICE_PORT", "1", "GOOGLE_APPLICATION_CREDENTIALS", "/f", "LOGNAME", "me", "INVOCATION_ID", "x",
		"CONTAINER", "docker",
		"DATABASE_URL", "postgres://u:s3cret@h/d")
	loaded, err := Load(platform)
	require.NoError(t, err)
	require.Empty(t, loaded.Warnings)
}

// A misspelt name of a secret does not show the secret.
func TestMisspeltSecret(t *testing.T) {
	loaded, err := Load(with("DATABASE_URI", "postgres://u:pa55word@h/d"))
	require.NoError(t, err)
	require.Len(t, loaded.Warnings, 1)
	require.NotContains(t, loaded.Warnings[0].Value, "pa55word")
}

// What the documentation calls required is what Load asks for: without it there is an error, or,
// where something stands in for it, a warning or none.
func TestRequiredVariables(t *testing.T) {
	for _, v := range Variables() {
		env := good()
		if v.Name == "RPC_URLS" {
			env["RPC_URLS"], env["RPC_URL"] = env["RPC_URL"], ""
		}

		env[v.Name] = ""
		_, err := Load(env)
		switch v.Needed {
		case "yes", "or RPC_URL", "or RPC_URLS":
			require.ErrorContains(t, err, strings.TrimSuffix(v.Name, "S"), v.Name)
		default:
			require.NoError(t, err, v.Name)
		}
	}

	env := good()
	env["RPC_URLS"], env["RPC_URL"] = env["RPC_URL"], ""
	_, err := Load(env)
	require.NoError(t, err)
}

func TestEveryVariableIsExplained(t *testing.T) {
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
		if strings.HasSuffix(name, "_ABI") && !strings.HasPrefix(strings.TrimSpace(value), "[") &&
			!strings.HasPrefix(strings.TrimSpace(value), "{") {
			return // a path
		}

		c, err := Load(with(name, value))
		if err != nil {
			var problems Problems
			require.ErrorAs(t, err, &problems)
			for _, secret := range []string{"s3cret", "k3yk3yk3y"} {
				require.True(t, !strings.Contains(err.Error(), secret) || strings.Contains(name+value, secret), err)
			}

			return
		}

		require.NoError(t, c.Partition.Validate())
	})
}

// FACTORY_ADDRESS lists factories, each with its first block; START_BLOCK is that of those without one.
func TestFactories(t *testing.T) {
	const a, b = "0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914", "0x1F98431c8aD98523631AE4a59f267346ea31F984"
	env := good()
	env["FACTORY_ADDRESS"], env["START_BLOCK"] = a+"@200, "+b, "100"
	c, err := Load(env)
	require.NoError(t, err)
	require.Equal(t, []registry.Factory{{Address: common.HexToAddress(a), Start: 200},
		{Address: common.HexToAddress(b), Start: 100}}, c.Factories)
	require.EqualValues(t, 100, c.StartBlock)

	env["FACTORY_ADDRESS"], env["START_BLOCK"] = a+"@200,"+b+"@300", ""
	c, err = Load(env)
	require.NoError(t, err)
	require.EqualValues(t, 200, c.StartBlock, "slots begin there, not at block 0")
	for _, w := range c.Warnings {
		require.NotEqual(t, "START_BLOCK", w.Variable)
	}

	for list, want := range map[string]string{
		a + "," + a:         a + " twice",
		a + "@5," + a + "@": "start block",
		a + "," + b + "@x":  b + `@x: has the start block "x"`,
		a + ",0x12":         "0x12: must be an address",
		",":                 "must be an address",
	} {
		env["FACTORY_ADDRESS"] = list
		_, err := Load(env)
		require.ErrorContains(t, err, want, list)
	}
}
