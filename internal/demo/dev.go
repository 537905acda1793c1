package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/rpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
)

// DevOptions of a relayer to develop against. What is not named is brought along.
type DevOptions struct {
	Bin           string         // the relayer's binary
	RPC           string         // of a node; empty: a chain with the contracts and traffic
	Deploy        bool           // the factory, on the node of RPC, by the first account that it holds the key of
	Factory       common.Address // on the node of RPC, unless Deploy
	StartBlock    uint64         // of Factory
	Database      string         // URL; empty: a Postgres whose contents are gone at the end
	PubSub        string         // host:port to listen on
	Port          int            // of the relayer's page
	Confirmations uint64
	Interval      time.Duration // between two blocks of the chain that is brought along
	Reorganise    time.Duration // between two reorganisations of that chain; zero: none
	Quiet         bool          // no traffic on that chain
	Out           io.Writer     // messages: a line of JSON each
	Log           io.Writer     // everything else
}

// Names at the Pub/Sub server: those of .env.example.
const (
	devProject     = "local"
	devEvents      = "settlement.events.v1"
	devRetractions = "settlement.retractions.v1"
	devOther       = "settlement.other.v1"
	devDead        = "settlement.dead.v1"
)

// Pace of the chain that is brought along.
const (
	devPerBlock   = 2 // actions
	devDepth      = 3 // blocks of a reorganisation
	deployTimeout = time.Minute
	// stopWithin is longer than the relayer's own STOP_TIMEOUT.
	stopWithin = 12 * time.Second
)

// Check reports options that contradict each other.
func (o *DevOptions) Check() error {
	switch {
	case o.RPC == "" && (o.Deploy || o.Factory != common.Address{}):
		return errors.New("--deploy and --factory are of your node: name it by --rpc")
	case o.RPC == "" && o.Database != "":
		return errors.New("--database without --rpc: the chain is gone at the end and the database would remember it; " +
			"name your node by --rpc")
	case o.RPC != "" && o.Deploy == (o.Factory != common.Address{}):
		return errors.New("--rpc needs one of --deploy and --factory ADDRESS --start-block N")
	case o.RPC == "" && o.Interval < 100*time.Millisecond:
		return fmt.Errorf("--interval %s: must be 100ms or longer", o.Interval)
	}

	return nil
}

// dev is a running one.
type dev struct {
	o          DevOptions
	rpc        string
	factory    common.Address
	startBlock uint64
	sim        *testchain.Sim // nil: the node is the user's
	deployment testchain.Deployment
	database   string // of the relayer
	consumer   string // database for a consumer; empty: the Postgres is the user's
	pubsub     *testpubsub.Server
	dir        string // the relayer's log, and its settings for a shell
	closers    []func() error
}

// Dev runs one relayer until ctx ends. Everything that it started has ended when it returns.
func Dev(ctx context.Context, o DevOptions) (err error) {
	d := &dev{o: o, rpc: o.RPC, factory: o.Factory, startBlock: o.StartBlock, database: o.Database}
	defer func() {
		for _, end := range slices.Backward(d.closers) {
			err = errors.Join(err, end())
		}
	}()
	for _, begin := range []func(context.Context) error{d.openChain, d.openDatabase, d.openPubSub, d.run} {
		if err := begin(ctx); err != nil {
			if ctx.Err() != nil {
				return nil // a consequence of the end
			}

			return err
		}
	}

	return nil
}

func (d *dev) say(format string, args ...any) { fmt.Fprintf(d.o.Log, format+"\n", args...) }

func (d *dev) openChain(ctx context.Context) (err error) {
	if d.rpc == "" {
		d.say("starting a chain, one block every %s …", d.o.Interval)
		if d.sim, err = testchain.StartSim(testchain.Options{}); err != nil {
			return err
		}

		d.closers = append(d.closers, d.sim.Stop)
		if d.deployment, err = testchain.Deploy(ctx, d.sim); err != nil {
			return err
		}

		d.sim.SetInterval(d.o.Interval)
		d.rpc, d.factory, d.startBlock = d.sim.HTTP(), d.deployment.Factory, d.deployment.Block

		return nil
	}

	if !d.o.Deploy {
		return nil
	}

	ctx, cancel := context.WithTimeout(ctx, deployTimeout)
	defer cancel()
	d.factory, d.startBlock, err = deployByNode(ctx, d.rpc)

	return err
}

