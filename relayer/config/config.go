// Package config turns the environment into a Config, or into the list of everything that is wrong with it.
package config

import (
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/redact"
)

// Config of one instance. The tags are the documentation that `run --help` and the README show.
type Config struct {
	ChainID        int64    `env:"CHAIN_ID" help:"chain id; every endpoint must answer eth_chainId with it"`
	RPCURLs        []string `env:"RPC_URLS" secret:"yes" help:"RPC endpoints, comma-separated: http, https, ws, wss; the first is preferred among equals"`
	RPCURL         string   `env:"RPC_URL" secret:"yes" help:"one RPC endpoint; put before those of RPC_URLS"`
	FactoryAddress string   `env:"FACTORY_ADDRESS" help:"address of the EscrowFactory"`
	StartBlock     int64    `env:"START_BLOCK" help:"first block to read; at or below the factory's deployment"`

	Project          string   `env:"PUBSUB_PROJECT_ID" help:"Google Cloud project of the topics"`
	Topic            string   `env:"PUBSUB_TOPIC_ID" help:"topic of EscrowDeployed, Approved, EscrowReleased, EscrowRefunded"`
	OtherTopic       string   `env:"OTHER_EVENTS_TOPIC_ID" help:"topic of the other events named by EVENT_NAMES"`
	RetractionsTopic string   `env:"RETRACTIONS_TOPIC_ID" help:"topic of retractions; without it deep reorganisations are only alerted on"`
	EventNames       []string `env:"EVENT_NAMES" help:"events of the ABI to publish beside the four, comma-separated; they go to OTHER_EVENTS_TOPIC_ID"`
	OrderingKey      string   `env:"ORDERING_KEY" envDefault:"escrow" help:"escrow, or slot: larger and cheaper batches, less isolation"`
	PubSubEmulator   string   `env:"PUBSUB_EMULATOR_HOST" help:"host:port of a Pub/Sub emulator; read by Google's client"`

	InstanceID string `env:"INSTANCE_ID" help:"name of this instance, unique in the fleet of its chain; default: the host's name"`
	Number     string `env:"PARTITION_NUMBER" envDefault:"0" help:"number of this instance's partition, 0 to TOTAL_PARTITIONS-1, or auto: a free one"`
	Total      int    `env:"TOTAL_PARTITIONS" envDefault:"1" help:"number of partitions, 1 to 2520"`
	Strategy   string `env:"PARTITION_STRATEGY" envDefault:"modulo" help:"modulo, or consistent: a resize moves few escrows"`

	DatabaseURL        string        `env:"DATABASE_URL" secret:"yes" help:"Postgres 14+; postgres://, postgresql:// or postgresql+asyncpg://"`
	SessionDatabaseURL string        `env:"SESSION_DATABASE_URL" secret:"yes" help:"the same database without a transaction pool; default: DATABASE_URL"`
	CloudSQLInstance   string        `env:"CLOUDSQL_INSTANCE" help:"instance connection name project:region:instance: connect through Google's Cloud SQL connector"`
	CloudSQLIAM        bool          `env:"CLOUDSQL_IAM_AUTH" envDefault:"false" help:"log in to Cloud SQL by IAM; the user of DATABASE_URL is the service account without .gserviceaccount.com"`
	DBMaxConns         int32         `env:"DB_MAX_CONNS" envDefault:"8" help:"connections of the pool; the session is one more"`
	MigrateOnStart     bool          `env:"MIGRATE_ON_START" envDefault:"true" help:"apply missing migrations at start"`
	DBOutageLimit      time.Duration `env:"DB_OUTAGE_LIMIT" envDefault:"5m" help:"exit when the database is out of reach for so long"`

	Finality       string        `env:"FINALITY" envDefault:"confirmations" help:"what may be processed: confirmations, safe, finalized, or latest (needs RETRACTIONS_TOPIC_ID)"`
	Confirmations  uint64        `env:"CONFIRMATIONS" envDefault:"12" help:"blocks on top of a block before it is processed"`
	PollInterval   time.Duration `env:"POLL_INTERVAL" envDefault:"1s" help:"longest pause between two looks for a new block over http"`
	RPCTimeout     time.Duration `env:"RPC_TIMEOUT" envDefault:"10s" help:"of one request"`
	RPCMaxRPS      float64       `env:"RPC_MAX_RPS" envDefault:"0" help:"requests a second an endpoint; 0: no limit of ours"`
	RPCMaxRange    uint64        `env:"RPC_MAX_RANGE" envDefault:"10000" help:"blocks a request for logs asks for at most; found by itself below that"`
	RPCMaxAddress  int           `env:"RPC_MAX_ADDRESSES" envDefault:"1000" help:"addresses a request for logs names at most; geth's default cap is 1000"`
	LogFilter      string        `env:"LOG_FILTER" envDefault:"auto" help:"ask for logs by topics, by addresses, or auto: what costs less"`
	FactoryABI     string        `env:"FACTORY_ABI" help:"ABI of the factory, JSON or a path; default: built in"`
	EscrowABI      string        `env:"ESCROW_ABI" help:"ABI of the escrows, JSON or a path; default: built in"`
	VerifyInterval time.Duration `env:"VERIFY_INTERVAL" envDefault:"30s" help:"pause between two second readings of final blocks"`
	Retention      time.Duration `env:"RETENTION" envDefault:"0" help:"how long events of ended escrows stay in processed_events; 0: for ever"`

	HeartbeatInterval    time.Duration `env:"HEARTBEAT_INTERVAL" envDefault:"30s" help:"how often the instance updates its row"`
	LeaderStaleAfter     time.Duration `env:"LEADER_STALE_AFTER" envDefault:"60s" help:"a leader that makes no rounds for so long is ended"`
	AdoptAfter           time.Duration `env:"ADOPT_AFTER" envDefault:"5s" help:"how long slots that nobody alive prefers wait before they are adopted"`
	DiscoveryWait        time.Duration `env:"DISCOVERY_WAIT" envDefault:"2s" help:"how long a block waits for the factory watch to have passed it"`
	SessionProbeInterval time.Duration `env:"SESSION_PROBE_INTERVAL" envDefault:"2s" help:"the database ends a session silent for three of these"`
	InstanceLockWait     time.Duration `env:"INSTANCE_LOCK_WAIT" envDefault:"60s" help:"how long to wait for a predecessor with the same INSTANCE_ID"`
	ResignAfter          time.Duration `env:"RESIGN_AFTER" envDefault:"15s" help:"a leader whose node does not let it go on for so long resigns"`

	Port        int    `env:"PORT" envDefault:"8080" help:"of the HTTP server"`
	ExplorerURL string `env:"EXPLORER_URL" help:"block explorer to link to, e.g. https://sepolia.etherscan.io"`
	LogLevel    string `env:"LOG_LEVEL" envDefault:"info" help:"debug, info, warn, error"`
	LogFormat   string `env:"LOG_FORMAT" envDefault:"auto" help:"json (with Cloud Logging's severity), text, or auto: text on a terminal"`

	Factory   common.Address      `env:"-"`
	Partition partition.Partition `env:"-"`
	Auto      bool                `env:"-"` // PARTITION_NUMBER=auto
	ABI       *contract.ABI       `env:"-"`
	Other     map[string]bool     `env:"-"` // events for OtherTopic
}

