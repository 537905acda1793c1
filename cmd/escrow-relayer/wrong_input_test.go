package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/config"
)

// Secrets that are in the environment of every wrong input, and may be in no output.
const (
	secretKey      = "k3yk3yk3yk3y"
	secretPassword = "s3cretpassw0rd"
)

// rightInput is an environment that loads.
func rightInput() map[string]string {
	return map[string]string{
		"CHAIN_ID": "11155111", "RPC_URL": "https://sepolia.example.com/v2/" + secretKey,
		"FACTORY_ADDRESS":   "0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914",
		"PUBSUB_PROJECT_ID": "fusion-prime", "PUBSUB_TOPIC_ID": "settlement.events.v1", "START_BLOCK": "9508300",
		"INSTANCE_ID":  "relayer-0",
		"DATABASE_URL": "postgresql://u:" + secretPassword + "@db/relayer",
	}
}

// wrongValues are values that one variable cannot have, and what is said of them.
var wrongValues = []struct {
	variable string
	remedy   string // part of what is said
	values   []string
}{
	{"CHAIN_ID", "", []string{"", "0", "-1", "x", "1.5", "0x1", "1099511627776", "99999999999999999999", "sepolia"}},
	{"RPC_URL", "is not an http, https, ws or wss URL", []string{
		"node", "localhost:8545", "ftp://node", "http://", "://x", "postgres://h/d", "file:///tmp/geth.ipc",
		"/tmp/geth.ipc", "http//node",
	}},
	{"RPC_URL", "name a JSON-RPC endpoint", []string{""}},
	{"RPC_URLS", "is not an http, https, ws or wss URL",
		[]string{"node", "https://a.example,node", "https://a.example;https://b.example", "[\"https://a\"]"}},
	{"FACTORY_ADDRESS", "", []string{
		"", "0x", "0x311E63", "311E63dfcEfe7f2c202715ef0DF01CDA82f5891", "0x311E63dfcEfe7f2c202715ef0DF01CDA82f58915",
		"0x311e63dfcEfe7f2c202715ef0DF01CDA82f58914", "0x0000000000000000000000000000000000000000", "vitalik.eth",
		"0x311E63dfcEfe7f2c202715ef0DF01CDA82f5891g", "0x311E63dfcEfe7f2c202715ef0DF01CDA82f589140",
	}},
	{"START_BLOCK", "", []string{"-1", "latest", "0x10", "1e6", "1,000", "1732231200000000"}},
	{"PUBSUB_PROJECT_ID", "must be the id of a Google Cloud project",
		[]string{"", "p", "Fusion", "fusion_prime", "projects/fusion", "fusion prime", "-fusion", "123456"}},
	{"PUBSUB_TOPIC_ID", "", []string{"", "t", "goog-events", "1events", "events topic", "projects/p/topics/events", "ev",
		strings.Repeat("e", 256), "événements"}},
	{"OTHER_EVENTS_TOPIC_ID", "", []string{"t", "goog", "a/b", "settlement.events.v1"}},
	{"RETRACTIONS_TOPIC_ID", "", []string{"t", "goog", "a/b", "settlement.events.v1", "re tractions"}},
	{"EVENT_NAMES", "is not an event of the ABI", []string{"Deposit", "approved", "Approved,Deposit", "*"}},
	{"EVENT_NAMES", "", []string{"ArbiterChanged"}}, // without OTHER_EVENTS_TOPIC_ID
	{"ORDERING_KEY", "must be one of escrow, slot", []string{"none", "ESCROW", "block"}},
	{"CLOUDEVENTS", "must be true or false", []string{"yes", "binary", "2"}},
	{"PUBSUB_EMULATOR_HOST", "must be host:port", []string{"localhost", "http://localhost:8085", "localhost:port",
		"localhost:0", "localhost:70000"}},
	{"PUBSUB_ENDPOINT", "must be host:port", []string{"us-central1", "https://us-central1-pubsub.googleapis.com",
		"us-central1-pubsub.googleapis.com:"}},
	{"FLEET", "must be 1 to 63 letters", []string{"a b", strings.Repeat("x", 64), "a/b", "blue;", "blaü"}},
	{"INSTANCE_ID", "must be 1 to 48 letters", []string{"a b", strings.Repeat("x", 49), "a/b", "relayer;0", "réla"}},
	{"PARTITION_NUMBER", "", []string{"1", "-1", "first", "0.5", "Auto"}},
	{"TOTAL_PARTITIONS", "", []string{"0", "-3", "2521", "three", "3.0"}},
	{"PARTITION_STRATEGY", "must be one of modulo, consistent", []string{"random", "MODULO", "hash"}},
	{"DATABASE_URL", "", []string{
		"", "mysql://u:" + secretPassword + "@h/d", "host=x port=abc password=" + secretPassword, "postgres://u:" +
			secretPassword + "@h:port/d",
		"postgres://u:" + secretPassword + "@h/d?sslmode=sometimes", "postgres://u:" + secretPassword +
			"@h/d?pool_max_conns=3",
		"postgres://u:" + secretPassword + "@h/d?sslrootcert=/nowhere.pem&sslmode=verify-full", "jdbc:postgresql://h/d",
	}},
	{"DATABASE_URL", "is in quotes", []string{"'postgres://u:" + secretPassword + "@h/d'", "\"postgres://u:" +
		secretPassword + "@h/d\""}},
	{"DATABASE_URL", "write @ : / ? # % & as %40", []string{"postgres://u:a@" + secretPassword + "@h/d",
		"postgres://u:" + secretPassword + "@1#2@h/d", "postgres://u:" + secretPassword + "/1@h/d", "postgres://u:" +
			secretPassword + "%z@h/d"}},
	{"DATABASE_URL", "in quotes where a shell reads it", []string{""}},
	{"SESSION_DATABASE_URL", "", []string{"mysql://u:" + secretPassword + "@h/d", "postgres://u:" + secretPassword +
		"@h:port/d"}},
	{"CLOUDSQL_INSTANCE", "must be an instance connection name", []string{"db", "p:r", "projects/p/instances/i"}},
	{"CLOUDSQL_IAM_AUTH", "", []string{"yes", "2", "true"}}, // without CLOUDSQL_INSTANCE
	{"DB_MAX_CONNS", "", []string{"0", "-1", "3", "1001", "many", "99999999999"}},
	{"MIGRATE_ON_START", "must be true or false", []string{"yes", "on please", "2"}},
	{"DB_OUTAGE_LIMIT", "", []string{"5", "0s", "-5m", "5 minutes", "48h"}},
	{"FINALITY", "must be one of", []string{"soon", "Safe", "12"}},
	{"FINALITY", "", []string{"latest"}}, // without RETRACTIONS_TOPIC_ID
	{"CONFIRMATIONS", "", []string{"-1", "x", "1.5", "100001", "18446744073709551615", "0"}},
	{"FINALITY_LIMIT", "", []string{"5m", "0s", "-1h", "60", "1000h"}},
	{"POLL_INTERVAL", "", []string{"1h", "0s", "-1s", "1", "soon", "100"}},
	{"AGREEMENT", "must be one of available, strict", []string{"none", "Strict", "2"}},
	{"PROOF", "must be one of near, all, none", []string{"whole", "All", "2"}},
	{"RPC_TIMEOUT", "", []string{"0s", "1ms", "1h", "10", "-1s"}},
	{"RPC_MAX_RPS", "", []string{"-1", "NaN", "Inf", "ten"}},
	{"RPC_MAX_RANGE", "", []string{"0", "-1", "10000001", "all"}},
	{"RPC_MAX_ADDRESSES", "", []string{"0", "-1", "100001", "x"}},
	{"LOG_FILTER", "must be one of auto, topics, addresses", []string{"topic", "none"}},
	{"FACTORY_ABI", "", []string{"[{]", "/nowhere.json", "[]", "{}"}},
	{"ESCROW_ABI", "", []string{"[{]", "/nowhere.json", "{\"abi\":3}"}},
	{"EVENT_ALIASES", "", []string{"Approved", "Approved=Paid", "Aproved=EscrowReleased", "Approved=EscrowDeployed",
		"Approved=EscrowReleased,Approved=EscrowRefunded"}},
	{"VERIFY_INTERVAL", "", []string{"0s", "48h", "often"}},
	{"RETENTION", "", []string{"1s", "59m", "-24h", "30d", "2000000h"}},
	{"HEARTBEAT_INTERVAL", "", []string{"5m", "0s", "1ms", "30"}},
	{"LEADER_STALE_AFTER", "", []string{"1s", "2h", "x"}},
	{"ADOPT_AFTER", "", []string{"-1s", "2h", "soon"}},
	{"SESSION_PROBE_INTERVAL", "", []string{"10ms", "1h", "x"}},
	{"INSTANCE_LOCK_WAIT", "", []string{"-1s", "48h", "x"}},
	{"RESIGN_AFTER", "", []string{"0s", "48h", "x"}},
	{"STOP_TIMEOUT", "", []string{"0s", "500ms", "2h"}},
	{"PORT", "", []string{"-1", "70000", "http", "8080/tcp"}},
	{"HTTP_HOST", "", []string{"127.0.0.1:8080", "http://127.0.0.1", "a b"}},
	{"EXPLORER_URL", "must be an http or https URL", []string{"javascript:alert(1)", "sepolia.etherscan.io", "ftp://x",
		"https://", "https://u:" + secretPassword + "@x", "https://x?key=" + secretKey, "https://x#a"}},
	{"LOG_LEVEL", "must be one of debug, info, warn, error", []string{"verbose", "5"}},
	{"LOG_FORMAT", "must be one of auto, json, text", []string{"xml", "pretty"}},
	{"ALLOW_LATE_START", "must be true or false", []string{"yes", "9508300"}},
	{"ALLOW_MIXED_SETTINGS", "must be true or false", []string{"topics"}},
	{"SENDERS_FILE", "is needed with SENDERS_FILE", []string{"/etc/senders.json"}}, // without COMMANDS_POLICY_FILE
	{"COMMANDS_POLICY_FILE", "has no effect without", []string{"/etc/policy.json"}},
	{"COMMANDS_SUBSCRIPTION_ID", "must be an id alone", []string{"s", "goog-commands",
		"projects/p/subscriptions/commands"}},
	{"COMMANDS_HTTP", "", []string{"yes", "8081", "true"}}, // without COMMANDS_POLICY_FILE
	{"COMMANDS_PORT", "", []string{"-1", "70000", "http", "8080", "9000"}},
	{"REPLIES_TOPIC_ID", "", []string{"t", "a/b", "goog", "settlement.events.v1"}},
	{"KEEPER_SENDER", "must be an address", []string{"arbiter", "0x12", "vitalik.eth"}},
	{"KEEPER_MIN_AMOUNT", "must be wei", []string{"0", "-1", "0.01", "1 ether"}},
	{"KEEPER_MAX_FEE", "must be wei", []string{"0", "0.002 ether", "1e15", "0x10"}},
	{"KEEPER_DAY_FEES", "must be wei", []string{"0", "-5", strings.Repeat("9", 79)}},
	{"KEEPER_PAYERS", "must be addresses", []string{"somebody", "0x12", "0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914,x"}},
	{"OTEL_TRACES_EXPORTER", "must be one of", []string{"jaeger"}},
	{"OTEL_EXPORTER_OTLP_ENDPOINT", "must be a URL", []string{"collector:4317"}},
	{"OTEL_EXPORTER_OTLP_HEADERS", "must be name=value", []string{secretKey}},
}

