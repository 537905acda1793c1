package config

import (
	"math/big"
	"strings"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
)

// TakesCommands reports whether the instance accepts commands, over HTTP or from a subscription.
func (c *Config) TakesCommands() bool { return c.CommandsHTTP || c.CommandsSubscription != "" }

// HasCommands reports whether the instance accepts commands or acts on them, and so answers some.
func (c *Config) HasCommands() bool { return c.TakesCommands() || c.SendersFile != "" }

// commands checks the variables of commands. Without them everything about commands is off.
func (l *loader) commands() {
	c := l.c
	if c.TakesCommands() && c.PolicyFile == "" {
		l.say("COMMANDS_POLICY_FILE",
			"is needed with COMMANDS_HTTP or COMMANDS_SUBSCRIPTION_ID: name the file that says who may ask for what")
	}

	if !c.TakesCommands() && c.PolicyFile == "" && c.SendersFile != "" && c.KeeperSender == "" {
		l.say("COMMANDS_POLICY_FILE",
			"is needed with SENDERS_FILE: nothing is signed for a requester whom the policy does not name; "+
				"a keeper alone needs none")
	}

	if !c.HasCommands() && c.PolicyFile != "" {
		l.say("COMMANDS_POLICY_FILE",
			"has no effect without COMMANDS_HTTP, COMMANDS_SUBSCRIPTION_ID or SENDERS_FILE: set one of them, or unset it")
	}

	for _, x := range []struct{ variable, id string }{{"COMMANDS_SUBSCRIPTION_ID", c.CommandsSubscription},
		{"REPLIES_TOPIC_ID", c.RepliesTopic}} {
		if x.id != "" && !pubsub.IsTopicID(x.id) {
			l.say(x.variable, "must be an id alone: 3 to 255 letters, digits and -._~+%%, beginning with a letter")
		}
	}

	// An instance that accepts commands stores answers, which stay in the database until they are
	// published.
	if c.HasCommands() && c.RepliesTopic == "" {
		l.say("REPLIES_TOPIC_ID", "is needed with COMMANDS_HTTP, COMMANDS_SUBSCRIPTION_ID or SENDERS_FILE: "+
			"answers are stored until they are published there; name a topic, which may be one without a subscription")
	}

	if c.RepliesTopic != "" && (c.RepliesTopic == c.Topic || c.RepliesTopic == c.OtherTopic ||
		c.RepliesTopic == c.RetractionsTopic) {
		l.say("REPLIES_TOPIC_ID", "must be a topic of its own: consumers of events do not expect answers")
	}

	l.port("COMMANDS_PORT", c.CommandsPort, "PORT")
	if c.CommandsPort != 0 && !c.CommandsHTTP {
		l.say("COMMANDS_PORT", "has no effect without COMMANDS_HTTP=true")
	}

	if c.CommandsPort != 0 && c.CommandsPort == c.Port {
		l.say("COMMANDS_PORT", "must be another port than PORT, or unset")
	}

	l.keeper()
}

// Keeper configures the sender that releases escrows without a command, with its limits. Amounts
// are wei.
type Keeper struct {
	Sender                     common.Address
	MinAmount, MaxFee, DayFees *big.Int
	Payers                     []common.Address // empty: any
}

// keeper reads the variables of the keeper, and checks them even without KEEPER_SENDER.
func (l *loader) keeper() {
	c := l.c
	k := &Keeper{Sender: common.HexToAddress(c.KeeperSender)}
	if c.KeeperSender != "" {
		c.Keeper = k
		if !common.IsHexAddress(c.KeeperSender) {
			l.say("KEEPER_SENDER", "must be an address: 0x and 40 hexadecimal digits")
		}

		if c.SendersFile == "" {
			l.say("KEEPER_SENDER", "needs SENDERS_FILE, which names its key")
		}
	}

	k.MinAmount = l.wei("KEEPER_MIN_AMOUNT", c.KeeperMinAmount)
	k.MaxFee = l.wei("KEEPER_MAX_FEE", c.KeeperMaxFee)
	k.DayFees = l.wei("KEEPER_DAY_FEES", c.KeeperDayFees)
	for p := range strings.SplitSeq(c.KeeperPayers, ",") {
		if p = strings.TrimSpace(p); p == "" {
			continue
		}

		if !common.IsHexAddress(p) {
			l.say("KEEPER_PAYERS", "must be addresses, comma-separated")
		}

		k.Payers = append(k.Payers, common.HexToAddress(p))
	}
}

// wei reads an amount: decimal digits only, below 2^256.
func (l *loader) wei(variable, text string) *big.Int {
	n, ok := new(big.Int).SetString(text, 10)
	if !ok || n.Sign() <= 0 || n.BitLen() > 256 || strings.Trim(text, "0123456789") != "" {
		l.say(variable, "must be wei: a whole number above 0")
	}

	return n
}
