package bench

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

const (
	commandsMaxFee = "100000000000000000"     // wei per command: far above what any costs
	commandsDay    = "1000000000000000000000" // wei per day
	commandsArray  = 100                      // commands per message: the most that are allowed
	intakeCommands = 20_000
	intakePosters  = 16 // messages sent at the same time
)

// requester signs all commands.
var requester = testchain.Accounts(99, 1)[0]

// keys are senders with their files, and make commands for them.
type keys struct {
	lab     *lab.Lab
	senders []testchain.Account
	env     map[string]string // of a relayer that has the keys and takes commands over HTTP
	salt    atomic.Uint64
}

// openKeys starts a lab with keys for senders; the caller closes the lab.
func openKeys(ctx context.Context, o lab.Options, senders, inFlight int) (*keys, error) {
	l, err := lab.Start(ctx, o)
	if err != nil {
		return nil, err
	}

	l.PubSub.CreateTopic(lab.Project, lab.RepliesTopic) // nobody reads what is published there
	k, err := newKeys(l, senders, inFlight)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}

	return k, nil
}

// newKeys writes the files of senders. The first account and the last are no senders: they make escrows and deploy.
func newKeys(l *lab.Lab, senders, inFlight int) (*keys, error) {
	k := &keys{lab: l, senders: l.Chain.Accounts()[1 : 1+senders]}
	var entries []lab.Sender
	all := lab.Requester{Address: requester.Address, MaxOpen: 1 << 30}
	for i, a := range k.senders {
		entries = append(entries, lab.Sender{Account: a, Name: "s" + strconv.Itoa(i), MaxFee: commandsMaxFee,
			DayFees: commandsDay, DayValue: "0", MaxInFlight: inFlight})
		all.Allow = append(all.Allow, lab.Grant{Sender: a.Address, MaxFee: commandsMaxFee,
			Kinds: []string{"approve", "release", "refund"}})
	}

	env, err := l.CommandFiles(entries, []lab.Requester{all})
	if err != nil {
		return nil, err
	}

	env["LOG_LEVEL"] = "warn"
	k.env = env

	return k, nil
}

// sign makes a signed command. No two are equal.
func (k *keys) sign(kind command.Kind, sender int, escrow common.Address,
	notBefore time.Time) (*command.Signed, error) {
	c := command.Command{
		ChainID: k.lab.Chain.ChainID().Uint64(), Factory: k.lab.Contracts.Factory, Kind: kind,
		Sender: k.senders[sender].Address, Escrow: escrow, ExpiresAt: uint64(time.Now().Add(24 * time.Hour).Unix()),
		MaxFee: big.NewInt(1e17), Salt: common.BigToHash(new(big.Int).SetUint64(k.salt.Add(1))),
	}
	if !notBefore.IsZero() {
		c.NotBefore = uint64(notBefore.Unix())
	}

	return c.Sign(requester.Key)
}

// post sends one message of commands. That one is refused is an error.
func (k *keys) post(ctx context.Context, p *lab.Process, commands []*command.Signed) error {
	body, err := json.Marshal(commands)
	if err != nil {
		return err
	}

	return k.postBody(ctx, p, body, len(commands))
}

func (k *keys) postBody(ctx context.Context, p *lab.Process, body []byte, commands int) error {
	code, said, err := p.Post(ctx, "/commands", body)
	if err != nil {
		return err
	}

	var results []struct {
		Status int `json:"status"`
	}
	err = json.Unmarshal(said, &results)
	accepted := 0
	for _, r := range results {
		if r.Status == http.StatusAccepted {
			accepted++
		}
	}

	if err != nil || accepted != commands {
		return fmt.Errorf("%d of %d commands were accepted, HTTP status %d: %s", accepted, commands, code,
			said[:min(len(said), 300)])
	}

	return nil
}

// someEscrow is an address that was not used before.
func (k *keys) someEscrow() (a common.Address) {
	binary.BigEndian.PutUint64(a[:], k.salt.Add(1))
	return a
}

// intakeFigures measures an instance without keys: it verifies commands, claims what each would do,
// and stores them durably, nothing more. No command is due.
func intakeFigures(ctx context.Context, o *Options) (figures []Figure, err error) {
	node, err := testchain.StartSim(testchain.Options{Seed: 7, Accounts: 12})
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, node.Stop()) }()
	k, err := openKeys(ctx, lab.Options{Bin: o.Bin, Node: node, Postgres: testpg.Options{Durable: true}}, 10, 16)
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, k.lab.Close()) }()
	env := maps.Clone(k.env)
	delete(env, "SENDERS_FILE")
	p, err := k.lab.RunReady(ctx, "intake", 0, 1, env)
	if err != nil {
		return nil, err
	}

	var rates []float64
	for range o.Runs {
		rate, err := k.intake(ctx, p, max(commandsArray, o.scaled(intakeCommands)))
		if err != nil {
			return nil, err
		}

		o.say("commands: %.0f taken in per second", rate)
		rates = append(rates, rate)
	}

	return []Figure{{Name: "commands.intake", Unit: "commands/s", Q: 0.5, Least: 5000, Samples: rates}}, nil
}

// later is when the commands of intakeFigures become due: after the benchmark.
func later() time.Time { return time.Now().Add(12 * time.Hour) }

// intake signs n commands and measures how fast one instance takes them.
func (k *keys) intake(ctx context.Context, p *lab.Process, n int) (rate float64, err error) {
	bodies := make(chan []byte, n/commandsArray)
	for range n / commandsArray {
		commands := make([]*command.Signed, commandsArray)
		for i := range commands {
			if commands[i], err = k.sign(command.Approve, i%len(k.senders), k.someEscrow(), later()); err != nil {
				return 0, err
			}
		}

		body, err := json.Marshal(commands)
		if err != nil {
			return 0, err
		}

		bodies <- body
	}

	close(bodies)
	sent := len(bodies) * commandsArray
	start := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for range intakePosters {
		g.Go(func() error {
			for body := range bodies {
				if err := k.postBody(ctx, p, body, commandsArray); err != nil {
					return err
				}
			}

			return nil
		})
	}

	err = g.Wait()

	return perSecond(sent, time.Since(start)), err
}