// otherVariable is what is named where the remedy is another variable.
var otherVariable = map[string]string{
	"EVENT_NAMES=ArbiterChanged": "OTHER_EVENTS_TOPIC_ID", "FINALITY=latest": "RETRACTIONS_TOPIC_ID",
	"CONFIRMATIONS=0":        "RETRACTIONS_TOPIC_ID",
	"CLOUDSQL_IAM_AUTH=true": "CLOUDSQL_INSTANCE",
	"COMMANDS_HTTP=true":     "COMMANDS_POLICY_FILE", "SENDERS_FILE=/etc/senders.json": "COMMANDS_POLICY_FILE",
}

// Each wrong value is refused with exit code 2, its variable, a remedy, and no secret.
func TestWrongValues(t *testing.T) {
	n := 0
	tried := map[string]bool{"HTTP_TOKEN_FILE": true, "CONFIG_FILE": true} // their contents are: TestToken, TestWrongFiles
	for _, w := range wrongValues {
		tried[w.variable] = true
		for _, value := range w.values {
			n++
			t.Run(w.variable+"="+value[:min(len(value), 30)], func(t *testing.T) {
				env := rightInput()
				env[w.variable] = value
				_, err := config.Load(env)
				require.Error(t, err)
				require.Equal(t, exitRefused, exitCode(err))

				named := w.variable
				if other := otherVariable[w.variable+"="+value]; other != "" {
					named = other
				}

				var problems config.Problems
				require.ErrorAs(t, err, &problems)
				i := 0
				for i < len(problems)-1 && problems[i].Variable != named {
					i++
				}

				require.Equal(t, named, problems[i].Variable, err)
				require.NotEmpty(t, problems[i].Remedy)
				require.Contains(t, problems[i].Remedy, w.remedy)
				noSecret(t, err.Error())
			})
		}
	}

	require.GreaterOrEqual(t, n, 170, "the list of wrong values")
	for _, v := range config.Variables() {
		require.True(t, tried[v.Name], "no wrong value of %s is tried", v.Name)
	}
}