// DefaultEvents are published by default.
var DefaultEvents = []string{"EscrowDeployed", "Approved", "EscrowReleased", "EscrowRefunded"}

// Publishes says whether events of a name are published.
func (c *Config) Publishes(name string) bool {
	return slices.Contains(DefaultEvents, name) || c.Other[name]
}

// Problem is one thing that is wrong.
type Problem struct {
	Variable, Value, Remedy string
}

// Problems is everything that is wrong with an environment.
type Problems []Problem

func (p Problems) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d configuration problem(s):", len(p))
	for _, x := range p {
		fmt.Fprintf(&b, "\n  %s=%s: %s", x.Variable, x.Value, x.Remedy)
	}
	return b.String()
}

// Environ is the process's environment as Load takes it.
func Environ() map[string]string { return env.ToMap(os.Environ()) }

// Load reads the environment. Its error is Problems.
func Load(environ map[string]string) (*Config, error) {
	c := &Config{}
	l := &loader{c: c, environ: environ}
	l.parse()
	l.check()
	if len(l.problems) > 0 {
		return nil, l.problems
	}
	return c, nil
}

// LoadDatabase reads what commands need that only look at the database: CHAIN_ID, DATABASE_URL and how to connect.
func LoadDatabase(environ map[string]string) (*Config, error) {
	c := &Config{}
	l := &loader{c: c, environ: environ}
	l.parse()
	l.chain()
	l.database()
	l.instance()
	if len(l.problems) > 0 {
		return nil, l.problems
	}
	return c, nil
}

