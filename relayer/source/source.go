// Package source is the chain as the relayer reads it: several nodes, none of which is trusted, as one.
//
//	node ─ heads ──► ring of headers ──► View ──► Changed
//	  ▲                    │
//	  └── ask, fail over ◄─┴── Read: ranges up to Final, several in flight; then block by block
//
// Package node tests each answer and keeps each endpoint's health; package rpc sends and judges
// words. Here the answers of several are put together: which node is asked, how far the chain may
// be read, and that what is read hangs together. Above View.Final blocks are read one by one by
// their hash, with parents linked. A node that lags is not asked for what it does not have, and is
// never taken for a reorganisation.
//
// An empty answer proves nothing by itself: behind one URL are machines that are not equally far,
// and some answer an unknown block with an empty list. Below Final the range's last header comes in
// the same batch. Above it, a block without logs is believed when its bloom filter excludes them,
// or when an endpoint shows all the block's logs, which together make up its bloom filter.
//
// What is not promised: a node that leaves out some of a block's logs, under the right hash, is
// believed unless the bloom filter speaks against it; ReadOther exists so that a verifier can ask
// somebody else.
package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fusion-prime/escrow-relayer/relayer/node"
	"github.com/fusion-prime/escrow-relayer/relayer/redact"
	"github.com/fusion-prime/escrow-relayer/relayer/rpc"
)

// The words of the packages below that are used with a Source.
type (
	Header = rpc.Header
	Filter = node.Filter
	Batch  = node.Batch
	// EndpointStatus is what an operator sees of an endpoint.
	EndpointStatus = node.Status
	// Examination is what questions told about one endpoint.
	Examination = node.Examination
)

var (
	// ErrBehind means that no node that can be asked has the block yet. It says nothing about what is in the block.
	ErrBehind = rpc.ErrBehind
	// ErrDisagree means that nodes, or two answers of one, contradict each other about a block. Asking
	// again later decides.
	ErrDisagree = node.ErrDisagree
	// ErrWrongChain means that an endpoint serves another chain than CHAIN_ID.
	ErrWrongChain = node.ErrWrongChain
	// ErrNoHistory means that the endpoints answer, but keep nothing of a block that is so old. An archive node does.
	ErrNoHistory = node.ErrNoHistory
	// ErrNoCode means that there is no contract at the factory's address.
	ErrNoCode = errors.New("no contract at the factory's address")
	// ErrUnavailable means that no endpoint can be asked now.
	ErrUnavailable = errors.New("no RPC endpoint is available")
)

// What Config.Finality may be: which block may be processed.
const (
	Confirmations = "confirmations" // the head less Config.Confirmations
	Safe          = "safe"          // what the node calls safe
	Finalized     = "finalized"     // what the node calls finalized
	Latest        = "latest"        // the head
)

// viewHold is how long a View stands when no endpoint vouches for it any more. A node that lags
// must not turn the clock back; one that invented a head must not stop it.
const viewHold = time.Minute

// Config of a Source.
type Config struct {
	// URLs of the nodes, http, https, ws or wss; the first that works is used. Required.
	URLs []string
	// ChainID that every node must serve. Required.
	ChainID uint64
	// Finality: Confirmations, Safe, Finalized or Latest. Empty: Confirmations.
	Finality string
	// Confirmations is how many blocks must lie on top of one that is processed. Only with that Finality.
	Confirmations uint64
	// PollInterval is the longest pause between two looks at the head once a block is due, where the node
	// does not announce it. Zero: 1 s.
	PollInterval time.Duration
	// Timeout of one request. Zero: 10 s.
	Timeout time.Duration
	// MaxRPS is how many requests per second an endpoint gets. Zero: what it is found to allow.
	MaxRPS float64
	// MaxRange is how many blocks one request asks for at most. Less is found out. Zero: 10,000.
	MaxRange uint64
	// MaxAddresses in one request. Zero: 1,000, geth's default limit.
	MaxAddresses int
	// MaxBytes bounds the answer to one request for the logs of a range. Zero: a sixteenth of Go's
	// memory limit, 8 to 32 MB; 16 MB without one.
	MaxBytes int64
	// Dial opens connections. Nil: the network.
	Dial rpc.Dial
	// Logger. Nil: none.
	Logger *slog.Logger
	// Registerer of the metrics. Nil: none.
	Registerer prometheus.Registerer
	// Rand gives numbers in [0,1) for jitter. Nil: math/rand.
	Rand func() float64
	// Now tells the time. Nil: time.Now.
	Now func() time.Time
}

