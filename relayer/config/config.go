// Package config turns the environment, or a file that lists chains, into one Config per chain, or
// into the list of all its problems.
package config

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/redact"
)

// Config of one instance on one chain. The tags are the documentation that `run --help` shows. The tag scope says
// where a configuration file may set a variable: chain, only in the entry of a chain; process, only in the common part;
// none, in both.
type Config struct {
	File string `env:"CONFIG_FILE" scope:"environment" help:"YAML file that lists the chains to follow, as --config; default: the one chain that these variables describe"`

	ChainID        int64    `env:"CHAIN_ID" scope:"chain" needed:"yes" help:"chain id; every endpoint must answer eth_chainId with it"`
	RPCURLs        []string `env:"RPC_URLS" scope:"chain" needed:"or RPC_URL" secret:"yes" help:"RPC endpoints, comma-separated: http, https, ws, wss; the first is preferred among equals"`
	RPCURL         string   `env:"RPC_URL" scope:"chain" needed:"or RPC_URLS" secret:"yes" help:"one RPC endpoint; put before those of RPC_URLS"`
	FactoryAddress []string `env:"FACTORY_ADDRESS" scope:"chain" needed:"yes" help:"address of the EscrowFactory; several are comma-separated, each as ADDRESS@START_BLOCK; in mixed case its EIP-55 checksum is verified"`
	StartBlock     int64    `env:"START_BLOCK" scope:"chain" needed:"or 0" help:"first block to read of a factory that has no @START_BLOCK; at or below its deployment"`

	Project          string   `env:"PUBSUB_PROJECT_ID" needed:"yes" help:"Google Cloud project of the topics"`
	Topic            string   `env:"PUBSUB_TOPIC_ID" needed:"yes" help:"topic of EscrowDeployed, Approved, EscrowReleased, EscrowRefunded"`
	OtherTopic       string   `env:"OTHER_EVENTS_TOPIC_ID" help:"topic of the other events named by EVENT_NAMES"`
	RetractionsTopic string   `env:"RETRACTIONS_TOPIC_ID" help:"topic of retractions; without it deep reorganisations are only alerted on"`
	EventNames       []string `env:"EVENT_NAMES" help:"events of the ABI to publish besides those four, comma-separated; they go to OTHER_EVENTS_TOPIC_ID"`
	OrderingKey      string   `env:"ORDERING_KEY" envDefault:"escrow" help:"escrow, or slot: larger and cheaper batches, less isolation; order is not kept across a change: first let subscribers acknowledge all"`
	CloudEvents      bool     `env:"CLOUDEVENTS" envDefault:"false" help:"add the attributes of CloudEvents to messages, in the binary mode of its binding to Pub/Sub"`
	PubSubEndpoint   string   `env:"PUBSUB_ENDPOINT" help:"host:port of a locational endpoint, e.g. us-central1-pubsub.googleapis.com:443: Pub/Sub keeps the order of what is published in one region; default: the nearest region"`
	PubSubEmulator   string   `env:"PUBSUB_EMULATOR_HOST" scope:"process" help:"host:port of a Pub/Sub emulator; read by Google's client"`

	Fleet      string `env:"FLEET" envDefault:"escrow-relayer" help:"name of the fleet: the label fleet of its metrics, by which alerts tell fleets of one chain apart"`
	InstanceID string `env:"INSTANCE_ID" help:"name of this instance, unique in the fleet of its chain; default: the host's name"`
	Number     string `env:"PARTITION_NUMBER" envDefault:"0" help:"number of this instance's partition, 0 to TOTAL_PARTITIONS-1, or auto: a free one"`
	Total      int    `env:"TOTAL_PARTITIONS" envDefault:"1" help:"number of partitions, 1 to 2520"`
	Strategy   string `env:"PARTITION_STRATEGY" envDefault:"modulo" help:"modulo, or consistent: a resize moves few escrows"`

	DatabaseURL        string        `env:"DATABASE_URL" needed:"yes" secret:"yes" help:"Postgres 14+; postgres://, postgresql://, postgresql+asyncpg:// (its ssl= is understood), or keyword=value"`
	SessionDatabaseURL string        `env:"SESSION_DATABASE_URL" secret:"yes" help:"the same database without a transaction pool; default: DATABASE_URL"`
	CloudSQLInstance   string        `env:"CLOUDSQL_INSTANCE" help:"instance connection name project:region:instance: connect through Google's Cloud SQL connector"`
	CloudSQLIAM        bool          `env:"CLOUDSQL_IAM_AUTH" envDefault:"false" help:"log in to Cloud SQL by IAM; the user of DATABASE_URL is the service account without .gserviceaccount.com"`
	DBMaxConns         int32         `env:"DB_MAX_CONNS" envDefault:"8" help:"connections of the pool; the session is one more"`
	MigrateOnStart     bool          `env:"MIGRATE_ON_START" envDefault:"true" help:"apply missing migrations at start"`
	DBOutageLimit      time.Duration `env:"DB_OUTAGE_LIMIT" envDefault:"5m" help:"exit when the database has been out of reach for this long"`

	Finality       string        `env:"FINALITY" envDefault:"confirmations" help:"what may be processed: confirmations, safe, finalized, or latest (needs RETRACTIONS_TOPIC_ID)"`
	Confirmations  uint64        `env:"CONFIRMATIONS" envDefault:"12" help:"blocks on top of a block before it is processed; 0 is FINALITY=latest"`
	FinalityLimit  time.Duration `env:"FINALITY_LIMIT" envDefault:"30m" help:"how old the newest block that FINALITY allows may be, and a command, before it is a warning; a block twice as old is an alarm. Raise it for a chain that takes longer"`
	Agreement      string        `env:"AGREEMENT" envDefault:"available" help:"while only one of several RPC endpoints is in use: available (after a minute, blocks count on its word) or strict (nothing is published until two agree)"`
	Proof          string        `env:"PROOF" envDefault:"near" help:"which blocks are proved before they are stored: near (those that are not final, and those of the last hour that have events), all (every block that has events, also in a backfill) or none (nothing has to prove itself: for a chain that hashes otherwise than it did)"`
	PollInterval   time.Duration `env:"POLL_INTERVAL" envDefault:"1s" help:"longest pause between two looks for a block that is due, over http"`
	RPCTimeout     time.Duration `env:"RPC_TIMEOUT" envDefault:"10s" help:"deadline of one request"`
	RPCMaxRPS      float64       `env:"RPC_MAX_RPS" envDefault:"0" help:"requests per second per endpoint; 0: the relayer sets no limit"`
	RPCMaxRange    uint64        `env:"RPC_MAX_RANGE" envDefault:"10000" help:"most blocks that one request for logs asks for; if an endpoint accepts fewer, the relayer learns how many"`
	RPCMaxAddress  int           `env:"RPC_MAX_ADDRESSES" envDefault:"1000" help:"most addresses that one request for logs names; geth's default limit is 1000"`
	LogFilter      string        `env:"LOG_FILTER" envDefault:"auto" help:"how logs are asked for: by topics, by addresses, or auto: by topics, and by addresses where others emit much under the same topics or no endpoint answers otherwise"`
	FactoryABI     string        `env:"FACTORY_ABI" help:"ABI of the factory, JSON or a path; several paths, of its versions, are comma-separated; default: built in"`
	EscrowABI      string        `env:"ESCROW_ABI" help:"ABI of the escrows, as FACTORY_ABI; default: built in"`
	EventAliases   []string      `env:"EVENT_ALIASES" help:"for contracts of others: what their events mean, comma-separated, as Opened(deal)=EscrowDeployed, where the argument deal has the address, and Settled=EscrowReleased, Cancelled=EscrowRefunded"`
	VerifyInterval time.Duration `env:"VERIFY_INTERVAL" envDefault:"30s" help:"pause between two runs of the verifier, which reads final blocks a second time; up to ten times as long while there are fewer than 32 such blocks, or as many are not stored yet"`
	Retention      time.Duration `env:"RETENTION" envDefault:"0" help:"how long events of ended escrows and answered commands stay; 0: for ever"`

	HeartbeatInterval    time.Duration `env:"HEARTBEAT_INTERVAL" envDefault:"30s" help:"how often the instance updates its row; 2m at most, since one of 5m counts as stale"`
	LeaderStaleAfter     time.Duration `env:"LEADER_STALE_AFTER" envDefault:"60s" help:"a leader that has not updated its heartbeat in the table leadership for this long is ended, and another leads"`
	AdoptAfter           time.Duration `env:"ADOPT_AFTER" envDefault:"5s" help:"how long slots that nobody alive prefers wait before they are adopted"`
	SessionProbeInterval time.Duration `env:"SESSION_PROBE_INTERVAL" envDefault:"2s" help:"pause between two probes of the session; the database ends a session that is silent for three of these"`
	InstanceLockWait     time.Duration `env:"INSTANCE_LOCK_WAIT" envDefault:"60s" help:"how long to wait for a predecessor with the same INSTANCE_ID"`
	ResignAfter          time.Duration `env:"RESIGN_AFTER" envDefault:"15s" help:"a leader whose RPC endpoints have not let it go on for this long resigns"`
	StopTimeout          time.Duration `env:"STOP_TIMEOUT" scope:"process" envDefault:"9s" help:"how long a stop may take; after that the process ends at once, and the others take over. Cloud Run kills after 10s"`

	HTTPHost           string `env:"HTTP_HOST" scope:"process" help:"address that the HTTP servers listen on, e.g. 127.0.0.1; default: every address of the machine"`
	Port               int    `env:"PORT" scope:"process" envDefault:"8080" help:"port of the HTTP server; 0: any that is free"`
	AllowLateStart     bool   `env:"ALLOW_LATE_START" envDefault:"false" help:"accept a START_BLOCK above the deployment of the factory: events of escrows deployed before it are not published"`
	AllowMixedSettings bool   `env:"ALLOW_MIXED_SETTINGS" envDefault:"false" help:"join although live instances have other topics, events, ordering keys, finality, or ABIs of which neither has all events of the other: for a rolling change"`

	HTTPTokenFile string `env:"HTTP_TOKEN_FILE" scope:"process" help:"file with a token that everything on PORT but /healthz and /readyz asks for, as Bearer or as a password; read again when it changes"`
	ExplorerURL   string `env:"EXPLORER_URL" help:"block explorer to link to, e.g. https://sepolia.etherscan.io"`
	LogLevel      string `env:"LOG_LEVEL" scope:"process" envDefault:"info" help:"debug, info, warn, error"`
	LogFormat     string `env:"LOG_FORMAT" scope:"process" envDefault:"auto" help:"json (with Cloud Logging's severity), text, or auto: text on a terminal"`

	SendersFile          string `env:"SENDERS_FILE" help:"accounts that commands act through: keys and limits, as JSON; without it none is used"`
	PolicyFile           string `env:"COMMANDS_POLICY_FILE" help:"who may ask for which commands, as JSON; needed with COMMANDS_HTTP, COMMANDS_SUBSCRIPTION_ID, and SENDERS_FILE unless only a keeper uses it"`
	CommandsSubscription string `env:"COMMANDS_SUBSCRIPTION_ID" help:"subscription that commands are taken from"`
	CommandsHTTP         bool   `env:"COMMANDS_HTTP" envDefault:"false" help:"serve POST /commands and GET /commands/{id}"`
	CommandsPort         int    `env:"COMMANDS_PORT" envDefault:"0" help:"port of the HTTP server of commands; 0: PORT, beside everything else"`
	RepliesTopic         string `env:"REPLIES_TOPIC_ID" help:"topic of the answers to commands; needed with COMMANDS_HTTP, COMMANDS_SUBSCRIPTION_ID or SENDERS_FILE"`
	KeeperSender         string `env:"KEEPER_SENDER" help:"address in SENDERS_FILE that releases escrows which are approved and due; without it nobody does"`
	KeeperMinAmount      string `env:"KEEPER_MIN_AMOUNT" envDefault:"10000000000000000" help:"wei; smaller escrows are left alone"`
	KeeperMaxFee         string `env:"KEEPER_MAX_FEE" envDefault:"2000000000000000" help:"wei; the most that one release may cost"`
	KeeperDayFees        string `env:"KEEPER_DAY_FEES" envDefault:"20000000000000000" help:"wei; the most that all releases of one UTC day together may cost"`
	KeeperPayers         string `env:"KEEPER_PAYERS" help:"release only escrows of these payers, comma-separated; default: anybody's"`

	Factories []registry.Factory  `env:"-"` // of FACTORY_ADDRESS; StartBlock becomes the lowest of their first blocks
	Partition partition.Partition `env:"-"`
	Auto      bool                `env:"-"` // PARTITION_NUMBER=auto
	ABI       *contract.ABI       `env:"-"`
	Other     map[string]bool     `env:"-"` // events of EVENT_NAMES, for OtherTopic
	Keeper    *Keeper             `env:"-"` // nil: off

	Chains   int       `env:"-"` // of the configuration, which one process follows
	Warnings []Problem `env:"-"` // settings that load but may be mistakes

	otelSecrets []string  // in the variables of OpenTelemetry
	settings    []Setting // of all variables, in the order of the fields
}