func noSecret(t *testing.T, text string) {
	t.Helper()
	for _, secret := range []string{secretKey, secretPassword} {
		require.NotContains(t, text, secret)
	}
}

// Each wrong call is refused with exit code 2, says what is wrong, and shows no secret. They run in
// this process: nothing is asked.
func TestWrongCalls(t *testing.T) {
	for name, value := range rightInput() {
		t.Setenv(name, value)
	}

	for _, c := range []struct{ args, says string }{
		{"", "needs a command"},
		{"runn", "did you mean run"},
		{"nonsense", "no command"},
		{"--nonsense", "unknown flag: --nonsense"},
		{"run now", "takes no arguments"},
		{"run --port 1", "unknown flag: --port"},
		{"version now", "takes no arguments"},
		{"migrate up", "takes no arguments"},
		{"migrate --dry-run", "unknown flag"},
		{"status r0", "takes no arguments"},
		{"status --format json", "unknown flag"},
		{"doctor rpc0", "takes no arguments"},
		{"plan", "needs a command"},
		{"plan mvoe", "did you mean move"},
		{"plan move", "--from and --to"},
		{"plan move --from 0 --to 3", "partitions"},
		{"plan move --from 3 --to 2521", "partitions"},
		{"plan move --from 1 --to 2 --strategy random", "strategy"},
		{"plan move --from one --to 2", "--from"},
		{"plan wait --total -1", "--total -1: must be"},
		{"plan wait --timeout later", "--timeout"},
		{"plan wait --since now --instance r0", "--since"},
		{"plan wait --since 2026-01-02T03:04:05Z", "--since needs --instance"},
		{"replay", "say what to replay"},
		{"replay --from 0", "DATABASE_URL"},
		{"replay --from 9 --to 3", "--to 3 is below --from 9"},
		{"replay --from 9 --to 0", "--to 0 is below --from 9"},
		{"replay --from 0 --to 0", "--to 0: block 0 has no event"},
		{"replay --escrow 0x12", "is not an address"},
		{"replay --from x", "--from"},
		{"replay --from -5", "--from -5: a block is 0 or above"},
		{"replay --from 3 --to -5", "--to -5: a block is 0 or above"},
		{"audit --from -5", "--from -5: a block is 0 or above"},
		{"audit --from 1 --to -5", "--to -5: a block is 0 or above"},
		{"audit --from x", "--from"},
		{"audit 1 2", "takes no arguments"},
	} {
		t.Run(fmt.Sprintf("%q", c.args), func(t *testing.T) {
			var out bytes.Buffer
			cmd := root()
			cmd.SetArgs(strings.Fields(c.args))
			cmd.SetOut(&out)
			cmd.SetErr(&out)
			err := cmd.ExecuteContext(t.Context())
			require.Error(t, err)
			require.Equal(t, exitRefused, exitCode(err), err)
			require.Contains(t, err.Error(), c.says)
			noSecret(t, err.Error()+out.String())
		})
	}
}

