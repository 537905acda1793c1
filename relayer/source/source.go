// Package source is the chain as the relayer reads it: several nodes, none of which is trusted.
//
// Every answer is tested. Together with the logs of a range, in the same batch, the range's last header is asked for: a node that does not have it is behind,
// and its empty answer means nothing (ErrBehind). Logs must match the filter, lie in the range, be in order and not be removed. Above View.Final blocks
// are read one by one by their hash, with parents linked, and against the header's bloom filter. A node that answers wrongly is left alone for a
// while, and the next is asked; a node that lags is not asked for what it does not have, and is never taken for a reorganisation.
//
//	endpoint ─ heads ──► ring of headers ──► View ──► Changed
//	    ▲                     │
//	    └── ask, fail over ◄──┴── Read: ranges up to Final, several in flight; then block by block
//
// What is not promised: a node that leaves out some of a block's logs, under the right hash, is believed unless the bloom filter speaks against
// it; ReadOther exists so that a verifier can ask somebody else.
package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fusion-prime/escrow-relayer/relayer/redact"
)

// What Config.Finality may be: which block may be processed.
const (
	Confirmations = "confirmations" // the head less Config.Confirmations
	Safe          = "safe"          // what the node calls safe
	Finalized     = "finalized"     // what the node calls finalized
	Latest        = "latest"        // the head
)

// unknownFinality is how deep a block must lie to be read by range, where the node does not know the finalized tag: twice Ethereum's
// two epochs.
const unknownFinality = 128

// viewHold is how long a View stands when no endpoint vouches for it any more. A node that lags must not turn the clock back; one that
// invented a head must not stop it.
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
	// PollInterval between looks at the head, where the node does not announce it. Zero: 2 s.
	PollInterval time.Duration
	// Timeout of one request. Zero: 15 s.
	Timeout time.Duration
	// MaxRPS is how many calls an endpoint gets a second. Zero: no limit.
	MaxRPS float64
	// MaxRange is how many blocks one request asks for at most. Less is found out. Zero: 10,000.
	MaxRange uint64
	// MaxAddresses in one request. Zero: 1,000, geth's default limit.
	MaxAddresses int
	// Logger. Nil: none.
	Logger *slog.Logger
	// Registerer of the metrics. Nil: none.
	Registerer prometheus.Registerer
	// Rand gives numbers in [0,1) for jitter. Nil: math/rand.
	Rand func() float64
	// Now tells the time. Nil: time.Now.
	Now func() time.Time
}

