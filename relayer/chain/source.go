// Package chain is the chain as the relayer reads it: several nodes as one, without trust in any of them.
//
//	node ─ heads ──► ring of headers ──► View ──► Changed
//	  ▲                    │
//	  └── ask, fail over ◄─┴── Read: ranges up to Final, several in flight; then block by block
//
// Package endpoint tests each answer and keeps each endpoint's health; package rpc sends and judges
// words. Here the answers of several are put together: which node is asked, how far the chain may
// be read, and that what is read hangs together. Above View.Final blocks are read one by one by
// their hash. Each has to follow the one before, and so have ranges. A node that lags is not asked
// for what it does not have, and is never taken for a reorganisation.
//
// Above Final, content is proved against the block's hash (package proof): a header by its own hash, logs by
// the receipts root and the transactions root, none by the bloom filter. Which hash stands at a height is what
// two endpoints agree on (agreement). Of a chain that hashes otherwise, two endpoints have to show the same logs of
// a block, unless one's word counts.
//
// Below Final, what a reader that keeps up reads is proved in the same way. Longer ranges are read on one
// endpoint's word, their blocks with events proved as Config.Proof says: ReadOther and Prove exist for a
// verifier, which asks another endpoint and has a proof decide.
package chain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"golang.org/x/sync/semaphore"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
	"github.com/fusion-prime/escrow-relayer/relayer/redact"
)

// Source reads the chain. Its methods may be called concurrently; View, Changed and Health mean something while Run
// runs.
type Source struct {
	cfg     *Config
	nodes   []*endpoint.Node
	outlook *outlook
	ring    *ring
	memo    *memo
	flight  flight
	secrets *redact.Secrets
	metrics *endpoint.Metrics
	laws    *endpoint.Laws
	large   *semaphore.Weighted // is held while a large answer is read, from whichever endpoint
	headers *semaphore.Weighted // whoever has it may ask for headers that the ring lacks
	news    chan struct{}       // holds a token after a new fault of an endpoint, and a new law of the chain

	// The newest block that was asked for its logs did not prove them: two endpoints said the same, or one counted.
	unproved atomic.Bool

	mu     sync.Mutex
	met    map[*endpoint.Node]time.Time // when it was last asked for a block that another one had reported
	offers *sync.WaitGroup              // transactions on their way; Close waits for them, and leaves a new one
}

// New starts nothing.
func New(cfg Config) *Source {
	cfg.URLs = slices.Clone(cfg.URLs)
	cfg.complete()
	names := endpointNames(cfg.URLs)
	s := &Source{cfg: &cfg, ring: newRing(), memo: newMemo(), secrets: redact.New(cfg.URLs...),
		metrics: endpoint.NewMetrics(cfg.Registerer, names), large: semaphore.NewWeighted(1),
		headers: semaphore.NewWeighted(1), news: make(chan struct{}, 1), offers: &sync.WaitGroup{},
		met: map[*endpoint.Node]time.Time{}}
	shown := s.signal
	if cfg.Proof == ProveNone {
		shown = nil
	}

	s.laws = endpoint.NewLaws(len(cfg.URLs), cfg.Now, cfg.Logger, shown)
	s.outlook = &outlook{cfg: &cfg, claims: s.claims, changed: make(chan struct{}),
		agreement: newAgreement(&cfg, s.laws)}
	for i, raw := range cfg.URLs {
		s.nodes = append(s.nodes, endpoint.New(s.nodeConfig(names[i], raw)))
	}

	return s
}

// View says how far the chain may be read. Target and Final stand still when a node lags.
func (s *Source) View() View { return s.outlook.View() }

// Changed returns a channel that is closed when the View changes next.
func (s *Source) Changed() <-chan struct{} { return s.outlook.Changed() }

// BlockTime is the mean time between blocks; zero while it is unknown.
func (s *Source) BlockTime() time.Duration {
	mean, _ := s.outlook.rhythm()
	return mean
}

func (s *Source) nodeConfig(name, url string) endpoint.Config {
	cfg := s.cfg

	return endpoint.Config{
		Name: name, URL: strings.TrimSpace(url), ChainID: cfg.ChainID, Timeout: cfg.Timeout, MaxRPS: cfg.MaxRPS,
		MaxRange: cfg.MaxRange, MaxAddresses: cfg.MaxAddresses, MaxBytes: cfg.MaxBytes, Log: cfg.Logger,
		Secrets: s.secrets, Metrics: s.metrics, Rand: cfg.Rand, Now: cfg.Now, Dial: cfg.Dial, Large: s.large,
		Laws: s.laws, Accused: s.signal,
	}
}

// News is signalled after a new fault of an endpoint, and a new law of the chain.
func (s *Source) News() <-chan struct{} { return s.news }

func (s *Source) signal() {
	select {
	case s.news <- struct{}{}:
	default: // somebody is to look already
	}
}

// Shown are the laws that the chain's blocks have shown to be theirs.
func (s *Source) Shown() []string { return s.laws.Shown() }

// Demand holds the endpoints to laws that the chain has shown before.
func (s *Source) Demand(laws []string) { s.laws.Demand(laws) }

// Faults are what endpoints are set aside for.
func (s *Source) Faults() []Fault {
	var list []Fault
	for _, n := range s.nodes {
		if f := n.Fault(); f != nil {
			list = append(list, *f)
		}
	}

	return list
}

