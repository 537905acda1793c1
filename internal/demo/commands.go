package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/ethclient"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

// Pace and amounts of the commands.
const (
	askEvery     = 2 * time.Second
	releaseDelay = 6               // seconds after its creation until an escrow is due
	releaseAfter = 8 * time.Second // not_before of the release
	rivalEvery   = 3               // so many escrows have one that somebody asks for a second time
	expireAfter  = time.Hour
	maxFee       = "5000000000000000" // wei
	dayFees      = "1000000000000000000"
	// deliverWithin bounds how long a requester looks for a relayer that takes his command, answerWithin how long all
	// answers may take after the last was asked for.
	deliverWithin = time.Minute
	answerWithin  = 2 * time.Minute
)

// commands is what a demo with --commands adds: a service that signs commands, the account that the
// relayers act through, and the answers. ask runs in one goroutine; what it has asked for is read
// when it has ended.
type commands struct {
	lab       *lab.Lab
	requester testchain.Account // of the service: it signs, and has no ether
	sender    testchain.Account // acts, as the arbiter of the escrows; each relayer has its key
	payer     *testchain.Wallet // creates the escrows
	payerAt   common.Address
	pubsub    *lab.Commands
	asked     []*command.Signed
}

// openCommands makes keys, policy and topics, and tells the relayers of them. None runs yet.
func openCommands(ctx context.Context, l *lab.Lab, seed uint64) (c *commands, err error) {
	all := l.Chain.Accounts()
	c = &commands{lab: l, requester: testchain.Accounts(seed^0x7e9, 1)[0], sender: all[trafficAccounts+1],
		payerAt: all[trafficAccounts].Address}
	if c.payer, err = testchain.OpenWallet(ctx, l.Chain.HTTP(), all[trafficAccounts]); err != nil {
		return c, err
	}

	defer func() {
		if err != nil {
			c.payer.Close()
		}
	}()
	if c.pubsub, err = l.OpenCommands(ctx); err != nil {
		return c, err
	}

	l.ChainEnv, err = l.CommandFiles(
		[]lab.Sender{{Account: c.sender, Name: "arbiter", MaxFee: maxFee, DayFees: dayFees}},
		[]lab.Requester{{Name: "settlement", Address: c.requester.Address, Allow: []lab.Grant{
			{Sender: c.sender.Address, Kinds: []string{"approve", "release"}, MaxFee: maxFee}}}})
	if err == nil {
		l.ChainEnv["COMMANDS_SUBSCRIPTION_ID"] = c.pubsub.Subscription
	}

	return c, err
}

// ask creates escrows and asks for their approval and release until ctx ends. What was begun is handed over.
func (c *commands) ask(ctx context.Context, relayers func() []*lab.Process,
	say func(format string, args ...any)) error {
	n := 0

	return lab.Every(ctx, askEvery, func() error {
		n++
		all, err := c.escrow(ctx, n)
		if err != nil {
			return unlessEnded(ctx, err)
		}

		if n == 1 {
			say("commands: a service signs approvals (sent by HTTP) and releases (by Pub/Sub) for %s", c.sender.Address)
		}

		for _, signed := range all {
			c.asked = append(c.asked, signed)
			if err := c.deliver(context.WithoutCancel(ctx), signed, relayers); err != nil {
				return err
			}
		}

		return nil
	})
}

// escrow creates one, and signs what is to happen to it: its approval, its release when it is due,
// and sometimes the same approval again, as a second service would that does not know of the first.
func (c *commands) escrow(ctx context.Context, n int) (all []*command.Signed, err error) {
	payee, salt := c.requester.Address, common.BigToHash(big.NewInt(int64(n)))
	data := contracts.NewEscrowFactory().PackCreateEscrowDeterministic(payee, big.NewInt(releaseDelay), 1,
		c.sender.Address, salt)
	if _, err := c.payer.Send(ctx, 0, testchain.Call{To: &c.lab.Contracts.Factory, Data: data,
		Value: big.NewInt(1000)}); err != nil {
		return nil, fmt.Errorf("create an escrow: %w", err)
	}

	fee, _ := new(big.Int).SetString(maxFee, 10)
	now := time.Now()
	approve := command.Command{
		ChainID: c.lab.Chain.ChainID().Uint64(), Factory: c.lab.Contracts.Factory, Kind: command.Approve,
		Sender: c.sender.Address, MaxFee: fee, ExpiresAt: uint64(now.Add(expireAfter).Unix()),
		Escrow:    c.lab.Contracts.Escrow(c.payerAt, payee, releaseDelay, 1, c.sender.Address, salt),
		Reference: fmt.Sprintf("order %d", n),
	}
	release := approve
	release.Kind, release.NotBefore = command.Release, uint64(now.Add(releaseAfter).Unix())
	rival := approve
	rival.Salt, rival.Reference = common.Hash{1}, approve.Reference+", again"

	for _, x := range []command.Command{approve, release, rival} {
		if x.Salt != (common.Hash{}) && n%rivalEvery != 0 {
			continue
		}

		signed, err := x.Sign(c.requester.Key)
		if err != nil {
			return nil, fmt.Errorf("sign a command: %w", err)
		}

		all = append(all, signed)
	}

	return all, nil
}