func (c *Config) complete() error {
	var errs []error
	if len(c.URLs) == 0 {
		errs = append(errs, errors.New("no RPC URL: set RPC_URLS"))
	}
	for i, raw := range c.URLs {
		u, err := url.Parse(strings.TrimSpace(raw))
		if err != nil || u.Host == "" || !slices.Contains([]string{"http", "https", "ws", "wss"}, strings.ToLower(u.Scheme)) {
			errs = append(errs, fmt.Errorf("RPC URL %d (%s) is not a URL of http, https, ws or wss: correct RPC_URLS", i, redact.URL(raw)))
		}
	}
	if c.ChainID == 0 {
		errs = append(errs, errors.New("chain id is 0: set CHAIN_ID"))
	}
	if c.Finality == "" {
		c.Finality = Confirmations
	}
	if !slices.Contains([]string{Confirmations, Safe, Finalized, Latest}, c.Finality) {
		errs = append(errs, fmt.Errorf("finality %q is unknown: set FINALITY to confirmations, safe, finalized or latest", c.Finality))
	}
	if c.PollInterval < 0 || c.Timeout < 0 || c.MaxRPS < 0 || c.MaxAddresses < 0 {
		errs = append(errs, errors.New("poll interval, timeout, requests a second and addresses a request must not be negative"))
	}
	if c.PollInterval == 0 {
		c.PollInterval = 2 * time.Second
	}
	if c.Timeout == 0 {
		c.Timeout = 15 * time.Second
	}
	if c.MaxRange == 0 {
		c.MaxRange = 10_000
	}
	if c.MaxAddresses == 0 {
		c.MaxAddresses = 1000
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
	return errors.Join(errs...)
}

// Source reads the chain. Its methods may be called concurrently; View, Changed and Health mean something while Run runs.
type Source struct {
	cfg       Config
	log       *slog.Logger
	secrets   *redact.Secrets
	metrics   *metrics
	endpoints []*endpoint
	ring      ring
	reading   chan struct{} // a token: whoever has it may ask for headers that the ring lacks
	memo      memo
	served    served
	hints     hints
	blooms    atomic.Bool // the chain has bloom filters: a block without any bits is known to have no logs

	mu       sync.Mutex
	view     View
	headHash common.Hash
	changed  chan struct{}
	doubted  time.Time // since when no endpoint has vouched for the View
	moved    time.Time // when the head last moved
	pace     pace
	running  bool
}

// New checks the configuration and starts nothing.
func New(cfg Config) (*Source, error) {
	cfg.URLs = slices.Clone(cfg.URLs)
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	s := &Source{cfg: cfg, log: cfg.Logger, secrets: redact.New(cfg.URLs...), changed: make(chan struct{}), reading: make(chan struct{}, 1)}
	s.memo.init()
	s.hints.init()
	names := make([]string, len(cfg.URLs))
	for i := range cfg.URLs {
		names[i] = fmt.Sprintf("rpc%d", i)
	}
	s.metrics = newMetrics(cfg.Registerer, names)
	for i, raw := range cfg.URLs {
		s.endpoints = append(s.endpoints, newEndpoint(s, names[i], strings.TrimSpace(raw), redact.URL(raw)))
	}
	return s, nil
}

func (s *Source) now() time.Time  { return s.cfg.Now() }
func (s *Source) random() float64 { return s.cfg.Rand() }

// Run follows the head of the chain on every endpoint until ctx ends; then it closes all connections and returns nil. It is called once.
func (s *Source) Run(ctx context.Context) error {
	s.mu.Lock()
	s.running = true
	s.mu.Unlock()
	var wg sync.WaitGroup
	for _, e := range s.endpoints {
		wg.Go(func() { s.follow(ctx, e) })
	}
	wg.Wait()
	s.mu.Lock()
	s.running = false
	s.mu.Unlock()
	s.Close()
	return nil
}

// Close closes all connections. Run does so at its end; whoever uses a Source without Run calls it.
func (s *Source) Close() {
	for _, e := range s.endpoints {
		e.conn.close()
	}
}

// View says how far the chain may be read. Target and Final do not go back because a node lags.
func (s *Source) View() View {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view
}

// Changed returns a channel that is closed when the View changes next.
func (s *Source) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Endpoints says how each endpoint does.
func (s *Source) Endpoints() []EndpointStatus {
	list := make([]EndpointStatus, len(s.endpoints))
	for i, e := range s.endpoints {
		list[i] = e.status()
	}
	return list
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
		return fmt.Errorf("%w: %w", ErrUnavailable, errors.Join(append(down, errors.New("check RPC_URLS and the nodes behind them"))...))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.view.Ready {
		return fmt.Errorf("%w: the head of the chain is not known yet", ErrUnavailable)
	}
	if patience := s.pace.patience(); patience > 0 {
		if still := s.now().Sub(s.moved); still > patience {
			return fmt.Errorf("%w: no new block after %d for %s: look at the nodes behind RPC_URLS", ErrUnavailable, s.view.Head, still.Round(time.Second))
		}
	}
	return nil
}

// Check verifies that no endpoint serves another chain, that one works, and that the factory is a contract. An endpoint
// that does not answer is no error as long as another does.
func (s *Source) Check(ctx context.Context, factory common.Address) error {
	defer s.rest()
	errs := make([]error, len(s.endpoints))
	codes := make([]bool, len(s.endpoints))
	var wg sync.WaitGroup
	for i, e := range s.endpoints {
		wg.Go(func() {
			q := &call{method: codeMethod, params: `["` + factory.Hex() + `","latest"]`}
			if errs[i] = e.do(ctx, q); errs[i] != nil {
				return
			}
			var code hexutil.Bytes
			errs[i] = q.decode(&code)
			codes[i] = len(code) > 0
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return fmt.Errorf("check the RPC endpoints: %w", context.Cause(ctx))
	}
	works, coded := false, false
	for i, err := range errs {
		if errors.Is(err, ErrWrongChain) {
			return err
		}
		works = works || err == nil
		coded = coded || codes[i]
		if err != nil {
			errs[i] = fmt.Errorf("%s: %w", s.endpoints[i].name, err)
			s.log.WarnContext(ctx, "endpoint does not answer", slog.String("endpoint", s.endpoints[i].name), slog.Any("err", err))
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

// rest closes the connections that were opened before Run, which nobody else would if Run never came.
func (s *Source) rest() {
	s.mu.Lock()
	running := s.running
	s.mu.Unlock()
	if running {
		return
	}
	for _, e := range s.endpoints {
		e.conn.close()
		if e.ws != nil {
			e.ws.reopen()
		}
	}
}
