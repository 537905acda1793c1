package relayer

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/relayer/command/intake"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
	"github.com/fusion-prime/escrow-relayer/relayer/command/sign"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
	"github.com/fusion-prime/escrow-relayer/relayer/publish"
	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/start"
)

// commands receives commands, acts on them, and answers. A part that is not configured is nil and
// does not run. Whatever depends on a session is created for each tenure.
//
// newCommands sets the first group of fields; open and openKeys set the second before it is used. Only handover,
// which belongs to the publisher of answers, changes afterwards.
type commands struct {
	accounts []send.Account
	senders  *send.Metrics
	policy   *intake.Policy
	taking   *intake.Metrics
	replies  *publish.Metrics

	intake   *intake.Intake
	signers  []evm.Signer // of accounts, in the same order
	client   *pubsub.Client
	handover publish.Handover // from one publisher of answers to the next
}

// newCommands reads the files that the configuration names, without opening connections.
func newCommands(cfg *config.Config, reg prometheus.Registerer) (c *commands, err error) {
	c = &commands{}
	var names []string
	if cfg.SendersFile != "" {
		if c.accounts, err = send.OpenAccounts(cfg.SendersFile); err != nil {
			return nil, fmt.Errorf("SENDERS_FILE: %w", err)
		}

		for i := range c.accounts {
			a := &c.accounts[i]
			a.Name = cmp.Or(a.Name, a.Address.Hex())
			names = append(names, a.Name)
		}
	}

	if cfg.HasCommands() {
		c.senders = send.NewMetrics(reg, names)
	}

	if k := cfg.Keeper; k != nil &&
		!slices.ContainsFunc(c.accounts, func(a send.Account) bool { return a.Address == k.Sender }) {
		return nil, fmt.Errorf("KEEPER_SENDER=%s: SENDERS_FILE has no such sender", cfg.KeeperSender)
	}

	if cfg.PolicyFile != "" {
		if c.policy, err = intake.OpenPolicy(cfg.PolicyFile); err != nil {
			return nil, fmt.Errorf("COMMANDS_POLICY_FILE: %w", err)
		}
	}

	if cfg.TakesCommands() {
		c.taking = intake.NewMetrics(reg)
	}

	if cfg.RepliesTopic != "" {
		c.replies = publish.NewAnswerMetrics(reg)
	}

	return c, nil
}

// openKeys opens the signers of the accounts.
func (r *Relayer) openKeys(ctx context.Context) error {
	for _, a := range r.commands.accounts {
		signer, err := openSigner(ctx, a)
		if err != nil {
			return fmt.Errorf("%w: %w", start.ErrKeys, err)
		}

		r.commands.signers = append(r.commands.signers, signer)
	}

	return nil
}

// open creates what outlives the tenures: the intake, the connection to Pub/Sub.
func (c *commands) open(ctx context.Context, r *Relayer) (err error) {
	if c.taking != nil {
		c.intake = intake.New(intake.Config{
			DB: r.db.Pool, ChainID: r.cfg.ChainID, Factories: r.followed, Policy: c.policy, Metrics: c.taking,
			Log: r.component("intake"),
		})
	}

	if c.replies != nil {
		c.client, err = pubsub.New(ctx, pubsub.Config{Project: r.cfg.Project, Options: pubsub.At(r.cfg.PubSubEndpoint),
			Log: r.component("replies")})
	}

	return err
}

// close frees the connections and the keys.
func (c *commands) close() {
	for _, s := range c.signers {
		if k, ok := s.(interface{ Close() error }); ok {
			_ = k.Close() // the senders have ended
		}
	}

	if c.client != nil {
		_ = c.client.Close()
	}
}

func openSigner(ctx context.Context, a send.Account) (evm.Signer, error) {
	switch {
	case a.KMS != "":
		return sign.OpenKMS(ctx, a.Address, a.KMS)
	case a.Web3Signer != "":
		return sign.OpenRemote(ctx, a.Address, sign.Remote{URL: a.Web3Signer, ClientCert: a.ClientCert,
			ClientKey: a.ClientKey, ServerCA: a.ServerCA})
	}

	return sign.OpenKeystore(a.Address, a.Keystore, a.PasswordFile)
}

// handler serves commands on PORT, with everything else; nil if they have a separate port, or HTTP
// is off for them.
func (c *commands) handler(cfg *config.Config) http.Handler {
	if c.intake == nil || !cfg.CommandsHTTP || cfg.CommandsPort != 0 {
		return nil
	}

	return c.intake.Handler()
}

// channels are the notifications that a tenure's session must listen for.
func (c *commands) channels() (channels []string) {
	if len(c.accounts) > 0 {
		channels = append(channels, send.Channel, send.ReleaseChannel)
	}

	if c.replies != nil {
		channels = append(channels, outbox.AnswersChannel)
	}

	return channels
}

