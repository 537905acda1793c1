//go:build outage

package deploy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// What really pages. Fleets of real relayer processes, restarted as Cloud Run restarts them, a real Prometheus with our rules, and real outages,
// all at once, each on a chain of its own: so each outage also shows that it pages for no other chain. Needs the program prometheus.
//
//	make outage    in real time, ten minutes or more
//	.ci/run        short: every time of the rules, the scrapes and the platform divided by six; not shorter, since what the relayer itself
//	               asks every five seconds must stay well below the shortest threshold, 60 s / 6
//
// Beside the time of its first firing the test demands nothing quick: deadlines are generous, and every wait ends with an event.
func TestOutages(t *testing.T) {
	program, err := exec.LookPath("prometheus")
	require.NoError(t, err, "install the program prometheus (Debian: prometheus)")
	factor, err := strconv.Atoi(cmp.Or(os.Getenv("OUTAGE_FACTOR"), "6"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, factor, 1)
	w := &outageWorld{t: t, factor: time.Duration(factor), bin: filepath.Join(t.TempDir(), "escrow-relayer")}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", w.bin, "../cmd/escrow-relayer")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	outages := theOutages()
	fleets := make([]*outageFleet, len(outages))
	var starting sync.WaitGroup
	for i := range outages {
		starting.Go(func() { fleets[i] = w.start(int64(1001+i), &outages[i]) })
	}
	starting.Wait()
	require.False(t, t.Failed())
	var chains []int64
	for _, f := range fleets {
		chains = append(chains, f.chain)
	}
	p := w.prometheus(program, chains)
	p.quiet(t, "before anything happens")

	var under sync.WaitGroup
	for _, f := range fleets {
		under.Go(func() { f.suffer(p) })
	}
	under.Wait()
	w.report(p, fleets)
}

// outage is what happens to one fleet.
type outage struct {
	name string
	// begin breaks something and returns what mends it.
	begin func(*outageFleet) (end func() error, err error)
	// pages are the alerts of severity critical that must fire, and the limit of each. No other may.
	pages map[string]time.Duration
	// tickets are the warnings that must fire.
	tickets map[string]time.Duration
	// lasts is for how long it goes on where nothing must fire, as a share of which other alerts would.
	lasts time.Duration
}

func theOutages() []outage {
	noDatabase := map[string]time.Duration{
		"RelayerNoLeader": fleet.LimitNoLeader.Critical, "RelayerDatabaseDown": fleet.LimitDatabase.Critical,
	}
	return []outage{
		{
			name: "database stopped", pages: noDatabase,
			begin: func(f *outageFleet) (func() error, error) {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				return func() error {
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					defer cancel()
					return f.PG.Up(ctx)
				}, f.PG.Down(ctx, testpg.Immediate)
			},
		},
		{
			name: "packets to the database vanish", pages: noDatabase,
			begin: func(f *outageFleet) (func() error, error) { return f.database.Swallow(true), nil },
		},
		{
			name:  "every relayer of the chain gone",
			pages: map[string]time.Duration{"RelayerFleetDown": fleet.LimitFleetDown.Critical, "RelayerNoLeader": fleet.LimitNoLeader.Critical},
			begin: func(f *outageFleet) (func() error, error) {
				for _, s := range f.relayers {
					s.Down()
				}
				return func() error {
					for _, s := range f.relayers {
						s.Up()
					}
					return nil
				}, nil
			},
		},
		{
			name: "leader frozen", lasts: 4 * time.Minute, // the platform ends it after a minute, and the other has long taken over
			begin: func(f *outageFleet) (func() error, error) {
				s, err := f.leader()
				if err != nil {
					return nil, err
				}
				frozen := s.Process()
				frozen.Signal(syscall.SIGSTOP)
				return func() error {
					if s.Process() == frozen {
						return fmt.Errorf("%s was frozen and the platform did not restart it", s.ID)
					}
					return nil
				}, nil
			},
		},
		{
			name: "Pub/Sub frozen", pages: map[string]time.Duration{"RelayerOutboxStuck": fleet.LimitOutbox.Critical},
			tickets: map[string]time.Duration{"RelayerOutboxOld": fleet.LimitOutbox.Behind + fleet.TicketAfter},
			begin:   func(f *outageFleet) (func() error, error) { return f.pubsub.Freeze(), nil },
		},
		{
			// A leader whose node does not let it go on resigns, and nobody else has a node either.
			name:  "node down",
			pages: map[string]time.Duration{"RelayerNoEndpoint": fleet.LimitNode.Critical, "RelayerNoLeader": fleet.LimitNoLeader.Critical},
			begin: func(f *outageFleet) (func() error, error) { return f.node.Cut(), nil },
		},
	}
}

type outageWorld struct {
	t       *testing.T
	factor  time.Duration
	bin     string
	targets sync.Mutex // of the folder that Prometheus reads targets from
	dir     string
}

func (w *outageWorld) shortened(d time.Duration) time.Duration { return d / w.factor }

// outageFleet is two relayers with everything around them, behind proxies that an outage may break.
type outageFleet struct {
	*lab.Lab
	w        *outageWorld
	o        *outage
	chain    int64
	relayers []*lab.Supervised

	database, pubsub, node *faults.TCP

	fired map[string]time.Duration // alerts, since the outage began
	mend  time.Duration            // from its end until nothing fired
}

func (w *outageWorld) start(chain int64, o *outage) *outageFleet {
	t := w.t
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	node, err := testchain.StartSim(testchain.Options{ChainID: uint64(chain), Interval: time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, node.Stop()) })
	l, err := lab.Start(ctx, lab.Options{Bin: w.bin, Node: node, Seed: 7, Env: map[string]string{
		"DB_OUTAGE_LIMIT": w.shortened(5 * time.Minute).String(), "HEARTBEAT_INTERVAL": w.shortened(30 * time.Second).String(),
		"LEADER_STALE_AFTER": max(w.shortened(time.Minute), 10*time.Second).String(),
	}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	f := &outageFleet{Lab: l, w: w, o: o, chain: chain}
	proxy := func(raw string) (*faults.TCP, string) {
		p, behind, err := faults.ProxyURL(raw)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Close()) })
		return p, behind
	}
	f.database, l.DatabaseURL = proxy(l.URL)
	var rpc, pubsub string
	f.node, rpc = proxy(node.HTTP())
	f.pubsub, pubsub = proxy("grpc://" + l.PubSub.Addr())
	l.RPC, l.PubSubAddr = []string{rpc}, strings.TrimPrefix(pubsub, "grpc://")

	for i := range 2 {
		id := fmt.Sprintf("r%d", i)
		f.relayers = append(f.relayers, l.Supervise(id, i, 2, nil, lab.Supervision{
			Liveness: max(w.shortened(10*time.Second), 2*time.Second), Backoff: time.Second,
			Started: func(p *lab.Process) { w.scrape(fmt.Sprintf("%d-%s", chain, id), p) },
		}))
	}
	require.Eventually(t, func() bool {
		fl, err := fleet.Read(ctx, l.DB, chain)
		return err == nil && fl.Slots.Unserved == 0 && fl.Slots.Adopted == 0 && fl.Leader.Valid && fl.Live() == 2
	}, 2*time.Minute, 100*time.Millisecond, "the fleet of chain %d is whole", chain)
	f.traffic()
	return f
}

