package config

import (
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
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/pubsub"
)

func (l *loader) check() {
	l.chain()
	l.factory()
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
	// The chain's id is part of a 64-bit lock key, beside 24 bits for the lock's purpose.
	if c := l.c; c.ChainID < 1 || c.ChainID >= 1<<40 {
		l.say("CHAIN_ID", "must be 1 to 2^40-1, as in eth_chainId")
	}
}

// maxBlock is centuries away on any chain: a larger number is a time in milliseconds or a hash.
const maxBlock = 1_000_000_000_000

func (l *loader) factory() {
	c := l.c
	if !common.IsHexAddress(c.FactoryAddress) {
		l.say("FACTORY_ADDRESS", "must be an address: 0x and 40 hexadecimal digits")
		return
	}

	c.Factory = common.HexToAddress(c.FactoryAddress)
	digits := c.FactoryAddress[len(c.FactoryAddress)-40:]
	switch mixed := digits != strings.ToLower(digits) && digits != strings.ToUpper(digits); {
	case c.Factory == (common.Address{}):
		l.say("FACTORY_ADDRESS", "is the zero address; name the deployed EscrowFactory")
	case mixed && digits != c.Factory.Hex()[2:]:
		l.say("FACTORY_ADDRESS",
			"its EIP-55 checksum does not fit: a digit is wrong. Copy it again; an address in lower case is not checked")
	}

	if c.StartBlock < 0 || c.StartBlock > maxBlock {
		l.say("START_BLOCK", "must be 0 to %d: the block in which the factory was deployed", maxBlock)
	}
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
			u, err := url.Parse(raw)
			switch ok := err == nil && hostName.MatchString(u.Hostname()) &&
				slices.Contains([]string{"http", "https", "ws", "wss"}, u.Scheme); {
			case !ok && list.variable == "RPC_URL":
				l.say("RPC_URL", "is not an http, https, ws or wss URL")
			case !ok:
				l.say("RPC_URLS", "endpoint %d of %d is not an http, https, ws or wss URL", i+1, len(list.urls))
			}
		}
	}

	if len(c.RPCURLs) == 0 {
		l.say("RPC_URL", "is missing, and so is RPC_URLS; name a JSON-RPC endpoint of the chain: http(s):// or ws(s)://")
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
	const mostAddresses, mostBlocks, highestPrice = 100_000, 10_000_000, 1_000_000_000
	if c.RPCMaxAddress < 1 || c.RPCMaxAddress > mostAddresses {
		l.say("RPC_MAX_ADDRESSES", "must be 1 to %d", mostAddresses)
	}

	if c.RPCRequestPrice < 0 || c.RPCRequestPrice > highestPrice {
		l.say("RPC_REQUEST_PRICE", "must be 0 to %d bytes", highestPrice)
	}

	if c.RPCMaxRange < 1 || c.RPCMaxRange > mostBlocks {
		l.say("RPC_MAX_RANGE", "must be 1 to %d blocks", mostBlocks)
	}

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
	if c.Confirmations > maxConfirmations {
		l.say("CONFIRMATIONS", "must be 0 to %d", maxConfirmations)
	}

	none := c.Finality == "confirmations" && c.Confirmations == 0 && !l.unread["CONFIRMATIONS"]
	if (c.Finality == "latest" || none) && c.RetractionsTopic == "" {
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

	if !instanceID.MatchString(c.InstanceID) {
		l.say("INSTANCE_ID", "%q must be 1 to 48 letters, digits, dots, dashes or underscores "+
			"(it goes into application_name, which holds 63 bytes); if it is not set, it is the host's name", c.InstanceID)
	}
}

// instanceID leaves room for `escrow-relayer/`: Postgres cuts an application_name off after 63
// bytes, and two ids could become one.
var instanceID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,48}$`)

func (l *loader) partition() {
	c := l.c
	c.Partition = partition.Partition{Total: c.Total, Strategy: partition.Strategy(c.Strategy)}
	l.oneOf("PARTITION_STRATEGY", c.Strategy, string(partition.Modulo), string(partition.Consistent))
	known := c.Total >= 1 && c.Total <= partition.Slots
	if !known {
		l.say("TOTAL_PARTITIONS", "must be 1 to %d", partition.Slots)
	}

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
}

// hostPort says whether a text is a host and a port.
func hostPort(text string) bool {
	host, port, err := net.SplitHostPort(text)
	n, notNumber := strconv.Atoi(port)
	return err == nil && notNumber == nil && n > 0 && n < 65536 && !strings.ContainsAny(host, "/ ")
}

func (l *loader) events() {
	c := l.c
	var err error
	if c.ABI, err = contract.New(c.FactoryABI, c.EscrowABI); err != nil {
		variable, what, _ := strings.Cut(err.Error(), " ")
		l.say(strings.TrimSuffix(variable, ":"), "%s", what)
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
		l.say("OTHER_EVENTS_TOPIC_ID",
			"is needed with EVENT_NAMES: consumers of PUBSUB_TOPIC_ID may refuse names they do not know")
	}
}

// durations refuses values that nobody can mean: most often the unit is wrong.
func (l *loader) durations() {
	c := l.c
	for _, d := range []struct {
		variable         string
		value, low, high time.Duration
		why              string
	}{
		{"HEARTBEAT_INTERVAL", c.HeartbeatInterval, 10 * time.Millisecond, 2 * time.Minute,
			": alerts call a heartbeat of 5m stale"},
		{"LEADER_STALE_AFTER", c.LeaderStaleAfter, 2 * time.Second, time.Hour,
			": a leader updates its heartbeat every quarter of it, or every 5s"},
		{"SESSION_PROBE_INTERVAL", c.SessionProbeInterval, 100 * time.Millisecond, time.Minute,
			": the database ends a session that is silent for three of these"},
		{"DISCOVERY_WAIT", c.DiscoveryWait, time.Millisecond, time.Minute, ": every block may wait for this long"},
		{"POLL_INTERVAL", c.PollInterval, time.Millisecond, time.Minute, ": an event may come later by this time"},
		{"RPC_TIMEOUT", c.RPCTimeout, 10 * time.Millisecond, 10 * time.Minute,
			": an endpoint that does not answer is left only then"},
		{"RESIGN_AFTER", c.ResignAfter, 100 * time.Millisecond, time.Hour, ": until then nobody else may lead"},
		{"VERIFY_INTERVAL", c.VerifyInterval, time.Millisecond, 24 * time.Hour, ": what is missing is found only then"},
		{"DB_OUTAGE_LIMIT", c.DBOutageLimit, time.Second, 24 * time.Hour, ""},
		{"STOP_TIMEOUT", c.StopTimeout, time.Second, time.Hour, ""},
		{"ADOPT_AFTER", c.AdoptAfter, 0, time.Hour, ": until then nobody serves the slots of an instance that is gone"},
		{"INSTANCE_LOCK_WAIT", c.InstanceLockWait, 0, time.Hour, ""},
	} {
		if d.value < d.low || d.value > d.high {
			l.say(d.variable, "must be %s to %s%s", d.low, d.high, d.why)
		}
	}

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
	if c.Port < 0 || c.Port > 65535 {
		l.say("PORT", "must be 1 to 65535, or 0 for any that is free")
	}

	if c.ExplorerURL != "" {
		if u, err := url.Parse(c.ExplorerURL); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
			l.say("EXPLORER_URL", "must be an http or https URL")
		}
	}
}

func (l *loader) oneOf(variable, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		l.say(variable, "must be one of %s", strings.Join(allowed, ", "))
	}
}