// take receives commands, from the subscription and over HTTP. It needs no session: several
// instances may receive the same command, and one stores it.
func (c *commands) take(ctx context.Context, r *Relayer) error {
	if c.intake == nil {
		return nil
	}

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.intake.Run(ctx) })
	if r.cfg.CommandsSubscription != "" {
		g.Go(func() error {
			return c.intake.Receive(ctx, r.cfg.Project, r.cfg.CommandsSubscription,
				pubsub.At(r.cfg.PubSubEndpoint)...)
		})
	}

	if r.cfg.CommandsHTTP && r.cfg.CommandsPort != 0 {
		g.Go(func() error { return c.serve(ctx, r) })
	}

	return g.Wait()
}

// serve serves commands on COMMANDS_PORT, behind the token of HTTP_TOKEN_FILE.
func (c *commands) serve(ctx context.Context, r *Relayer) error {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(r.cfg.HTTPHost, strconv.Itoa(r.cfg.CommandsPort)))
	if err != nil {
		return fmt.Errorf("serve commands: %w: set COMMANDS_PORT to a free port", err)
	}

	return r.front.Gate().Serve(ctx, "commands", ln, r.front.Guard(c.intake.Handler()), r.component("intake"))
}

// work acts on commands and publishes their answers, with the locks that this instance holds, until
// ctx ends or the session is lost.
func (c *commands) work(ctx context.Context, t *tenure) error {
	g, ctx := errgroup.WithContext(ctx)
	if len(c.signers) > 0 {
		g.Go(func() error { return send.Own(ctx, t.session, c.configs(t)) })
	}

	if c.senders != nil {
		g.Go(func() error {
			return election.While(ctx, t.session, election.Lock{Purpose: election.Follow, ChainID: t.r.cfg.ChainID},
				t.r.component("sender"), func() time.Duration { return followRetry },
				func(ctx context.Context) { send.Follow(ctx, c.following(t), 0) })
		})
	}

	if c.client != nil {
		g.Go(func() error {
			return election.While(ctx, t.session, election.Lock{Purpose: election.Replies, ChainID: t.r.cfg.ChainID},
				t.r.component("replies"), func() time.Duration { return repliesRetry },
				func(ctx context.Context) { c.publish(ctx, t) })
		})
	}

	return g.Wait()
}

// publish publishes answers until ctx ends, or the session does.
func (c *commands) publish(ctx context.Context, t *tenure) {
	p, err := publish.NewAnswers(publish.Config{
		DB: t.r.db.Pool, ChainID: t.r.cfg.ChainID, Sender: c.client,
		Topics: pubsub.Topics{Default: t.r.cfg.RepliesTopic},
		Hint:   t.session.Hint(outbox.AnswersChannel), Valid: t.session.Valid, Handover: &c.handover, Metrics: c.replies,
		Log: t.r.component("replies"),
	})
	if err == nil {
		err = p.Run(ctx)
	}

	if err != nil && ctx.Err() == nil {
		t.r.component("replies").WarnContext(ctx, "answers are left to another instance", slog.Any("err", err))
	}
}

// repliesRetry is the pause between two attempts to become the instance that publishes answers.
const repliesRetry = time.Second

// followRetry is the pause between two attempts to become the instance that follows senders without an owner.
const followRetry = 5 * time.Second

// following is the configuration for following senders without an owner.
func (c *commands) following(t *tenure) send.Config {
	return send.Config{
		DB: t.r.db.Pool, ChainID: t.r.cfg.ChainID, InstanceID: t.r.cfg.InstanceID,
		Chain: evm.NewNodes(t.r.source), Log: t.r.component("follower"), Metrics: c.senders,
		Valid: t.session.Valid,
	}
}

// configs returns the configuration of each sender of a tenure.
func (c *commands) configs(t *tenure) []send.Config {
	nodes := evm.NewNodes(t.r.source)
	configs := make([]send.Config, len(c.accounts))
	for i, a := range c.accounts {
		configs[i] = send.Config{
			Name: a.Name, DB: t.r.db.Pool, ChainID: t.r.cfg.ChainID, InstanceID: t.r.cfg.InstanceID,
			Chain: nodes, Signer: c.signers[i],
			Limits: a.Limits, Log: t.r.component("sender"), Metrics: c.senders,
		}
		if c.policy != nil { // a nil *intake.Policy must not become an interface that is not nil
			configs[i].Policy = c.policy
		}

		if k := t.r.cfg.Keeper; k != nil && k.Sender == a.Address {
			configs[i].Keeper = &send.Keeper{MinAmount: k.MinAmount, MaxFee: k.MaxFee, DayFees: k.DayFees, Payers: k.Payers}
		}
	}

	return configs
}