// deployByNode deploys the factory by the first account whose key the node holds, as development nodes do.
func deployByNode(ctx context.Context, url string) (factory common.Address, block uint64, err error) {
	node, err := rpc.DialContext(ctx, url)
	if err != nil {
		return factory, 0, fmt.Errorf("reach the node of --rpc: %w", err)
	}
	defer node.Close()
	var accounts []common.Address
	if err := node.CallContext(ctx, &accounts, "eth_accounts"); err != nil {
		return factory, 0, fmt.Errorf("ask the node of --rpc for its accounts: %w", err)
	}

	if len(accounts) == 0 {
		return factory, 0, errors.New("the node of --rpc holds no keys: deploy the factory yourself, and name it by --factory")
	}

	var hash common.Hash
	if err := node.CallContext(ctx, &hash, "eth_sendTransaction", map[string]any{
		"from": accounts[0], "gas": hexutil.Uint64(4_000_000),
		"data": hexutil.Bytes(common.FromHex(contracts.EscrowFactoryMetaData.Bin)),
	}); err != nil {
		return factory, 0, fmt.Errorf("deploy the factory: %w", err)
	}

	var receipt *struct {
		ContractAddress common.Address
		BlockNumber     hexutil.Uint64
		Status          hexutil.Uint64
	}
	var unread error
	err = lab.Until(ctx, 100*time.Millisecond, "a block with the deployment "+hash.Hex(), func() bool {
		unread = node.CallContext(ctx, &receipt, "eth_getTransactionReceipt", hash)
		return receipt != nil || unread != nil
	})
	switch {
	case unread != nil && ctx.Err() == nil:
		return factory, 0, fmt.Errorf("read the receipt of the deployment: %w", unread)
	case err != nil || receipt == nil:
		return factory, 0, fmt.Errorf("the deployment %s is in no block after %s: does the node mine", hash, deployTimeout)
	case receipt.Status == 0:
		return factory, 0, fmt.Errorf("the deployment %s failed on the chain", hash)
	}

	return receipt.ContractAddress, uint64(receipt.BlockNumber), nil
}

func (d *dev) openDatabase(ctx context.Context) error {
	if d.database != "" {
		return nil
	}

	d.say("starting Postgres …")
	server, err := testpg.Start(ctx, testpg.Options{})
	if err != nil {
		return err
	}

	d.closers = append(d.closers, func() error { return server.Stop(context.Background()) })
	for _, name := range []string{"relayer", "consumer"} {
		if err := server.CreateDatabase(ctx, name, ""); err != nil {
			return err
		}
	}

	d.database, d.consumer = server.URL("relayer"), server.URL("consumer")

	return nil
}

// devSubscription is as the documents create it, but that a refused message comes again within seconds.
func devSubscription(topic string) *pubsubpb.Subscription {
	s := &pubsubpb.Subscription{
		Name: testpubsub.SubscriptionName(devProject, topic+".consumer"), Topic: testpubsub.TopicName(devProject, topic),
		EnableMessageOrdering: true,
		RetryPolicy: &pubsubpb.RetryPolicy{MinimumBackoff: durationpb.New(time.Second),
			MaximumBackoff: durationpb.New(10 * time.Second)},
	}
	if topic != devDead {
		s.DeadLetterPolicy = &pubsubpb.DeadLetterPolicy{DeadLetterTopic: testpubsub.TopicName(devProject, devDead),
			MaxDeliveryAttempts: 5}
	}

	return s
}

// openPubSub starts the server, with a subscription to each topic for a consumer.
func (d *dev) openPubSub(ctx context.Context) (err error) {
	if d.pubsub, err = testpubsub.Start(ctx, testpubsub.Options{Addr: d.o.PubSub}); err != nil {
		return fmt.Errorf("%w; choose another address by --pubsub", err)
	}

	d.closers = append(d.closers, d.pubsub.Stop)
	for _, topic := range []string{devDead, devEvents, devRetractions, devOther} {
		d.pubsub.CreateTopic(devProject, topic)

		if err := d.pubsub.Subscribe(devSubscription(topic)); err != nil {
			return err
		}
	}

	return nil
}