type loader struct {
	c        *Config
	environ  map[string]string
	problems Problems
}

// say notes a problem; the value of a secret variable is masked.
func (l *loader) say(variable, format string, args ...any) {
	value := l.environ[variable]
	if f, ok := field(variable); ok && f.Tag.Get("secret") == "yes" && value != "" {
		var parts []string
		for _, raw := range strings.Split(value, ",") {
			parts = append(parts, redact.URL(strings.TrimSpace(raw)))
		}
		value = strings.Join(parts, ",")
	}
	if value == "" {
		value = `""`
	}
	if len(value) > 100 {
		value = value[:100] + "…"
	}
	l.problems = append(l.problems, Problem{variable, value, l.mask(fmt.Sprintf(format, args...))})
}

// mask takes the secrets of the environment out of a remedy, which may quote a parser's error.
func (l *loader) mask(text string) string {
	var raw []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		if f.Tag.Get("secret") == "yes" {
			for _, v := range strings.Split(l.environ[f.Tag.Get("env")], ",") {
				if v = strings.TrimSpace(v); v != "" {
					raw = append(raw, v)
				}
			}
		}
	}
	return redact.New(raw...).Mask(text)
}

func field(variable string) (reflect.StructField, bool) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		if f.Tag.Get("env") == variable {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

func (l *loader) parse() {
	environ := maps.Clone(l.environ)
	if environ == nil {
		environ = map[string]string{}
	}
	for k, v := range environ { // an empty variable is an unset one
		if strings.TrimSpace(v) == "" {
			delete(environ, k)
		}
	}
	err := env.ParseWithOptions(l.c, env.Options{Environment: environ})
	var all env.AggregateError
	if err == nil {
		return
	}
	if a, ok := err.(env.AggregateError); ok {
		all = a
	} else {
		all.Errors = []error{err}
	}
	for _, e := range all.Errors {
		variable, want := "environment", e.Error()
		if p, ok := e.(env.ParseError); ok {
			if f, ok := reflect.TypeFor[Config]().FieldByName(p.Name); ok {
				variable, want = f.Tag.Get("env"), "must be "+kind(f)
			}
		}
		l.say(variable, "%s", want)
	}
}

func kind(f reflect.StructField) string {
	switch {
	case f.Type == reflect.TypeFor[time.Duration]():
		return "a duration such as 30s or 5m"
	case f.Type.Kind() == reflect.Bool:
		return "true or false"
	case f.Type.Kind() == reflect.Slice:
		return "a comma-separated list"
	case f.Type.Kind() == reflect.Float64:
		return "a number"
	case f.Type.Kind() == reflect.Uint64:
		return "a whole number, 0 or more"
	case f.Type.Kind() == reflect.String:
		return "text"
	}
	return "a whole number"
}

func (l *loader) check() {
	c := l.c
	l.chain()
	l.endpoints()
	l.database()
	l.instance()
	l.partition()
	l.pubsub()
	if !common.IsHexAddress(c.FactoryAddress) {
		l.say("FACTORY_ADDRESS", "must be an address: 0x and 40 hexadecimal digits")
	} else if c.Factory = common.HexToAddress(c.FactoryAddress); c.Factory == (common.Address{}) {
		l.say("FACTORY_ADDRESS", "is the zero address; name the deployed EscrowFactory")
	}
	if c.StartBlock < 0 {
		l.say("START_BLOCK", "must be 0 or more")
	}
	l.oneOf("FINALITY", c.Finality, "confirmations", "safe", "finalized", "latest")
	l.oneOf("LOG_FILTER", c.LogFilter, "auto", "topics", "addresses")
	l.oneOf("LOG_LEVEL", strings.ToLower(c.LogLevel), "debug", "info", "warn", "error")
	l.oneOf("LOG_FORMAT", c.LogFormat, "auto", "json", "text")
	if c.Finality == "latest" && c.RetractionsTopic == "" {
		l.say("RETRACTIONS_TOPIC_ID", "is needed with FINALITY=latest, where reorganisations take published events back: name a topic")
	}
	for variable, d := range map[string]time.Duration{
		"HEARTBEAT_INTERVAL": c.HeartbeatInterval, "LEADER_STALE_AFTER": c.LeaderStaleAfter, "DISCOVERY_WAIT": c.DiscoveryWait, "POLL_INTERVAL": c.PollInterval,
		"RPC_TIMEOUT": c.RPCTimeout, "RESIGN_AFTER": c.ResignAfter, "VERIFY_INTERVAL": c.VerifyInterval, "DB_OUTAGE_LIMIT": c.DBOutageLimit,
	} {
		if d <= 0 && !l.already(variable) {
			l.say(variable, "must be longer than 0")
		}
	}
	if c.SessionProbeInterval < 100*time.Millisecond {
		l.say("SESSION_PROBE_INTERVAL", "must be 100ms or longer: the database ends a session silent for three of these")
	}
	if c.LeaderStaleAfter < 2*time.Second && !l.already("LEADER_STALE_AFTER") {
		l.say("LEADER_STALE_AFTER", "must be 2s or longer, a few times a leader's rounds")
	}
	for variable, d := range map[string]time.Duration{"ADOPT_AFTER": c.AdoptAfter, "INSTANCE_LOCK_WAIT": c.InstanceLockWait, "RETENTION": c.Retention} {
		if d < 0 {
			l.say(variable, "must be 0 or longer")
		}
	}
	if c.RPCMaxAddress < 1 {
		l.say("RPC_MAX_ADDRESSES", "must be 1 or more")
	}
	if c.RPCMaxRange < 1 {
		l.say("RPC_MAX_RANGE", "must be 1 or more")
	}
	if c.Port < 0 || c.Port > 65535 {
		l.say("PORT", "must be 1 to 65535")
	}
	if c.ExplorerURL != "" {
		if u, err := url.Parse(c.ExplorerURL); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
			l.say("EXPLORER_URL", "must be an http or https URL")
		}
	}
	slices.SortStableFunc(l.problems, func(a, b Problem) int { return strings.Compare(a.Variable, b.Variable) })
}