// deliver hands a command over until somebody has it: releases by Pub/Sub, the others to whichever
// relayer takes them. Sending a command again is harmless.
func (c *commands) deliver(ctx context.Context, s *command.Signed, relayers func() []*lab.Process) error {
	ctx, cancel := context.WithTimeout(ctx, deliverWithin)
	defer cancel()
	if s.Kind == command.Release {
		body, err := json.Marshal(s)
		if err != nil {
			return err
		}

		return c.pubsub.Publish(ctx, body)
	}

	takes := func(p *lab.Process) bool {
		once, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_, err := (&command.Client{URL: p.URL + "/chains/" + c.lab.Chain.ChainID().String()}).Send(once, s)
		refused := (*command.RefusedError)(nil)

		return err == nil || errors.As(err, &refused) && refused.Code != ""
	}

	return lab.Until(ctx, 100*time.Millisecond, "a relayer that takes command "+s.ID().Hex(),
		func() bool { return slices.ContainsFunc(relayers(), takes) })
}

// countFlight counts the commands that have a nonce and no answer.
const countFlight = `select count(*) from commands where state = 'sent'`

// awaitFlight waits a moment for commands to be under way, and says how many are.
func (c *commands) awaitFlight(ctx context.Context) (n int) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_ = lab.Until(ctx, 25*time.Millisecond, "commands", func() bool { // else there are none
		return c.lab.DB.QueryRow(ctx, countFlight).Scan(&n) == nil && n > 0
	})

	return n
}

// settle waits until there is an answer for each command. Blocks go on meanwhile.
func (c *commands) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	// Which are missing the audit says.
	_ = c.pubsub.Replies.WaitFor(ctx, func(all []testpubsub.Message) bool {
		answers, _ := finalAnswers(all)
		return !slices.ContainsFunc(c.asked, func(s *command.Signed) bool { return answers[s.ID()].Revision == 0 })
	})

	return context.Cause(context.WithoutCancel(ctx))
}

// finalAnswers are the newest ones by command, and how many there were that no requester can read.
func finalAnswers(all []testpubsub.Message) (answers map[common.Hash]command.Answer, unreadable int) {
	answers = map[common.Hash]command.Answer{}
	for _, m := range all {
		a, err := command.DecodeAnswer(m.Data)
		if err != nil {
			unreadable++
			continue
		}

		if id := common.HexToHash(a.CommandID); a.Final() && a.Revision >= answers[id].Revision {
			answers[id] = a
		}
	}

	return answers, unreadable
}

// commandsAudit is what the chain, read from the first block on, and the answers say of the commands.
type commandsAudit struct {
	asked, accepted, refused int
	done, already            int // of those that were accepted
	transactions             int // of the sender, whatever they did
	effects                  int // of them, those that did what a command asks for
	doubles                  int // of them, those beyond the first for one act on one escrow
	answers, missing         int
	contradicted             []string // answers that the chain contradicts, and transactions that belong to none
}

func (a *commandsAudit) clean() bool {
	return a.doubles == 0 && a.missing == 0 && len(a.contradicted) == 0 && a.accepted > 0
}

// act is what a transaction of the sender did.
type act struct {
	to      common.Address
	data    string
	done    bool // it succeeded, and the escrow said so
	claimed bool // by an answer
}