// run starts the relayer, prints what it publishes, and stops it when ctx ends.
func (d *dev) run(ctx context.Context) (err error) {
	if d.dir, err = os.MkdirTemp("", "escrow-dev-"); err != nil {
		return err
	}

	d.closers = append(d.closers, func() error { return os.RemoveAll(d.dir) })
	chain, err := chainID(ctx, d.rpc)
	if err != nil {
		return err
	}

	settings := []string{"CHAIN_ID=" + chain, "RPC_URLS=" + d.rpc, "FACTORY_ADDRESS=" + d.factory.Hex(),
		"START_BLOCK=" + strconv.FormatUint(d.startBlock, 10), "DATABASE_URL=" + d.database,
		"PUBSUB_PROJECT_ID=" + devProject, "PUBSUB_TOPIC_ID=" + devEvents, "RETRACTIONS_TOPIC_ID=" + devRetractions,
		"PUBSUB_EMULATOR_HOST=" + d.pubsub.Addr(), "INSTANCE_ID=dev", "PARTITION_NUMBER=0", "TOTAL_PARTITIONS=1",
		"CONFIRMATIONS=" + strconv.FormatUint(d.o.Confirmations, 10), "HTTP_HOST=127.0.0.1",
		"PORT=" + strconv.Itoa(d.o.Port), "LOG_FORMAT=text"}
	if err := os.WriteFile(d.settings(), forShell(settings), 0o600); err != nil { // a database's URL has a password
		return err
	}

	log := filepath.Join(d.dir, "relayer.log")
	p, err := lab.StartRelayer("the relayer", d.o.Bin, append(os.Environ(), settings...), strconv.Itoa(d.o.Port), log)
	if err != nil {
		return err
	}

	p.LogFile = "below"
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWithin)
		defer cancel()
		if stopped := p.Stop(stop); err == nil {
			err = stopped
		}

		if err != nil { // the file goes with all others
			err = fmt.Errorf("%w\nThe end of its log:\n%s", err, lastLines(log))
		}
	}()
	ready, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := p.Ready(ready); err != nil {
		return err
	}

	d.introduce(p.URL, chain, log)

	return d.follow(ctx, p)
}

// settings is the file with the relayer's settings.
func (d *dev) settings() string { return filepath.Join(d.dir, "relayer.env") }

// forShell are lines that a shell reads.
func forShell(settings []string) (lines []byte) {
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		lines = fmt.Appendf(lines, "export %s='%s'\n", name, strings.ReplaceAll(value, "'", `'\''`))
	}

	return lines
}

// lastLines of a log.
func lastLines(log string) string {
	text, err := os.ReadFile(log)
	if err != nil {
		return err.Error()
	}

	return string(text[max(0, len(text)-3000):])
}

func chainID(ctx context.Context, url string) (string, error) {
	node, err := rpc.DialContext(ctx, url)
	if err != nil {
		return "", fmt.Errorf("reach the node of --rpc: %w", err)
	}
	defer node.Close()
	var id hexutil.Big
	if err := node.CallContext(ctx, &id, "eth_chainId"); err != nil {
		return "", fmt.Errorf("ask the node of --rpc for its chain: %w", err)
	}

	return id.ToInt().String(), nil
}

// introduce says what there is.
func (d *dev) introduce(page, chain, log string) {
	d.say("\nready   page %s   node %s (chain %s)   factory %s, from block %d   log %s", page, d.rpc, chain, d.factory,
		d.startBlock, log)
	d.say("\nA consumer sets\n\n  export PUBSUB_EMULATOR_HOST=%s PUBSUB_PROJECT_ID=%s", d.pubsub.Addr(), devProject)
	if d.consumer != "" {
		d.say("  export DATABASE_URL='%s'", d.consumer)
	}

	d.say("  export EVENTS_SUBSCRIPTION=%s.consumer RETRACTIONS_SUBSCRIPTION=%s.consumer", devEvents, devRetractions)
	d.say("\nThe relayer's own commands, such as `%s replay`, need its settings: . %s", d.o.Bin, d.settings())
	d.say("\nA message that it refuses five times is a dead letter: it is told here, and lies in\n%s.consumer. "+
		"Once the consumer is repaired, start it with both subscriptions set to that one.", devDead)
	if d.sim != nil {
		a := d.sim.Accounts()[9]
		d.say("An account with ether, for your own transactions: %s, key %#x", a.Address, crypto.FromECDSA(a.Key))
	}

	d.say("Each message that is published follows, a line of JSON. Ctrl-C ends it.\n")
}