// complete checks what is set, and sets what is not.
func (c *Config) complete() error {
	c.Finality = cmp.Or(c.Finality, Confirmations)
	err := c.check()
	c.PollInterval = cmp.Or(c.PollInterval, time.Second)
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
	c.MaxRange = cmp.Or(c.MaxRange, 10_000)
	c.MaxAddresses = cmp.Or(c.MaxAddresses, 1000)
	if c.MaxBytes == 0 {
		c.MaxBytes = answerLimit(debug.SetMemoryLimit(-1))
	}

	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}

	if c.Rand == nil {
		c.Rand = rand.Float64
	}

	if c.Now == nil {
		c.Now = time.Now
	}

	return err
}

func (c *Config) check() error {
	var errs []error
	if len(c.URLs) == 0 {
		errs = append(errs, errors.New("no RPC URL: set RPC_URLS"))
	}

	for i, raw := range c.URLs {
		u, err := url.Parse(strings.TrimSpace(raw))
		if err != nil || u.Host == "" || !slices.Contains([]string{"http", "https", "ws", "wss"}, strings.ToLower(u.Scheme)) {
			errs = append(errs, fmt.Errorf("RPC URL %d (%s) is not a URL of http, https, ws or wss: correct RPC_URLS", i,
				redact.URL(raw)))
		}
	}

	if c.ChainID == 0 {
		errs = append(errs, errors.New("chain id is 0: set CHAIN_ID"))
	}

	if !slices.Contains([]string{Confirmations, Safe, Finalized, Latest}, c.Finality) {
		errs = append(errs, fmt.Errorf("finality %q is unknown: set FINALITY to confirmations, safe, finalized or latest",
			c.Finality))
	}

	if c.PollInterval < 0 || c.Timeout < 0 || c.MaxRPS < 0 || c.MaxAddresses < 0 || c.MaxBytes < 0 {
		errs = append(errs, errors.New("poll interval, timeout, requests per second, addresses per request and bytes per answer must not be negative"))
	}

	return errors.Join(errs...)
}

// tagsDecide says whether the endpoints' tags decide what is processed.
func (c *Config) tagsDecide() bool { return c.Finality == Safe || c.Finality == Finalized }

// answerLimit is how large one answer may be where so much memory may be used, in bytes: four are
// in flight, and each is held once as it came and once decoded.
func answerLimit(memory int64) int64 {
	const least, usual, most = 8 << 20, 16 << 20, 32 << 20
	if memory > 1<<40 { // no limit is set
		return usual
	}

	return min(max(memory/16, least), most)
}

// Source reads the chain. Its methods, and those of its parts, may be called concurrently; View,
// Changed and Health mean something while Run runs.
type Source struct {
	*pool     // Endpoints, Canonical
	*outlook  // View, Changed
	*follower // what Run runs
	*reader   // Read, ReadOther

	cfg     *Config
	secrets *redact.Secrets
	running atomic.Bool
}

// New checks the configuration and starts nothing.
func New(cfg Config) (*Source, error) {
	cfg.URLs = slices.Clone(cfg.URLs)
	if err := cfg.complete(); err != nil {
		return nil, err
	}

	s := &Source{cfg: &cfg, secrets: redact.New(cfg.URLs...)}
	names := endpointNames(cfg.URLs)
	s.pool = &pool{metrics: node.NewMetrics(cfg.Registerer, names)}
	s.outlook = &outlook{cfg: &cfg, claims: s.pool.claims, changed: make(chan struct{})}
	s.pool.farBehind = s.outlook.farBehind
	for i, raw := range cfg.URLs {
		s.nodes = append(s.nodes, node.New(s.nodeConfig(names[i], raw)))
	}

	ring := newRing()
	s.follower = &follower{cfg: &cfg, pool: s.pool, outlook: s.outlook, ring: ring}
	s.reader = &reader{pool: s.pool, outlook: s.outlook, ring: ring, memo: newMemo(),
		headers: make(chan struct{}, 1)}

	return s, nil
}

