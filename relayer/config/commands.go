package config

import (
	"math/big"
	"strings"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/relayer/pubsub"
)

// TakesCommands says whether the instance accepts commands, over HTTP or from a subscription.
func (c *Config) TakesCommands() bool { return c.CommandsHTTP || c.CommandsSubscription != "" }

// commands checks the variables of commands. If none of them is set, nothing that acts on commands
// runs.
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

	if !c.TakesCommands() && c.SendersFile == "" && c.PolicyFile != "" {
		l.say("COMMANDS_POLICY_FILE",
			"has no effect without COMMANDS_HTTP, COMMANDS_SUBSCRIPTION_ID or SENDERS_FILE: set one of them, or unset it")
	}

	for _, x := range []struct{ variable, id string }{{"COMMANDS_SUBSCRIPTION_ID", c.CommandsSubscription},
		{"REPLIES_TOPIC_ID", c.RepliesTopic}} {
		if x.id != "" && !pubsub.IsTopicID(x.id) {
			l.say(x.variable, "must be an id alone: 3 to 255 letters, digits and -._~+%%, beginning with a letter")
		}
	}

	// Whoever takes commands or acts on them stores answers, and what is not published is never deleted.
	if (c.TakesCommands() || c.SendersFile != "") && c.RepliesTopic == "" {
		l.say("REPLIES_TOPIC_ID", "is needed with COMMANDS_HTTP, COMMANDS_SUBSCRIPTION_ID or SENDERS_FILE: "+
			"answers are stored until they are published there; name a topic, which may be one without a subscription")
	}

	if c.RepliesTopic != "" && (c.RepliesTopic == c.Topic || c.RepliesTopic == c.OtherTopic ||
		c.RepliesTopic == c.RetractionsTopic) {
		l.say("REPLIES_TOPIC_ID", "must be a topic of its own: consumers of events do not expect answers")
	}

	if c.CommandsPort < 0 || c.CommandsPort > 65535 {
		l.say("COMMANDS_PORT", "must be 1 to 65535, or 0 for PORT")
	}

	if c.CommandsPort != 0 && !c.CommandsHTTP {
		l.say("COMMANDS_PORT", "has no effect without COMMANDS_HTTP=true")
	}

	if c.CommandsPort != 0 && c.CommandsPort == c.Port {
		l.say("COMMANDS_PORT", "must be another port than PORT, or unset")
	}

	l.keeper()
}

func (l *loader) keeper() {
	c := l.c
	if c.KeeperSender != "" && !common.IsHexAddress(c.KeeperSender) {
		l.say("KEEPER_SENDER", "must be an address: 0x and 40 hexadecimal digits")
	}

	if c.KeeperSender != "" && c.SendersFile == "" {
		l.say("KEEPER_SENDER", "needs SENDERS_FILE, which names its key")
	}

	for _, x := range []struct{ variable, text string }{
		{"KEEPER_MIN_AMOUNT", c.KeeperMinAmount}, {"KEEPER_MAX_FEE", c.KeeperMaxFee}, {"KEEPER_DAY_FEES", c.KeeperDayFees},
	} {
		if n, ok := Wei(x.text); !ok || n.Sign() == 0 {
			l.say(x.variable, "must be wei: a whole number above 0")
		}
	}

	for _, p := range c.Payers() {
		if !common.IsHexAddress(p) {
			l.say("KEEPER_PAYERS", "must be addresses, comma-separated")
		}
	}
}

// Payers are those of KEEPER_PAYERS.
func (c *Config) Payers() (payers []string) {
	for p := range strings.SplitSeq(c.KeeperPayers, ",") {
		if p = strings.TrimSpace(p); p != "" {
			payers = append(payers, p)
		}
	}

	return payers
}

// Wei reads an amount: decimal digits only, below 2^256.
func Wei(text string) (*big.Int, bool) {
	if text == "" || len(text) > 78 || strings.Trim(text, "0123456789") != "" {
		return new(big.Int), false
	}

	n, ok := new(big.Int).SetString(text, 10)

	return n, ok && n.BitLen() <= 256
}
