package config

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/partition"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/redact"
)

// check verifies everything that an instance needs.
func (l *loader) check() {
	l.chain()
	l.factories()
	l.endpoints()
	l.finality()
	l.database()
	l.instance()
	l.partition()
	l.topics()
	l.events()
	l.durations()
	l.commands()
	l.rest()
	l.otel()
	l.warnings()
}

func (l *loader) chain() {
	// The chain's id is part of a 64-bit lock key; the other 24 bits are the lock's purpose.
	if l.c.ChainID < 1 || l.c.ChainID >= 1<<40 {
		l.say("CHAIN_ID", "must be 1 to 2^40-1, as in eth_chainId")
	}
}

// maxBlock is centuries away on any chain: a larger number is a time in milliseconds or a hash.
const maxBlock = 1_000_000_000_000

func (l *loader) factories() {
	c := l.c
	between(l, "START_BLOCK", c.StartBlock, 0, maxBlock, ": the block in which the factory was deployed")
	if len(c.FactoryAddress) == 0 {
		l.say("FACTORY_ADDRESS", "must be an address: 0x and 40 hexadecimal digits")
	}

	if len(c.FactoryAddress) > registry.MaxFactories {
		l.say("FACTORY_ADDRESS", "names %d factories; a chain has at most %d", len(c.FactoryAddress), registry.MaxFactories)
	}

	for _, text := range c.FactoryAddress {
		f, wrong := l.factoryOf(strings.TrimSpace(text))
		if wrong == "" && slices.ContainsFunc(c.Factories, func(k registry.Factory) bool { return k.Address == f.Address }) {
			wrong = "names " + f.Address.Hex() + " twice; remove one"
		}

		if wrong != "" && len(c.FactoryAddress) > 1 {
			wrong = strings.TrimSpace(text) + ": " + wrong
		}

		if wrong != "" {
			l.say("FACTORY_ADDRESS", "%s", wrong)
		}

		c.Factories = append(c.Factories, f)
	}

	if len(c.Factories) > 0 {
		first := slices.MinFunc(c.Factories, func(a, b registry.Factory) int { return cmp.Compare(a.Start, b.Start) })
		c.StartBlock = first.Start
	}
}

// factoryOf reads ADDRESS or ADDRESS@START_BLOCK, and returns what is wrong with it.
func (l *loader) factoryOf(text string) (f registry.Factory, wrong string) {
	address, start, own := strings.Cut(text, "@")
	if !common.IsHexAddress(address) {
		return f, "must be an address: 0x and 40 hexadecimal digits; for several factories a list of ADDRESS@START_BLOCK"
	}

	f = registry.Factory{Address: common.HexToAddress(address), Start: l.c.StartBlock}
	if own {
		n, err := strconv.ParseInt(start, 10, 64)
		if f.Start = n; err != nil || n < 0 || n > maxBlock {
			return f, fmt.Sprintf("has the start block %q after @; it is the block in which that factory was deployed", start)
		}
	}

	digits := address[len(address)-40:]
	switch mixed := digits != strings.ToLower(digits) && digits != strings.ToUpper(digits); {
	case f.Address == (common.Address{}):
		return f, "is the zero address; name the deployed EscrowFactory"
	case mixed && digits != f.Address.Hex()[2:]:
		return f, "its EIP-55 checksum does not fit: a digit is wrong. Copy it again; an address in lower case is not checked"
	}

	return f, ""
}