// traffic goes on until the test ends.
func (f *outageFleet) traffic() {
	t := f.w.t
	all := f.Chain.Accounts()
	traffic, err := testchain.NewTraffic(t.Context(), testchain.TrafficConfig{
		URL: f.Chain.HTTP(), Deployment: testchain.Deployment{Block: f.Contracts.Block, Factory: f.Contracts.Factory, Noise: f.Contracts.Noise},
		Accounts: all[:len(all)-1], Seed: 7,
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = traffic.Run(ctx, time.Second, 2) // that it fails when the node is down is part of the outage
	}()
	t.Cleanup(func() { cancel(); <-done; traffic.Close() })
}

// leader is the relayer that leads.
func (f *outageFleet) leader() (*lab.Supervised, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	fl, err := fleet.Read(ctx, f.DB, f.chain)
	if err != nil {
		return nil, err
	}
	for _, s := range f.relayers {
		if s.ID == fl.Leader.Instance {
			return s, nil
		}
	}
	return nil, fmt.Errorf("nobody leads chain %d", f.chain)
}

// scrape tells Prometheus where a relayer is now.
func (w *outageWorld) scrape(name string, p *lab.Process) {
	w.targets.Lock()
	defer w.targets.Unlock()
	if w.dir == "" {
		w.dir = w.t.TempDir()
	}
	u, err := url.Parse(p.URL)
	if err != nil {
		return
	}
	file := filepath.Join(w.dir, name+".json")
	text := fmt.Sprintf(`[{"targets": [%q]}]`, u.Host)
	if os.WriteFile(file+".new", []byte(text), 0o600) == nil {
		_ = os.Rename(file+".new", file)
	}
}

// prometheusServer is a real one.
type prometheusServer struct {
	url  string
	done chan struct{}

	// mu guards what its alerts were at the last look, and when.
	mu     sync.Mutex
	firing map[string]bool // chain/alert/severity
	seen   time.Time
	rounds int
	change chan struct{}
}

func (w *outageWorld) prometheus(program string, chains []int64) *prometheusServer {
	t := w.t
	dir := t.TempDir()
	rules, err := Alerts(chains)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "alerts.yaml"), w.shorten(rules), 0o600))
	every := w.shortened(30 * time.Second).Milliseconds()
	config := fmt.Sprintf(`
global: {scrape_interval: %[1]dms, scrape_timeout: %[1]dms, evaluation_interval: %[1]dms}
rule_files: [alerts.yaml]
scrape_configs:
  - job_name: escrow-relayer
    file_sd_configs: [{files: [%[2]q], refresh_interval: 5s}]
`, every, filepath.Join(w.dir, "*.json"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := ln.Addr().String()
	require.NoError(t, ln.Close())
	logs, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	cmd := exec.Command(program, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+addr)
	cmd.Stdout, cmd.Stderr = logs, logs
	require.NoError(t, cmd.Start())
	p := &prometheusServer{url: "http://" + addr, done: make(chan struct{}), change: make(chan struct{})}
	ctx, stop := context.WithCancel(context.Background())
	go func() { defer close(p.done); p.look(ctx) }()
	t.Cleanup(func() {
		stop()
		<-p.done
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = logs.Close()
	})
	require.Eventually(t, func() bool { p.mu.Lock(); defer p.mu.Unlock(); return p.rounds > 0 }, time.Minute, 50*time.Millisecond, "Prometheus answers")
	return p
}

var (
	promRange  = regexp.MustCompile(`\[(\d+[smh])\]|offset (\d+[smh])`)
	promSecond = regexp.MustCompile(`([<>]) (\d{2,})`)
	freshLimit = regexp.MustCompile(`seconds\{[^}]*\} < 90\)`)
	inSeconds  = regexp.MustCompile(`^time\(\)|_age(_seconds)?\{|\(relayer_outbox_oldest_age_seconds`)
)

// shorten divides every time in the rules by the factor.
func (w *outageWorld) shorten(text []byte) []byte {
	var f ruleFile
	require.NoError(w.t, yaml.Unmarshal(text, &f))
	duration := func(s string) time.Duration {
		d, err := time.ParseDuration(s)
		require.NoError(w.t, err)
		return w.shortened(d)
	}
	prom := func(d time.Duration) string { return fmt.Sprintf("%dms", d.Milliseconds()) }
	seconds := func(s string) string {
		n, err := strconv.ParseFloat(s, 64)
		require.NoError(w.t, err)
		return strconv.FormatFloat(n/float64(w.factor), 'f', 1, 64)
	}
	for i := range f.Groups {
		g := &f.Groups[i]
		g.Interval = prom(duration(g.Interval))
		for j := range g.Rules {
			r := &g.Rules[j]
			if r.For != "" {
				r.For = prom(duration(r.For))
			}
			r.Expr = promRange.ReplaceAllStringFunc(r.Expr, func(m string) string {
				return regexp.MustCompile(`\d+[smh]`).ReplaceAllStringFunc(m, func(d string) string { return prom(duration(d)) })
			})
			if inSeconds.MatchString(r.Expr) {
				r.Expr = promSecond.ReplaceAllStringFunc(r.Expr, func(m string) string { return m[:2] + seconds(m[2:]) })
			} else {
				r.Expr = freshLimit.ReplaceAllStringFunc(r.Expr, func(m string) string { return strings.Replace(m, "90", seconds("90"), 1) })
			}
		}
	}
	out, err := yaml.Marshal(f)
	require.NoError(w.t, err)
	return out
}

// look asks for the alerts again and again until ctx ends.
func (p *prometheusServer) look(ctx context.Context) {
	ticker := time.NewTicker(250 * time.Millisecond)
	defer ticker.Stop()
	for {
		if firing, err := p.alerts(ctx); err == nil {
			p.mu.Lock()
			p.firing, p.seen = firing, time.Now()
			p.rounds++
			close(p.change)
			p.change = make(chan struct{})
			p.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (p *prometheusServer) alerts(ctx context.Context) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/api/v1/alerts", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct {
		Status string
		Data   struct {
			Alerts []struct {
				State  string
				Labels map[string]string
			}
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("prometheus says %s", answer.Status)
	}
	firing := map[string]bool{}
	for _, a := range answer.Data.Alerts {
		if a.State == "firing" {
			firing[a.Labels["chain_id"]+"/"+a.Labels["severity"]+"/"+a.Labels["alertname"]] = true
		}
	}
	return firing, nil
}

// now returns what fires for a chain (0: for any) and a channel that is closed at the next look.
func (p *prometheusServer) now(chain int64) (firing []string, next <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a := range p.firing {
		if chain == 0 || strings.HasPrefix(a, strconv.FormatInt(chain, 10)+"/") {
			firing = append(firing, a)
		}
	}
	slices.Sort(firing)
	return firing, p.change
}

// quiet waits until Prometheus has scraped everybody and nothing fires.
func (p *prometheusServer) quiet(t *testing.T, when string) {
	t.Helper()
	deadline := time.After(3 * time.Minute)
	for since := time.Now(); time.Since(since) < 15*time.Second; {
		firing, next := p.now(0)
		if len(firing) > 0 {
			since = time.Now()
		}
		select {
		case <-next:
		case <-deadline:
			require.Empty(t, firing, when)
			return
		}
	}
}

// suffer goes through the outage and notes what fires.
func (f *outageFleet) suffer(p *prometheusServer) {
	t := f.w.t
	f.fired = map[string]time.Duration{}
	expected := map[string]time.Duration{}
	for a, limit := range f.o.pages {
		expected["critical/"+a] = limit
	}
	for a, limit := range f.o.tickets {
		expected["warning/"+a] = limit
	}
	end, err := f.o.begin(f)
	if !noErr(t, err, f.o.name) {
		return
	}
	begun := time.Now()
	note := func() <-chan struct{} {
		firing, next := p.now(f.chain)
		for _, a := range firing {
			if name := strings.SplitN(a, "/", 2)[1]; f.fired[name] == 0 {
				f.fired[name] = time.Since(begun)
			}
		}
		return next
	}
	all := func() bool {
		for a := range expected {
			if f.fired[a] == 0 {
				return false
			}
		}
		return true
	}

	// A scrape, an evaluation, and what a busy machine takes, come on top of each limit. Then it goes on, for others that might fire.
	longest := f.o.lasts
	for _, limit := range expected {
		longest = max(longest, limit)
	}
	deadline := begun.Add(f.w.shortened(longest+2*time.Minute) + time.Minute)
	for !all() && time.Now().Before(deadline) {
		<-note()
	}
	for until := time.Now().Add(f.w.shortened(max(f.o.lasts, time.Minute))); time.Now().Before(until); {
		<-note()
	}
	if !noErr(t, end(), f.o.name) {
		return
	}
	mended := time.Now()
	for deadline := mended.Add(f.w.shortened(15*time.Minute) + time.Minute); time.Now().Before(deadline); {
		next := note()
		if firing, _ := p.now(f.chain); len(firing) == 0 {
			f.mend = time.Since(mended)
			return
		}
		<-next
	}
	firing, _ := p.now(f.chain)
	t.Errorf("%s: still firing long after it was over: %v", f.o.name, firing)
}

// noErr is for goroutines, where require must not be.
func noErr(t *testing.T, err error, what string) bool {
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
	return err == nil
}

// report prints what fired, and judges.
func (w *outageWorld) report(p *prometheusServer, fleets []*outageFleet) {
	var b strings.Builder
	fmt.Fprintf(&b, "times of rules, scrapes and platform divided by %d\n%-34s %-32s %9s %9s %9s\n", w.factor, "outage", "alert", "limit", "fired", "resolved")
	for _, f := range fleets {
		rows := slices.Collect(func(yield func(string) bool) {
			for a := range f.fired {
				if !yield(a) {
					return
				}
			}
		})
		slices.Sort(rows)
		if len(rows) == 0 {
			fmt.Fprintf(&b, "%-34s %-32s\n", f.o.name, "none, as it should be")
		}
		for _, a := range rows {
			severity, alert, _ := strings.Cut(a, "/")
			limit, expected := f.o.pages[alert]
			if severity == "warning" {
				limit, expected = f.o.tickets[alert]
			}
			says := "-"
			if expected {
				says = w.shortened(limit).Round(100 * time.Millisecond).String()
			}
			fmt.Fprintf(&b, "%-34s %-32s %9s %9s %9s\n", f.o.name, a, says, f.fired[a].Round(100*time.Millisecond), f.mend.Round(100*time.Millisecond))
			if severity == "critical" && !expected {
				w.t.Errorf("%s: %s must not fire", f.o.name, alert)
			}
			if slack := w.shortened(2*time.Minute) + time.Minute; expected && f.fired[a] > w.shortened(limit)+slack {
				w.t.Errorf("%s: %s fired after %s, limit %s", f.o.name, alert, f.fired[a], w.shortened(limit))
			}
		}
		for a := range f.o.pages {
			if f.fired["critical/"+a] == 0 {
				w.t.Errorf("%s: the page %s did not fire", f.o.name, a)
			}
		}
		for a := range f.o.tickets {
			if f.fired["warning/"+a] == 0 {
				w.t.Errorf("%s: the ticket %s did not fire", f.o.name, a)
			}
		}
	}
	w.t.Log("\n" + b.String())
}
