// Package lab sets up everything a fleet of relayers needs on one machine, and runs real relayer
// processes against it: a Postgres, a chain with the contracts, a Pub/Sub server, and what that was given. The demo,
// the fleet tests, the chaos harness and the benchmarks share it.
package lab

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/internal/port"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
)

// Names at the Pub/Sub server.
const (
	Project     = "lab-project"
	Topic       = "escrow-events"
	Retractions = "escrow-retractions"
)

// Options of a lab.
type Options struct {
	Bin           string         // the relayer's binary
	Node          testchain.Node // zero: a simulated chain, which mines on demand
	Seed          uint64
	Confirmations int               // zero means 2
	Postgres      testpg.Options    // of the lab's own server
	Server        *testpg.Server    // has a migrated database for the lab; nil: one of the lab's own, with an empty one
	Env           map[string]string // for every relayer, over the lab's own
	ChainEnv      map[string]string // of this chain alone: in a file that lists several, of its entry
	RPC           []string          // endpoints that relayers use; zero: the node's, http and ws in turn
	DatabaseURL   string            // that relayers use, e.g. a proxy's; zero: Postgres itself
	PubSubAddr    string            // likewise
}

// Lab is a running one. Its methods may be called concurrently, except Close.
type Lab struct {
	Options
	PG        *testpg.Server
	Database  string // its name
	URL       string // of the database
	DB        *pgxpool.Pool
	Chain     testchain.Node
	Contracts testchain.Deployment
	Factories []common.Address // that relayers follow, once they start
	PubSub    *testpubsub.Server
	Received  *testpubsub.Recorder // of Topic
	Retracted *testpubsub.Recorder // of Retractions
	Dir       string               // logs of the relayers
	closers   *closers             // a pointer: what a copy of a lab starts ends with the lab
	of        *Lab                 // beside which this one is; nil: none
}

type closers struct {
	mu  sync.Mutex
	all []func() error
}