func (l *loader) endpoints() {
	c := l.c
	lists := []struct {
		variable string
		urls     []string
	}{{"RPC_URL", []string{c.RPCURL}}, {"RPC_URLS", c.RPCURLs}}
	c.RPCURLs = nil
	for _, list := range lists {
		for i, raw := range list.urls {
			raw = strings.TrimSpace(raw)
			if raw == "" || slices.Contains(c.RPCURLs, raw) {
				continue
			}

			c.RPCURLs = append(c.RPCURLs, raw)
			if why := ambiguous(raw, false); why != "" {
				l.say(list.variable, "endpoint %d of %d %s: percent-encode it", i+1, len(list.urls), why)
				continue
			}

			u, err := url.Parse(raw)
			if err == nil && hostName.MatchString(u.Hostname()) &&
				slices.Contains([]string{"http", "https", "ws", "wss"}, u.Scheme) {
				continue
			}

			which := ""
			if list.variable == "RPC_URLS" {
				which = fmt.Sprintf("endpoint %d of %d ", i+1, len(list.urls))
			}

			l.say(list.variable, "%sis not an http, https, ws or wss URL", which)
		}
	}

	if len(c.RPCURLs) == 0 {
		l.say("RPC_URL", "is missing, and so is RPC_URLS; name a JSON-RPC endpoint of the chain: http(s):// or ws(s)://")
	}

	if c.Agreement == "strict" && len(c.RPCURLs) == 1 {
		l.say("AGREEMENT", "strict publishes nothing until two endpoints agree, and RPC_URLS names one: name another, "+
			"or set it to available")
	}

	l.requests()
	l.oneOf("LOG_FILTER", c.LogFilter, "auto", "topics", "addresses")
}

// hostName is a name or an address. url.Parse accepts more, for example two hosts with a semicolon
// between them.
var hostName = regexp.MustCompile(`^[A-Za-z0-9._-]+$|^[0-9A-Fa-f:.%]+$`)

// requests checks the sizes of requests.
func (l *loader) requests() {
	c := l.c
	between(l, "RPC_MAX_ADDRESSES", c.RPCMaxAddress, 1, 100_000, "")
	between(l, "RPC_MAX_RANGE", c.RPCMaxRange, 1, 10_000_000, " blocks")
	if c.RPCMaxRPS < 0 || math.IsNaN(c.RPCMaxRPS) || math.IsInf(c.RPCMaxRPS, 0) {
		l.say("RPC_MAX_RPS", "must be 0 (the relayer sets no limit) or more")
	}
}

// maxConfirmations is two weeks of Ethereum's blocks, and seven hours of the fastest chains'; more
// is a mistake.
const maxConfirmations = 100_000

func (l *loader) finality() {
	c := l.c
	l.oneOf("FINALITY", c.Finality, "confirmations", "safe", "finalized", "latest")
	l.oneOf("AGREEMENT", c.Agreement, "available", "strict")
	l.oneOf("PROOF", c.Proof, "near", "all", "none")
	between(l, "CONFIRMATIONS", c.Confirmations, 0, maxConfirmations, "")
	if c.Newest() && (c.Finality == "latest" || !l.unread["CONFIRMATIONS"]) && c.RetractionsTopic == "" {
		l.say("RETRACTIONS_TOPIC_ID",
			"is needed with FINALITY=latest or CONFIRMATIONS=0, where reorganisations take published events back: name a topic")
	}
}

func (l *loader) instance() {
	c := l.c
	if c.InstanceID == "" {
		if host, err := os.Hostname(); err == nil {
			c.InstanceID = host
		}
	}

	if !fleetName.MatchString(c.Fleet) {
		l.say("FLEET", "%q must be 1 to 63 letters, digits, dots, dashes or underscores", c.Fleet)
	}

	if !instanceID.MatchString(c.InstanceID) {
		l.say("INSTANCE_ID", "%q must be 1 to 48 letters, digits, dots, dashes or underscores "+
			"(it goes into application_name, which holds 63 bytes); if it is not set, it is the host's name", c.InstanceID)
	}
}

// FleetPattern is what FLEET may be: a label in Prometheus, and a part of the names of rules.
const FleetPattern = `[A-Za-z0-9._-]{1,63}`

var fleetName = regexp.MustCompile(`^` + FleetPattern + `$`)