func (l *loader) already(variable string) bool {
	return slices.ContainsFunc(l.problems, func(p Problem) bool { return p.Variable == variable })
}

func (l *loader) oneOf(variable, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		l.say(variable, "must be one of %s", strings.Join(allowed, ", "))
	}
}

func (l *loader) chain() {
	if c := l.c; (c.ChainID < 1 || c.ChainID >= 1<<40) && !l.already("CHAIN_ID") {
		l.say("CHAIN_ID", "must be 1 to 2^40-1, as in eth_chainId")
	}
}

func (l *loader) endpoints() {
	c := l.c
	var all []string
	for _, raw := range append([]string{c.RPCURL}, c.RPCURLs...) {
		if raw = strings.TrimSpace(raw); raw != "" && !slices.Contains(all, raw) {
			all = append(all, raw)
		}
	}
	if len(all) == 0 {
		l.say("RPC_URL", "is missing; name a JSON-RPC endpoint of the chain: http(s):// or ws(s)://")
	}
	for i, raw := range all {
		u, err := url.Parse(raw)
		if err != nil || u.Host == "" || !slices.Contains([]string{"http", "https", "ws", "wss"}, u.Scheme) {
			variable := "RPC_URLS"
			if c.RPCURL != "" && i == 0 {
				variable = "RPC_URL"
			}
			l.say(variable, "endpoint %d is not an http, https, ws or wss URL", i)
		}
	}
	c.RPCURLs = all
}