func (s *Source) nodeConfig(name, url string) node.Config {
	cfg := s.cfg

	return node.Config{
		Name: name, URL: strings.TrimSpace(url), ChainID: cfg.ChainID, Timeout: cfg.Timeout, MaxRPS: cfg.MaxRPS,
		MaxRange:     cfg.MaxRange,
		MaxAddresses: cfg.MaxAddresses, MaxBytes: cfg.MaxBytes, Log: cfg.Logger, Secrets: s.secrets, Metrics: s.metrics,
		Rand: cfg.Rand, Now: cfg.Now, Dial: cfg.Dial,
	}
}

// endpointNames are the URLs as operators see them, without secrets; of several at one host, all
// but the first carry their number.
func endpointNames(urls []string) []string {
	names := make([]string, len(urls))
	for i, raw := range urls {
		name := redact.URL(raw)
		for n := 2; slices.Contains(names[:i], name); n++ {
			name = fmt.Sprintf("%s#%d", redact.URL(raw), n)
		}

		names[i] = name
	}

	return names
}

// Run follows the head of the chain on every endpoint until ctx ends; then it closes all
// connections and returns nil. It is called once.
func (s *Source) Run(ctx context.Context) error {
	s.running.Store(true)
	var wg sync.WaitGroup
	for _, n := range s.nodes {
		wg.Go(func() { s.follow(ctx, n) })
	}

	wg.Wait()
	s.running.Store(false)
	s.Close()

	return nil
}

// Close closes all connections. Run does so at its end; whoever uses a Source without Run calls it.
func (s *Source) Close() {
	for _, n := range s.nodes {
		n.Close()
	}
}

// rest closes the connections that were opened before Run, which nobody else would if Run never came.
func (s *Source) rest() {
	if !s.running.Load() {
		s.Close()
	}
}

// Health is nil while the chain can be read and its head moves.
func (s *Source) Health() error {
	var down []error
	up := false
	for _, st := range s.Endpoints() {
		up = up || st.Up
		if !st.Up && st.LastError != "" {
			down = append(down, fmt.Errorf("%s: %s", st.Name, st.LastError))
		}
	}

	if !up {
		return fmt.Errorf("%w: %w", ErrUnavailable,
			errors.Join(append(down, errors.New("check RPC_URLS and the nodes behind them"))...))
	}

	return s.health()
}

// Check verifies that no endpoint serves another chain, that one works, and that the factory is a contract. An endpoint
// that does not answer is no error as long as another does.
func (s *Source) Check(ctx context.Context, factory common.Address) error {
	defer s.rest()
	answers, err := s.CallEach(ctx, rpc.GetCode, factory, "latest")
	if err != nil {
		return fmt.Errorf("check the RPC endpoints: %w", context.Cause(ctx))
	}

	works, coded := false, false
	var errs []error
	for _, a := range answers {
		var code hexutil.Bytes
		q := &rpc.Call{Method: rpc.GetCode, Result: a.Result, Err: a.Err}
		err := q.Decode(&code)
		if errors.Is(err, ErrWrongChain) {
			return err
		}

		works = works || err == nil
		coded = coded || len(code) > 0
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", a.Endpoint, err))
			s.cfg.Logger.WarnContext(ctx, "endpoint does not answer", slog.String("endpoint", a.Endpoint), slog.Any("err", err))
		}
	}

	switch {
	case !works:
		return fmt.Errorf("%w: check RPC_URLS: %w", ErrUnavailable, errors.Join(errs...))
	case !coded:
		return fmt.Errorf("%w %s on chain %d: correct FACTORY_ADDRESS or CHAIN_ID", ErrNoCode, factory, s.cfg.ChainID)
	}

	return nil
}

// Examine asks every endpoint what it is and what it can do, at most some 130 requests each, one
// after the other. start is the first block that is needed. What it finds out is not used by the
// readings of this Source.
func (s *Source) Examine(ctx context.Context, factory common.Address, start uint64) []Examination {
	list := make([]Examination, len(s.nodes))
	var wg sync.WaitGroup
	for i, n := range s.nodes {
		cfg := s.nodeConfig(n.Name(), s.cfg.URLs[i])
		cfg.Log = slog.New(slog.DiscardHandler) // what it refuses is what is asked about
		examined := node.New(cfg)
		wg.Go(func() {
			defer examined.Close()
			list[i] = examined.Examine(ctx, factory, start)
		})
	}

	wg.Wait()

	return list
}