// instanceID leaves room for `escrow-relayer/`: Postgres cuts an application_name off after 63
// bytes, and two ids could become one.
var instanceID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,48}$`)

func (l *loader) partition() {
	c := l.c
	c.Partition = partition.Partition{Total: c.Total, Strategy: partition.Strategy(c.Strategy)}
	l.oneOf("PARTITION_STRATEGY", c.Strategy, string(partition.Modulo), string(partition.Consistent))
	known := between(l, "TOTAL_PARTITIONS", c.Total, 1, partition.Slots, "")
	if c.Auto = c.Number == "auto"; c.Auto {
		return
	}

	n, err := strconv.Atoi(c.Number)
	switch {
	case err != nil || n < 0:
		l.say("PARTITION_NUMBER", "must be a number from 0, or auto")
	case known && n >= c.Total:
		l.say("PARTITION_NUMBER", "must be below TOTAL_PARTITIONS=%d: 0 to %d", c.Total, c.Total-1)
	}

	c.Partition.Number = n
}

func (l *loader) topics() {
	c := l.c
	if !pubsub.IsProjectID(c.Project) {
		l.say("PUBSUB_PROJECT_ID", "must be the id of a Google Cloud project")
	}

	ids := []struct{ variable, id string }{{"PUBSUB_TOPIC_ID", c.Topic}, {"OTHER_EVENTS_TOPIC_ID", c.OtherTopic},
		{"RETRACTIONS_TOPIC_ID", c.RetractionsTopic}}
	for i, t := range ids {
		switch {
		case t.id == "" && i > 0:
		case t.id == "":
			l.say(t.variable, "is missing; name the topic of the events")
		case strings.Contains(t.id, "/"):
			l.say(t.variable, "must be the id of a topic alone, without projects/…/topics/")
		case !pubsub.IsTopicID(t.id):
			l.say(t.variable,
				"must be the id of a topic: 3 to 255 letters, digits and -._~+%%, beginning with a letter, not with goog")
		}

		for _, other := range ids[:i] {
			if t.id != "" && t.id == other.id {
				l.say(t.variable,
					"must be another topic than %s: its consumers do not expect these messages, and may refuse them for ever",
					other.variable)

				break
			}
		}
	}

	l.oneOf("ORDERING_KEY", c.OrderingKey, "escrow", "slot")
	if c.PubSubEmulator != "" && !hostPort(c.PubSubEmulator) {
		l.say("PUBSUB_EMULATOR_HOST", "must be host:port, without http://")
	}

	switch {
	case c.PubSubEndpoint == "":
	case !hostPort(c.PubSubEndpoint):
		l.say("PUBSUB_ENDPOINT", "must be host:port, without https://, such as us-central1-pubsub.googleapis.com:443")
	case c.PubSubEmulator != "":
		l.say("PUBSUB_ENDPOINT", "must be empty with PUBSUB_EMULATOR_HOST, which is an endpoint")
	}
}

// hostPort reports whether a text is a host and a port.
func hostPort(text string) bool {
	host, port, err := net.SplitHostPort(text)
	n, notNumber := strconv.Atoi(port)
	return err == nil && notNumber == nil && n > 0 && n <= maxPort && !strings.ContainsAny(host, "/ ")
}

func (l *loader) events() {
	c := l.c
	var err error
	if c.ABI, err = contract.New(c.FactoryABI, c.EscrowABI, c.EventAliases...); err != nil {
		variable, what, _ := strings.Cut(err.Error(), " ")
		l.say(strings.TrimSuffix(variable, ":"), "%s", what)
		return
	}

	if c.ABI.Aliased() && (c.SendersFile != "" || c.PolicyFile != "") {
		l.say("EVENT_ALIASES", "the contracts of others have other functions: commands and their keeper call an Escrow "+
			"of this project; unset SENDERS_FILE and COMMANDS_POLICY_FILE for this chain")
	}

	c.Other = map[string]bool{}
	for _, name := range c.EventNames {
		if name = strings.TrimSpace(name); name == "" || slices.Contains(contract.DefaultEvents, name) {
			continue
		}

		if !slices.Contains(c.ABI.EventNames(), name) {
			meant := nearest(name, c.ABI.EventNames())
			if meant != "" {
				meant = " was " + meant + " meant?"
			}

			l.say("EVENT_NAMES", "%s is not an event of the ABI;%s it has %s", name, meant,
				strings.Join(c.ABI.EventNames(), ", "))
			continue
		}

		c.Other[name] = true
	}

	if len(c.Other) > 0 && c.OtherTopic == "" {
		l.say("OTHER_EVENTS_TOPIC_ID",
			"is needed with EVENT_NAMES: consumers of PUBSUB_TOPIC_ID may refuse names they do not know")
	}
}

// durations refuses implausible values: most often the unit is wrong.
func (l *loader) durations() {
	c := l.c
	between(l, "HEARTBEAT_INTERVAL", c.HeartbeatInterval, 10*time.Millisecond, 2*time.Minute,
		": alerts call a heartbeat of 5m stale")
	between(l, "LEADER_STALE_AFTER", c.LeaderStaleAfter, 2*time.Second, time.Hour,
		": a leader updates its heartbeat every quarter of it, or every 5s")
	between(l, "SESSION_PROBE_INTERVAL", c.SessionProbeInterval, 100*time.Millisecond, time.Minute,
		": the database ends a session that is silent for three of these")
	between(l, "POLL_INTERVAL", c.PollInterval, time.Millisecond, time.Minute, ": an event may come later by this time")
	between(l, "RPC_TIMEOUT", c.RPCTimeout, 10*time.Millisecond, 10*time.Minute,
		": an endpoint that does not answer is left only then")
	between(l, "RESIGN_AFTER", c.ResignAfter, 100*time.Millisecond, time.Hour, ": until then nobody else may lead")
	between(l, "VERIFY_INTERVAL", c.VerifyInterval, time.Millisecond, 24*time.Hour,
		": what is missing is found only then")
	between(l, "FINALITY_LIMIT", c.FinalityLimit, 30*time.Minute, 30*24*time.Hour,
		": a head that is 30m old is an alarm anyway, and Ethereum's finalized block is up to 19m old")
	between(l, "DB_OUTAGE_LIMIT", c.DBOutageLimit, time.Second, 24*time.Hour, "")
	between(l, "STOP_TIMEOUT", c.StopTimeout, time.Second, time.Hour, "")
	between(l, "ADOPT_AFTER", c.AdoptAfter, 0, time.Hour,
		": until then nobody serves the slots of an instance that is gone")
	between(l, "INSTANCE_LOCK_WAIT", c.InstanceLockWait, 0, time.Hour, "")
	if c.Retention != 0 && (c.Retention < time.Hour || c.Retention > maxRetention) {
		l.say("RETENTION", "must be 0 (for ever), or %s to %s: replays and the second reading need what it deletes",
			time.Hour, maxRetention)
	}
}

// maxRetention is a hundred years: with more, the unit is wrong.
const maxRetention = 100 * 365 * 24 * time.Hour

func (l *loader) rest() {
	c := l.c
	l.oneOf("LOG_LEVEL", strings.ToLower(c.LogLevel), "debug", "info", "warn", "error")
	l.oneOf("LOG_FORMAT", c.LogFormat, "auto", "json", "text")
	l.port("PORT", c.Port, "any that is free")
	if c.HTTPHost != "" && c.HTTPHost != "localhost" && net.ParseIP(c.HTTPHost) == nil {
		l.say("HTTP_HOST", "must be an IP address of this machine, or localhost")
	}

	if u, err := url.Parse(c.ExplorerURL); c.ExplorerURL != "" &&
		(!isHTTP(c.ExplorerURL) || err != nil || u.User != nil || u.RawQuery != "" || u.Fragment != "") {
		l.problems = append(l.problems, Problem{"EXPLORER_URL", redact.URL(c.ExplorerURL),
			"must be an http or https URL, without credentials, query or fragment, as https://sepolia.etherscan.io"})
	}
}

// isHTTP reports whether a text is the URL of an HTTP server.
func isHTTP(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

// between reports whether a value lies within its bounds, and refuses any other. reason follows the
// bounds in the remedy.
func between[T cmp.Ordered](l *loader, variable string, value, low, high T, reason string) bool {
	if value < low || value > high {
		l.say(variable, "must be %v to %v%s", low, high, reason)
		return false
	}

	return true
}

// port refuses an invalid port. zero describes the meaning of 0.
func (l *loader) port(variable string, value int, zero string) {
	if value < 0 || value > maxPort {
		l.say(variable, "must be 1 to %d, or 0 for %s", maxPort, zero)
	}
}

const maxPort = 65535

func (l *loader) oneOf(variable, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		l.say(variable, "must be one of %s", strings.Join(allowed, ", "))
	}
}