func (l *loader) database() {
	c := l.c
	if c.DatabaseURL == "" {
		l.say("DATABASE_URL", "is missing; postgres://user:password@host/database")
		return
	}
	c.DatabaseURL = standard(c.DatabaseURL)
	if c.SessionDatabaseURL == "" {
		c.SessionDatabaseURL = c.DatabaseURL
	}
	c.SessionDatabaseURL = standard(c.SessionDatabaseURL)
	for variable, raw := range map[string]string{"DATABASE_URL": c.DatabaseURL, "SESSION_DATABASE_URL": c.SessionDatabaseURL} {
		if variable == "SESSION_DATABASE_URL" && raw == c.DatabaseURL {
			continue
		}
		if _, err := pgx.ParseConfig(raw); err != nil {
			l.say(variable, "is not a Postgres URL or DSN; postgres://user:password@host/database")
		}
	}
	if c.CloudSQLInstance != "" && !cloudSQL.MatchString(c.CloudSQLInstance) {
		l.say("CLOUDSQL_INSTANCE", "must be an instance connection name: project:region:instance")
	}
	if c.CloudSQLIAM && c.CloudSQLInstance == "" {
		l.say("CLOUDSQL_INSTANCE", "is needed with CLOUDSQL_IAM_AUTH=true")
	}
	if c.DBMaxConns < 4 {
		l.say("DB_MAX_CONNS", "must be 4 or more: commits, the publisher and the HTTP server use connections at once")
	}
}

var cloudSQL = regexp.MustCompile(`^([a-z0-9.-]+:)?[a-z][a-z0-9-]*:[a-z0-9-]+:[a-z0-9-]+$`)

// standard turns a URL of SQLAlchemy's asyncpg dialect into one that everybody knows: scheme, and `ssl` for `sslmode`.
func standard(raw string) string {
	rest, ok := strings.CutPrefix(raw, "postgresql+asyncpg://")
	if !ok {
		return raw
	}
	raw = "postgresql://" + rest
	u, err := url.Parse(raw)
	if err != nil {
		return raw
	}
	q := u.Query()
	if v := q.Get("ssl"); v != "" {
		q.Del("ssl")
		switch strings.ToLower(v) {
		case "true", "1":
			v = "require"
		case "false", "0":
			v = "disable"
		}
		q.Set("sslmode", v)
		u.RawQuery = q.Encode()
	}
	return u.String()
}

func (l *loader) instance() {
	c := l.c
	if c.InstanceID == "" {
		if host, err := os.Hostname(); err == nil {
			c.InstanceID = host
		}
	}
	if !instanceID.MatchString(c.InstanceID) {
		l.say("INSTANCE_ID", "must be 1 to 48 letters, digits, dots, dashes or underscores (it goes into application_name, which holds 63 bytes)")
	}
}