// Start sets up a lab. ctx bounds the start only.
func Start(ctx context.Context, o Options) (l *Lab, err error) {
	o.Confirmations = cmp.Or(o.Confirmations, 2)
	l = &Lab{Options: o, Chain: o.Node, closers: &closers{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	if l.Dir, err = os.MkdirTemp("", "escrow-lab-"); err != nil {
		return l, err
	}

	if err := l.openDatabase(ctx); err != nil {
		return l, err
	}

	if l.Chain == nil {
		if l.Chain, err = testchain.StartSim(testchain.Options{Seed: o.Seed}); err != nil {
			return l, err
		}

		l.later(l.Chain.Stop)
	}

	if err := l.deploy(ctx); err != nil {
		return l, err
	}

	return l, l.openPubSub(ctx)
}

func (l *Lab) deploy(ctx context.Context) (err error) {
	l.Contracts, err = testchain.Deploy(ctx, l.Chain)
	l.Factories = []common.Address{l.Contracts.Factory}

	return err
}

func (l *Lab) openDatabase(ctx context.Context) (err error) {
	if l.PG = l.Server; l.PG == nil {
		if l.PG, err = testpg.Start(ctx, l.Postgres); err != nil {
			return err
		}

		l.later(func() error { return l.PG.Stop(context.Background()) })
		l.Database = "relayer"
		err = l.PG.CreateDatabase(ctx, l.Database, "")
	} else {
		l.Database = "relayer_" + strings.ToLower(rand.Text())
		err = l.copyTemplate(ctx)
	}

	if err != nil {
		return err
	}

	l.URL = l.PG.URL(l.Database)
	if l.DB, err = pgxpool.New(ctx, l.URL); err != nil {
		return err
	}

	l.later(func() error { l.DB.Close(); return nil })

	return nil
}

func (l *Lab) copyTemplate(ctx context.Context) error {
	template, err := l.PG.Template(ctx)
	if err != nil {
		return err
	}

	l.later(func() error { return l.PG.DropDatabase(context.Background(), l.Database) })

	return l.PG.CreateDatabase(ctx, l.Database, template)
}

// AnotherDatabase makes an empty database beside the lab's, which goes with the lab, and returns its URL.
func (l *Lab) AnotherDatabase(ctx context.Context, suffix string) (url string, err error) {
	name := l.Database + "_" + suffix
	l.later(func() error { return l.PG.DropDatabase(context.Background(), name) })

	return l.PG.URL(name), l.PG.CreateDatabase(ctx, name, "")
}

// openPubSub starts the server, and records what comes on the two topics.
func (l *Lab) openPubSub(ctx context.Context) (err error) {
	if l.PubSub, err = testpubsub.Start(ctx, testpubsub.Options{}); err != nil {
		return err
	}

	l.later(l.PubSub.Stop)
	l.recordEvents()

	return nil
}

func (l *Lab) recordEvents() {
	l.Received, l.Retracted = l.record(Topic+l.suffix()), l.record(Retractions+l.suffix())
}

// record creates a topic and records what comes there, until the lab is closed.
func (l *Lab) record(topic string) *testpubsub.Recorder {
	l.PubSub.CreateTopic(Project, topic)

	r := l.PubSub.Tap(testpubsub.TopicName(Project, topic))
	l.later(r.Stop)

	return r
}

func (l *Lab) later(f func() error) {
	l.closers.mu.Lock()
	defer l.closers.mu.Unlock()
	l.closers.all = append(l.closers.all, f)
}

// Close ends everything that Start started and every relayer, the last first. The logs stay in Dir.
func (l *Lab) Close() error {
	l.closers.mu.Lock()
	all := l.closers.all
	l.closers.all = nil
	l.closers.mu.Unlock()
	var errs []error
	for _, f := range slices.Backward(all) {
		errs = append(errs, f())
	}

	return errors.Join(errs...)
}

// Environ is the environment of a relayer, without anything of this process's own but PATH and HOME.
func (l *Lab) Environ(id string, number, total int, env map[string]string) []string {
	return merge(l.common(id, number, total), l.ofChain(number), l.Env, env)
}

// common are the variables that hold for every chain of a relayer.
func (l *Lab) common(id string, number, total int) map[string]string {
	return map[string]string{
		"PATH": os.Getenv("PATH"), "HOME": os.Getenv("HOME"), "PUBSUB_PROJECT_ID": Project,
		"PUBSUB_EMULATOR_HOST": cmp.Or(l.PubSubAddr, l.PubSub.Addr()),
		"DATABASE_URL":         cmp.Or(l.DatabaseURL, l.URL), "INSTANCE_ID": id,
		"PARTITION_NUMBER": strconv.Itoa(number), "TOTAL_PARTITIONS": strconv.Itoa(total),
		"CONFIRMATIONS": strconv.Itoa(l.Confirmations),
		"HTTP_HOST":     "127.0.0.1",
		"LOG_FORMAT":    "json", "HEARTBEAT_INTERVAL": "2s", "VERIFY_INTERVAL": "1s",
	}
}

// ofChain are the variables that each chain of a relayer has for itself.
func (l *Lab) ofChain(number int) map[string]string {
	rpc := l.RPC
	if len(rpc) == 0 {
		rpc = []string{l.Chain.HTTP()}
		if number%2 == 0 {
			rpc = []string{l.Chain.WS(), l.Chain.HTTP()}
		}
	}

	var factories []string
	for _, f := range l.Factories {
		factories = append(factories, f.Hex())
	}

	own := map[string]string{
		"CHAIN_ID": l.Chain.ChainID().String(), "RPC_URLS": strings.Join(rpc, ","),
		"FACTORY_ADDRESS": strings.Join(factories, ","), "START_BLOCK": strconv.FormatUint(l.Contracts.Block, 10),
		"PUBSUB_TOPIC_ID": Topic + l.suffix(), "RETRACTIONS_TOPIC_ID": Retractions + l.suffix(),
	}
	maps.Copy(own, l.ChainEnv)

	return own
}

// merge makes an environment of variables; later ones win.
func merge(each ...map[string]string) (list []string) {
	all := map[string]string{}
	for _, m := range each {
		maps.Copy(all, m)
	}

	for k, v := range all {
		list = append(list, k+"="+v)
	}

	return list
}

// Port is one that is this lab's until it is closed.
func (l *Lab) Port() (string, error) {
	r, err := port.Reserve()
	if err != nil {
		return "", err
	}

	l.later(r.Close)

	return strconv.Itoa(r.Number), nil
}

// Run starts a relayer process, at the PORT of env or a free one, and does not wait for it to be ready.
func (l *Lab) Run(id string, number, total int, env map[string]string) (*Process, error) {
	return l.run(id, l.Environ(id, number, total, env), env["PORT"])
}

// run starts a relayer process at a port; empty: one that is free.
func (l *Lab) run(id string, environ []string, port string) (p *Process, err error) {
	if port == "" {
		if port, err = l.Port(); err != nil {
			return nil, err
		}
	}

	if p, err = StartRelayer(id, l.Bin, environ, port, filepath.Join(l.Dir, id+".log")); err != nil {
		return nil, err
	}

	l.later(func() error { p.Kill(); return nil })

	return p, nil
}

// RunReady starts a relayer process and waits until it is ready.
func (l *Lab) RunReady(ctx context.Context, id string, number, total int, env map[string]string) (*Process, error) {
	p, err := l.Run(id, number, total, env)
	if err != nil {
		return nil, err
	}

	return p, p.Ready(ctx)
}

// Head is the newest block of the chain.
func (l *Lab) Head(ctx context.Context) (uint64, error) { return l.Chain.Client().BlockNumber(ctx) }

// Every does something once per interval until ctx ends, which is no error, or it fails.
func Every(ctx context.Context, interval time.Duration, do func() error) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}

		if err := do(); err != nil {
			return err
		}
	}
}

// Until asks once per interval until the answer is yes. Its error says what it has waited for.
func Until(ctx context.Context, interval time.Duration, what string, ask func() bool) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for !ask() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, context.Cause(ctx))
		case <-ticker.C:
		}
	}

	return nil
}
