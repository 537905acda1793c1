package chain

import (
	"bytes"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// lines is a log that can be read while it is written.
type lines struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(b)
}

var trustChanged = regexp.MustCompile(`trust="?(\w*)"? was="?(\w*)"?`)

// trusted are the values of Source.Trust that the log names, from what it was before the first change on.
func (l *lines) trusted() (list []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.all.String()) {
		if change := trustChanged.FindStringSubmatch(line); change != nil {
			if len(list) == 0 {
				list = append(list, change[2])
			}

			list = append(list, change[1])
		}
	}

	return list
}

// Two endpoints of a chain that hashes as Ethereum does prove what is published. While one of them is out, that
// stays so until a block counts on the word of the other, and it is so again with the first block on which they
// agree. Each change is one line of the log.
func TestTrust(t *testing.T) {
	t.Parallel()
	sim := testchain.NewSim(t, testchain.Options{Seed: 1})
	require.NoError(t, sim.Mine(t.Context(), 10))
	second, err := faults.NewNode(sim.HTTP(), sim.WS(), 1)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, second.Close()) })
	var later atomic.Int64
	log := &lines{}
	s := startWith(t, Config{URLs: []string{sim.HTTP(), second.HTTP()}, ChainID: 1337, Finality: Latest,
		believeAfter: time.Minute, Now: func() time.Time { return time.Now().Add(time.Duration(later.Load())) }}, log)
	logged := func(changes ...string) {
		require.Eventually(t, func() bool { return slices.Equal(changes, log.trusted()) },
			10*time.Minute, 5*time.Millisecond, "%v", changes)
	}

	head := await(t, s, func(v View) bool { return v.Target >= 10 && s.Trust() == Proved }).Head
	logged("", "proved")

	down := second.Inject(faults.Fault{Mode: faults.Down})
	await(t, s, func(View) bool { return !s.Endpoints()[1].Up })
	require.NoError(t, sim.Mine(t.Context(), 1))
	await(t, s, func(View) bool { return s.Endpoints()[0].Head > head })
	require.Equal(t, head, s.View().Target, "nothing counts on one endpoint's word yet")
	require.Equal(t, Proved, s.Trust())
	later.Store(int64(2 * time.Minute))
	await(t, s, func(v View) bool { return v.Target > head && s.Trust() == Believed })
	logged("", "proved", "believed")
	down.Remove()
	await(t, s, func(View) bool { return s.Endpoints()[1].Up })
	require.NoError(t, sim.Mine(t.Context(), 1))
	await(t, s, func(v View) bool { return v.Target > head+1 && s.Trust() == Proved })
	logged("", "proved", "believed", "proved")
}

// One endpoint is believed, whatever its blocks prove: which of them are the chain's is its word alone. Of a chain
// that hashes otherwise, two endpoints have to say the same.
func TestTrustOfOtherChains(t *testing.T) {
	sim := testchain.NewSim(t, testchain.Options{Seed: 1})
	require.NoError(t, sim.Mine(t.Context(), 3))
	s := start(t, Config{URLs: []string{sim.HTTP()}, ChainID: 1337, Finality: Latest})
	await(t, s, func(v View) bool { return v.Target >= 3 })
	require.Equal(t, Believed, s.Trust())

	chain := newChain(60, 1, 0)
	a, b := startNode(t, chain), startNode(t, chain)
	s = start(t, Config{URLs: []string{a.server.URL, b.server.URL}, ChainID: 1, Finality: Latest, believeAfter: time.Hour})
	await(t, s, func(v View) bool { return v.Target == 60 })
	require.Equal(t, Agreed, s.Trust())
}

// noReceipts is a node that gives none, of a block or of a transaction.
var noReceipts = []faults.Fault{{Mode: faults.Without, Words: rpc.GetReceipts},
	{Mode: faults.Without, Words: rpc.GetReceipt}}

// Of a block whose receipts no endpoint gives, or whose receipts are of a type that nobody knows, two endpoints have to
// show the same logs: that is less than proved. Neither is a lie.
func TestTrustWithoutReceipts(t *testing.T) {
	sim, first, head, want, _ := hostileChain(t)
	for name, unable := range map[string][]faults.Fault{"none": noReceipts, "odd": {{Mode: faults.Odd, N: first}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var urls []string
			for seed := range uint64(2) {
				n, err := faults.NewNode(sim.HTTP(), sim.WS(), seed)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, n.Close()) })
				for _, f := range unable {
					n.Inject(f)
				}

				urls = append(urls, n.HTTP())
			}

			s := start(t, Config{URLs: urls, ChainID: 1337, Finality: Latest, believeAfter: time.Hour})
			await(t, s, func(v View) bool { return v.Target == head && s.Trust() == Proved })
			s.Demand([]string{"headers hash", "receipts prove", "transactions prove"})
			readTruth(t, s, first, head, &Filter{Topics: topicsOf(want)}, want, true)
			require.Equal(t, Agreed, s.Trust())
			require.Empty(t, s.Faults())
		})
	}
}