// Of each kind of wrong input one as people meet it: a process, its exit code and what it writes.
func TestWrongInputsAsProcesses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		variable, value, args, says string
	}{
		{"CHAIN_ID", "x", "run", "CHAIN_ID=x: must be a whole number"},
		{"POLL_INTERVAL", "1h", "run", "POLL_INTERVAL=1h: must be 1ms to 1m0s"},
		{"DATABASE_URL", "mysql://u:" + secretPassword + "@h/d", "status", "DATABASE_URL=mysql://h: is not a Postgres URL"},
		{"DATABASE_URL", "postgres://u:" + secretPassword + "@127.0.0.1:1/d", "status",
			"nothing accepts connections at 127.0.0.1:1"},
		{"DATABASE_URL", "postgres://u:" + secretPassword + "@127.0.0.1:1/d", "migrate", "nothing accepts connections"},
		{"DATABASE_URL", "postgres://u:" + secretPassword + "@127.0.0.1:1/d", "migrate --check",
			"nothing accepts connections"},
		{"DATABASE_URL", "postgres://u:" + secretPassword + "@127.0.0.1:1/d", "audit", "nothing accepts connections"},
		{"DATABASE_URL", "postgres://u:" + secretPassword + "@127.0.0.1:1/d", "replay --from 1",
			"nothing accepts connections"},
		{"INSTANCE_ID", "a b", "stauts", "did you mean status"},
	} {
		env := rightInput()
		env[c.variable] = c.value
		var list []string
		for name, value := range env {
			list = append(list, name+"="+value)
		}

		code, out := call(t, list, strings.Fields(c.args)...)
		require.Equal(t, exitRefused, code, out)
		require.Contains(t, out, c.says)
		noSecret(t, out)
	}
}