// SetAside has stored faults apply to the endpoints that they name, and releases an endpoint whose
// stored fault is gone.
func (s *Source) SetAside(stored []Fault) {
	for _, n := range s.nodes {
		i := slices.IndexFunc(stored, func(f Fault) bool { return f.Endpoint == n.Name() })
		switch f := n.Fault(); {
		case i >= 0:
			n.SetAside(&stored[i])
		case f != nil && f.Stored:
			n.SetAside(nil)
		}
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
	var wg sync.WaitGroup
	for _, n := range s.nodes {
		wg.Go(func() { s.follow(ctx, n) })
	}

	wg.Go(func() { s.reportTrust(ctx) })
	wg.Wait()
	s.Close()

	return nil
}

// Trust is how the newest blocks that may be processed are known, and what is in them. It is of the blocks and not of
// the endpoints as they are now: one that is briefly out, or limits its rate, changes nothing before a block
// counts without it. Believed: one endpoint's word decides which blocks are the chain's, whatever their hashes prove.
// Blocks that are read by range, far below the head, are one endpoint's word until they are read again.
func (s *Source) Trust() Trust {
	_, trust := s.outlook.agreement.Tip()
	if trust == Agreed && s.laws.Headers.Holds() && !s.unproved.Load() {
		return Proved
	}

	return trust
}

// reportTrust logs each change of Trust until ctx ends.
func (s *Source) reportTrust(ctx context.Context) {
	was := Undecided
	for {
		changed := s.Changed()
		if now := s.Trust(); now != was {
			level := slog.LevelInfo
			if now == Believed && len(s.cfg.URLs) > 1 {
				level = slog.LevelWarn
			}

			s.cfg.Logger.Log(ctx, level, "trust in what is published changed", slog.String("trust", string(now)),
				slog.String("was", string(was)), slog.Uint64("block", s.View().Target))
			was = now
		}

		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// Close waits for what was offered, each for as long as its context or Config.Timeout lets it be on its way, and
// closes all connections. Run does so at its end; a Source that is used without Run needs it.
func (s *Source) Close() {
	s.mu.Lock()
	offers := s.offers
	s.offers = &sync.WaitGroup{}
	s.mu.Unlock()
	offers.Wait()
	for _, n := range s.nodes {
		n.Close()
	}
}

// Health is nil while the chain can be read and its head moves.
func (s *Source) Health() error {
	if !slices.ContainsFunc(s.Endpoints(), func(st EndpointStatus) bool { return st.Up }) {
		return s.because(fmt.Errorf("%w: check RPC_URLS and the nodes behind them", ErrUnavailable), time.Time{})
	}

	err := s.outlook.health()
	if err == nil {
		return nil
	}

	return s.because(err, s.cfg.Now().Add(-recently)) // one that answers may yet not give what is needed
}

// recently is how old an endpoint's last error may be to be a reason why nothing moves now.
const recently = time.Minute

// Check verifies that no endpoint serves another chain, that one works, and that the factory is a contract. An endpoint
// that does not answer is no error as long as another does.
func (s *Source) Check(ctx context.Context, factory common.Address) error {
	codes, silent, err := askEach[hexutil.Bytes](ctx, s, rpc.GetCode, factory, "latest")
	if err != nil {
		return fmt.Errorf("check the RPC endpoints: %w", context.Cause(ctx))
	}

	for _, a := range silent {
		if errors.Is(a.Err, ErrWrongChain) {
			return reasons([]Answer{a})
		}
	}

	if len(codes) == 0 { // the error says who does not answer, and whoever tries again decides how often to repeat it
		return fmt.Errorf("%w: check RPC_URLS: %w", ErrUnavailable, reasons(silent))
	}

	for _, a := range silent {
		s.cfg.Logger.WarnContext(ctx, "endpoint does not answer", slog.String("endpoint", a.Endpoint),
			slog.Any("err", a.Err))
	}

	if !slices.ContainsFunc(slices.Collect(maps.Values(codes)), func(code hexutil.Bytes) bool { return len(code) > 0 }) {
		return fmt.Errorf("%w %s on chain %d: correct FACTORY_ADDRESS or CHAIN_ID", ErrNoCode, factory, s.cfg.ChainID)
	}

	return nil
}

// Examine asks every endpoint what it is, what it can do and what it can prove, at most some 200 requests
// each, one after the other. factory is one of those that are followed; start is the first block that is needed. What
// it finds out is not used by the readings of this Source.
func (s *Source) Examine(ctx context.Context, factory common.Address, start uint64) []Examination {
	list := make([]Examination, len(s.nodes))
	var wg sync.WaitGroup
	for i, n := range s.nodes {
		cfg := s.nodeConfig(n.Name(), s.cfg.URLs[i])
		cfg.Log = slog.New(slog.DiscardHandler) // what it refuses is what is asked about
		cfg.Laws = endpoint.NewLaws(len(s.nodes), cfg.Now, cfg.Log, func() {})
		examined := endpoint.New(cfg)
		wg.Go(func() {
			defer examined.Close()
			list[i] = examined.Examine(ctx, factory, start)
		})
	}

	wg.Wait()

	return list
}