// What a chain's blocks have proved once is demanded of the only endpoint from its first answer on: one that gives no
// receipts, forges headers, or changes logs after a restart only delays, however long it is the only one. An operator
// is told what to do, and PROOF=none is the way out.
func TestProofIsDemandedAfterRestart(t *testing.T) {
	sim, first, head, want, invented := hostileChain(t)
	f := &Filter{Topics: topicsOf(want)}
	before := start(t, Config{URLs: []string{sim.HTTP()}, ChainID: 1337, Finality: Latest})
	await(t, before, func(v View) bool { return v.Target == head })
	readTruth(t, before, first, head, f, want, true)
	<-before.News()
	require.Equal(t, []string{"headers hash", "receipts prove", "transactions prove"}, before.Shown())

	for name, lies := range map[string][]faults.Fault{
		"withheld": append([]faults.Fault{lieOf(faults.Changed, first, invented)}, noReceipts...),
		"bloom":    append([]faults.Fault{lieOf(faults.Bits, first, invented)}, noReceipts...),
		"blank":    {lieOf(faults.Blank, 1, invented)},
		"odd":      {lieOf(faults.Changed, first, invented), lieOf(faults.Odd, first, invented)},
		"left out": {lieOf(faults.Withheld, first, invented)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			liar, err := faults.NewNode(sim.HTTP(), sim.WS(), 1)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, liar.Close()) })
			var hits []*faults.Injected
			for _, lie := range lies {
				hits = append(hits, liar.Inject(lie))
			}

			cfg, later := hurried(Config{URLs: []string{liar.HTTP()}, ChainID: 1337, Finality: Latest})
			s := start(t, cfg)
			s.Demand(before.Shown())
			named := name == "blank" || name == "left out"
			if name != "blank" { // whose heads are forged: none counts
				await(t, s, func(v View) bool { return v.Target == head })
			}

			var told error
			for range 3 {
				readTruth(t, s, first, head, f, want, false)
				later.Add(int64(2 * time.Minute))
				for b, err := range s.Read(t.Context(), invented.BlockNumber, head, f) {
					require.Error(t, err, "block %d", b.To)
					told = err
				}
			}

			require.Positive(t, hits[0].Hits()+hits[len(hits)-1].Hits())
			if !named {
				require.ErrorContains(t, told, "PROOF=none")
				cfg.Proof = ProveNone
				s = start(t, cfg)
				s.Demand(before.Shown())
				await(t, s, func(v View) bool { return v.Target == head })
				_, batches := collect(t, s, first, head, f)
				require.NotEmpty(t, batches)
				require.Empty(t, s.Shown())
			} else {
				require.Equal(t, endpoint.Lie, s.Faults()[0].Kind)
				require.Contains(t, s.Faults()[0].Evidence, "PROOF=none")
			}
		})
	}
}

// An examination tells what an endpoint's answers prove: headers by their hash, logs by receipts, and deployments by
// the factory's nonce, where it counts nothing else.
func TestExamineWhatIsProved(t *testing.T) {
	sim, d := testchain.NewContracts(t, testchain.Options{Seed: 3})
	traffic, err := testchain.NewTraffic(t.Context(), testchain.TrafficConfig{URL: sim.HTTP(), Deployment: d,
		Accounts: sim.Accounts()[1:], Seed: 3})
	require.NoError(t, err)
	t.Cleanup(traffic.Close)
	for range 6 {
		require.NoError(t, traffic.Step(t.Context(), 8))
		require.NoError(t, sim.Mine(t.Context(), 1))
	}

	examine := func(list ...faults.Fault) Examination {
		n, err := faults.NewNode(sim.HTTP(), sim.WS(), 1)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, n.Close()) })
		for _, f := range list {
			n.Inject(f)
		}

		s := New(Config{URLs: []string{n.HTTP()}, ChainID: 1337, Registerer: prometheus.NewRegistry()})
		t.Cleanup(s.Close)
		x := s.Examine(t.Context(), d.Factory, d.Block)[0]
		require.NoError(t, x.Err)

		return x
	}
	x := examine()
	require.True(t, x.Hashes)
	require.NoError(t, x.Unproved)
	require.Greater(t, x.Receipts, d.Block)
	require.Greater(t, x.Logged, d.Block)
	require.NoError(t, x.StateErr)

	x = examine(noReceipts...)
	require.ErrorIs(t, x.Unproved, endpoint.ErrUnproved)
	require.True(t, x.Hashes)
	x = examine(faults.Fault{Mode: faults.Stateless, N: d.Block})
	require.ErrorContains(t, x.StateErr, "missing trie node")

	other := examineOne(t.Context(), t, startNode(t, newChain(100, 3, 0)))
	require.False(t, other.Hashes)
}

// startWith is start with a log.
func startWith(t *testing.T, cfg Config, log *lines) *Source {
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	return start(t, cfg)
}