// audit compares the chain, which stands still, with the answers.
func (c *commands) audit(ctx context.Context) (*commandsAudit, error) {
	acts, err := c.acts(ctx)
	if err != nil {
		return nil, err
	}

	a := &commandsAudit{asked: len(c.asked), transactions: len(acts)}
	answers, unreadable := finalAnswers(c.pubsub.Replies.Messages())
	for range unreadable {
		a.contradicted = append(a.contradicted, "an answer that cannot be read")
	}

	for _, s := range c.asked {
		a.judge(s, answers[s.ID()], acts)
	}

	seen := map[string]bool{}
	for hash, x := range acts {
		if key := x.to.Hex() + x.data; seen[key] {
			a.doubles++
		} else {
			seen[key] = true
		}

		if x.done {
			a.effects++
		}

		if !x.claimed {
			a.contradicted = append(a.contradicted, fmt.Sprintf("transaction %s is in no answer", hash))
		}
	}

	return a, nil
}

// judge holds a command's answer against what was done on the chain. Without an answer it is the zero value.
func (a *commandsAudit) judge(s *command.Signed, answer command.Answer, acts map[common.Hash]*act) {
	if answer.Revision == 0 {
		a.missing++
		return
	}

	a.answers++
	if answer.State == command.Refused {
		a.refused++
	} else {
		a.accepted++
	}

	x := acts[common.HexToHash(answer.Transaction)]
	if x != nil && answer.State != command.Already {
		x.claimed = true
	}

	done := answer.State == command.Done || answer.State == command.DoneLate
	if done {
		a.done++
	} else if answer.State == command.Already {
		a.already++
	}

	claimsWhatIsNot := done && (x == nil || !x.done || x.to != s.Escrow)
	hidesWhatIs := !done && answer.State != command.Already && x != nil && x.done
	if claimsWhatIsNot || hidesWhatIs {
		a.contradicted = append(a.contradicted, fmt.Sprintf("%s of %s was answered %s, by transaction %q", s.Kind, s.Escrow,
			answer.State, answer.Transaction))
	}
}

// acts reads every transaction of the sender from the chain.
func (c *commands) acts(ctx context.Context) (map[common.Hash]*act, error) {
	node, err := ethclient.DialContext(ctx, c.lab.Chain.HTTP())
	if err != nil {
		return nil, err
	}
	defer node.Close()
	head, err := node.BlockNumber(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the head: %w", err)
	}

	signer, acts := types.LatestSignerForChainID(c.lab.Chain.ChainID()), map[common.Hash]*act{}
	for n := c.lab.Contracts.Block; n <= head; n++ {
		block, err := node.BlockByNumber(ctx, new(big.Int).SetUint64(n))
		if err != nil {
			return nil, fmt.Errorf("read block %d: %w", n, err)
		}

		for _, tx := range block.Transactions() {
			if from, err := types.Sender(signer, tx); err != nil || from != c.sender.Address {
				continue
			}

			r, err := node.TransactionReceipt(ctx, tx.Hash())
			if err != nil {
				return nil, fmt.Errorf("read the receipt of %s: %w", tx.Hash(), err)
			}

			acts[tx.Hash()] = &act{to: *tx.To(), data: string(tx.Data()), done: r.Status == types.ReceiptStatusSuccessful &&
				slices.ContainsFunc(r.Logs, func(l *types.Log) bool { return l.Address == *tx.To() })}
		}
	}

	return acts, nil
}

// reportCommands says what came of the commands.
func (s *scene) reportCommands(a *commandsAudit) {
	out := s.o.Out
	for _, gap := range s.gaps(&s.owning) {
		length := gap.length.Round(time.Millisecond)
		fmt.Fprintf(out, "sender    %s: nobody acted for %s, then %s\n", gap.cause, length, gap.next)
	}

	fmt.Fprintf(out, "commands  signed %d: accepted %d (done %d, done already %d, without effect %d), "+
		"refused %d (another was first)\n", a.asked, a.accepted, a.done, a.already, a.accepted-a.done-a.already, a.refused)
	fmt.Fprintf(out, "          on the chain: transactions %d, effects %d, doubles %d; answers %d, missing %d, contradicted %d\n",
		a.transactions, a.effects, a.doubles, a.answers, a.missing, len(a.contradicted))
	for _, c := range a.contradicted[:min(len(a.contradicted), 10)] {
		fmt.Fprintf(out, "          %s\n", c)
	}
}