// Publishes reports whether events of a name are published.
func (c *Config) Publishes(name string) bool {
	return slices.Contains(contract.DefaultEvents, name) || c.Other[name]
}

// Topics are where messages and answers go.
func (c *Config) Topics() pubsub.Topics {
	return pubsub.Topics{Default: c.Topic, Other: c.OtherTopic, Retractions: c.RetractionsTopic, Replies: c.RepliesTopic}
}

// Problem is one mistake: the variable, or its path in the configuration file as
// chains[2].rpc_urls; its value as it may be shown; and the mistake with its remedy.
type Problem struct {
	Variable, Value, Remedy string
}

// Problems is every mistake in an environment, by variable.
type Problems []Problem

func (p Problems) Error() string {
	var b strings.Builder
	if len(p) == 1 {
		b.WriteString("a configuration problem:")
	} else {
		fmt.Fprintf(&b, "%d configuration problems:", len(p))
	}

	for _, x := range p {
		fmt.Fprintf(&b, "\n  %s=%s: %s", x.Variable, x.Value, x.Remedy)
	}

	return b.String()
}

// Environ is the process's environment in the form that Load accepts.
func Environ() map[string]string { return env.ToMap(os.Environ()) }

// Load reads the environment. Its error is Problems: every mistake, without secrets.
func Load(environ map[string]string) (*Config, error) { return load(environ, (*loader).check) }

// LoadDatabase reads the variables of commands that only read the database: CHAIN_ID, INSTANCE_ID,
// DATABASE_URL and how to connect.
func LoadDatabase(environ map[string]string) (*Config, error) {
	return load(environ, func(l *loader) {
		l.chain()
		l.database()
		l.instance()
	})
}

// Endpoints are the RPC endpoints in the order of preference, without possible keys: scheme and
// host.
func (c *Config) Endpoints() []string {
	hosts := make([]string, len(c.RPCURLs))
	for i, raw := range c.RPCURLs {
		hosts[i] = redact.URL(raw)
	}

	return hosts
}

// Secrets are the texts that must stay out of every log, error, metric and page.
func (c *Config) Secrets() *redact.Secrets { return Secrets(c) }

// Secrets are those of several chains.
func Secrets(all ...*Config) *redact.Secrets {
	var texts []string
	for _, c := range all {
		texts = append(texts, c.RPCURLs...)
		texts = append(texts, c.DatabaseURL, c.SessionDatabaseURL)
		texts = append(texts, c.otelSecrets...)
	}

	return redact.New(texts...)
}