var instanceID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,48}$`)

func (l *loader) partition() {
	c := l.c
	c.Partition = partition.Partition{Total: c.Total, Strategy: partition.Strategy(c.Strategy)}
	l.oneOf("PARTITION_STRATEGY", c.Strategy, string(partition.Modulo), string(partition.Consistent))
	if (c.Total < 1 || c.Total > partition.Slots) && !l.already("TOTAL_PARTITIONS") {
		l.say("TOTAL_PARTITIONS", "must be 1 to %d", partition.Slots)
		return
	}
	if c.Auto = c.Number == "auto"; c.Auto {
		return
	}
	n, err := strconv.Atoi(c.Number)
	if err != nil || n < 0 {
		l.say("PARTITION_NUMBER", "must be a number from 0, or auto")
	} else if n >= c.Total {
		l.say("PARTITION_NUMBER", "must be below TOTAL_PARTITIONS=%d: 0 to %d", c.Total, c.Total-1)
	}
	c.Partition.Number = n
}

func (l *loader) pubsub() {
	c := l.c
	if !project.MatchString(c.Project) {
		l.say("PUBSUB_PROJECT_ID", "must be a Google Cloud project id")
	}
	for variable, id := range map[string]string{"PUBSUB_TOPIC_ID": c.Topic, "OTHER_EVENTS_TOPIC_ID": c.OtherTopic, "RETRACTIONS_TOPIC_ID": c.RetractionsTopic} {
		if id == "" && variable != "PUBSUB_TOPIC_ID" {
			continue
		}
		if !topic.MatchString(id) || strings.HasPrefix(id, "goog") {
			l.say(variable, "must be a topic id: 3 to 255 letters, digits and -._~+%%, beginning with a letter, not with goog")
		}
	}
	if c.RetractionsTopic != "" && (c.RetractionsTopic == c.Topic || c.RetractionsTopic == c.OtherTopic) {
		l.say("RETRACTIONS_TOPIC_ID", "must be a topic of its own: consumers of events do not expect retractions")
	}
	l.oneOf("ORDERING_KEY", c.OrderingKey, "escrow", "slot")
	var err error
	if c.ABI, err = contract.New(c.FactoryABI, c.EscrowABI); err != nil {
		variable, _, _ := strings.Cut(err.Error(), " ")
		l.say(strings.TrimSuffix(variable, ":"), "%s", err)
		return
	}
	c.Other = map[string]bool{}
	for _, name := range c.EventNames {
		if name = strings.TrimSpace(name); name == "" || slices.Contains(DefaultEvents, name) {
			continue
		}
		if !slices.Contains(c.ABI.EventNames(), name) {
			l.say("EVENT_NAMES", "%s is not an event of the ABI; it has %s", name, strings.Join(c.ABI.EventNames(), ", "))
			continue
		}
		c.Other[name] = true
	}
	if len(c.Other) > 0 && c.OtherTopic == "" {
		l.say("OTHER_EVENTS_TOPIC_ID", "is needed with EVENT_NAMES: consumers of PUBSUB_TOPIC_ID may refuse names they do not know")
	}
}

var (
	project = regexp.MustCompile(`^([a-z0-9.-]+:)?[a-z][a-z0-9-]{1,61}[a-z0-9]$`)
	topic   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9\-._~+%]{2,254}$`)
)

// Secrets are the texts that must not get out.
func (c *Config) Secrets() *redact.Secrets {
	return redact.New(append(slices.Clone(c.RPCURLs), c.DatabaseURL, c.SessionDatabaseURL)...)
}

// Variable is a row of the documentation.
type Variable struct {
	Name, Type, Default, Help string
}

// Variables lists everything that Load reads.
func Variables() (all []Variable) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		name := f.Tag.Get("env")
		if name == "" || name == "-" {
			continue
		}
		t := f.Type.String()
		switch {
		case f.Type == reflect.TypeFor[time.Duration]():
			t = "duration"
		case f.Type.Kind() == reflect.Slice:
			t = "list"
		case f.Type.Kind() == reflect.String:
			t = "text"
		case f.Type.Kind() != reflect.Bool:
			t = "number"
		}
		all = append(all, Variable{name, t, f.Tag.Get("envDefault"), f.Tag.Get("help")})
	}
	return all
}

// Help writes the variables as text.
func Help(w io.Writer) {
	for _, v := range Variables() {
		d := ""
		if v.Default != "" {
			d = " (default " + v.Default + ")"
		}
		fmt.Fprintf(w, "  %-24s %-8s %s%s\n", v.Name, v.Type, v.Help, d)
	}
}

// Markdown writes the variables as a table.
func Markdown(w io.Writer) {
	fmt.Fprintln(w, "| variable | type | default | meaning |\n| --- | --- | --- | --- |")
	for _, v := range Variables() {
		fmt.Fprintf(w, "| `%s` | %s | %s | %s |\n", v.Name, v.Type, v.Default, v.Help)
	}
}
