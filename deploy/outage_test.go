//go:build outage

package deploy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path"
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
	"github.com/fusion-prime/escrow-relayer/internal/port"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// What really pages. Fleets of real relayer processes, restarted as Cloud Run restarts them, a real
// Prometheus with our rules, and real outages, all at once, each on a chain of its own: so each
// outage also shows that it pages for no other chain. Needs the program prometheus.
//
//	make outage    in real time, ten minutes or more
//	make outages   short: every time of the rules, the scrapes and the platform divided by six;
//	               not shorter, since what the relayer itself
//	               asks every five seconds must stay well below the shortest threshold, 60 s / 6;
//	               what a relayer judges takes its time
//
// Each page must fire within its limit and a margin; nothing else must be quick. No other page and no
// other ticket may fire, but those that an outage lists with a reason. On a machine that
// is so busy that a look at a healthy database takes seconds, a limit of seconds says nothing: then
// an attempt that failed is repeated with half the factor, at last in real time.
func TestOutages(t *testing.T) {
	program, bin := outagePrograms(t)
	for factor := outageFactor(t); ; factor /= 2 {
		w := &outageWorld{t: t, factor: factor, bin: bin, dir: t.TempDir()}
		wrong := w.attempt(program)
		if len(wrong) == 0 {
			return
		}

		if w.slowest < busy || factor == 1 {
			t.Fatalf("%s\n(the slowest look at a healthy database took %s)", strings.Join(wrong, "\n"), w.slowest)
		}

		t.Logf("a look at a healthy database took %s, so once more, slower: %s", w.slowest, strings.Join(wrong, "; "))
	}
}

// A test of pages that cannot fail proves nothing: the same outages, in the short form, with rules that
// never fire, a page and a ticket that come for what is another one's. Each has to be told, with its outage.
// A part of `make outage`.
func TestBrokenRulesAreTold(t *testing.T) {
	program, bin := outagePrograms(t)
	const never, page, ticket = "vector(0) > 1", "RelayerTwoLeaders", "RelayerNotJoined"
	w := &outageWorld{t: t, factor: 6, bin: bin, dir: t.TempDir()}
	missing := map[string]bool{"RelayerCritical": true, "RelayerWarning": true}
	for _, o := range theOutages() {
		for alert := range w.due(&o) {
			missing[path.Base(alert)] = true
		}
	}

	w.breaks = func(rules map[string]*rule) {
		for _, wrongly := range []string{page, ticket} {
			rules[wrongly].Expr, rules[wrongly].For = rules["RelayerDatabaseDown"].Expr, ""
		}

		rules[page].Labels["severity"] = "critical"
		for alert := range missing {
			if r := rules[alert]; r != nil { // else it is a kind
				r.Expr = never
			}
		}
	}
	wrong := w.attempt(program)
	t.Log(strings.Join(wrong, "\n"))
	for _, o := range theOutages() {
		for alert := range w.due(&o) {
			require.Contains(t, wrong, fmt.Sprintf("%s: %s did not fire", o.name, path.Base(alert)))
		}

		if o.pages["RelayerDatabaseDown"] != 0 {
			require.Contains(t, wrong, fmt.Sprintf("%s: %s must not fire", o.name, page))
			require.Contains(t, wrong, fmt.Sprintf("%s: %s must not fire", o.name, ticket))
		}
	}
}

// Whatever happens to the database, the leader or Pub/Sub, every screen says the same cause at once, and the alert of
// it fires within its limit: deploy/watching.md says what this test logs. One fleet suffers all of it, one
// after the other. Disks are really full where this process may mount some.
func TestFaultsAreTold(t *testing.T) {
	program, bin := outagePrograms(t)
	w := &outageWorld{t: t, factor: outageFactor(t), bin: bin, dir: t.TempDir()}
	t.Cleanup(w.cleanUp)
	f := w.start(2001, &outage{name: "faults"})
	p := w.prometheus(program, []Fleet{{Chain: f.chain}})
	process := func(leads bool) *lab.Process {
		leader, err := f.leader()
		require.NoError(t, err)
		i := slices.IndexFunc(f.relayers, func(s *supervised) bool { return (s == leader) == leads })
		return f.relayers[i].process()
	}
	limits := map[string]time.Duration{"": 0, "RelayerDatabaseDown": w.shortened(fleet.LimitDatabase.Critical),
		fleet.OldOutbox: fleet.LimitOutbox.Critical}
	whole := func() bool {
		fl, err := fleet.Read(t.Context(), f.DB, f.chain)
		return err == nil && fl.Slots.Unserved == 0 && fl.Leader.Valid && fl.Live() == 2
	}
	all := f.Faults(f.database, f.pubsub, func() *lab.Process { return process(true) })
	for _, fault := range append(f.fullDisks(), all...) { // later the chain deletes old blocks, which makes room
		require.Eventually(t, whole, 2*time.Minute, 100*time.Millisecond, fault.Name)
		limit := limits[fault.Alert]
		margin := w.shortened(2*time.Minute) + 30*time.Second
		ctx, cancel := context.WithTimeout(t.Context(), limit+margin+150*time.Second)
		other := process(false)
		require.NoError(t, f.Quiet(ctx, other, &fault))
		fires := func(want bool) bool {
			for fault.Alert != "" && ctx.Err() == nil {
				firing, next := p.now(f.chain)
				if want == slices.Contains(firing, fmt.Sprintf("%d/critical/%s", f.chain, fault.Alert)) {
					return true
				}

				<-next
			}

			return fault.Alert == ""
		}
		require.True(t, fires(false), "%s: %s fires before it", fault.Name, fault.Alert)
		end, err := fault.Begin(ctx)
		require.NoError(t, err, fault.Name)
		begun := time.Now()
		took := f.Told(ctx, other, &fault)
		row := "| " + fault.Name
		for _, name := range lab.Screens {
			row += fmt.Sprintf(" | %.1f", took[name].Seconds())
			require.True(t, took[name] > 0 || fault.Ready && name == "/readyz", "%s: %s does not say it", fault.Name, name)
		}

		require.True(t, fires(true), "%s: %s does not fire", fault.Name, fault.Alert)
		t.Logf("TOLD %s | %s %.1f of %.0f |", row, fault.Alert, time.Since(begun).Seconds(), limit.Seconds())
		require.Less(t, time.Since(begun), limit+margin, fault.Name)
		require.NoError(t, end(), fault.Name)
		cancel()
	}
}

// fullDisks are faults of file systems of the fleet's database that are full; none where none can be mounted.
func (f *outageFleet) fullDisks() []lab.Fault {
	t := f.w.t
	mount := func(name, size string) string {
		dir := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.Mkdir(dir, 0o755))
		if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+size, "tmpfs", dir).CombinedOutput(); err != nil {
			t.Logf("no disk that is really full: %s", out)
			return ""
		}

		f.w.later(exec.Command("umount", "--lazy", dir).Run)

		return dir
	}
	disk, wal := mount("disk", "16m"), mount("wal", "160m")
	if disk == "" || wal == "" {
		return nil
	}

	ctx := t.Context()
	var data string
	require.NoError(t, f.DB.QueryRow(ctx, `show data_directory`).Scan(&data))
	owner, err := os.Stat(data)
	require.NoError(t, err)
	uid := int(owner.Sys().(*syscall.Stat_t).Uid)
	for dir := disk; dir != filepath.Clean(os.TempDir()); dir = filepath.Dir(dir) { // the server's user enters them
		require.NoError(t, os.Chmod(dir, 0o755))
	}

	require.NoError(t, os.Chmod(filepath.Dir(wal), 0o755))
	require.NoError(t, errors.Join(os.Chown(disk, uid, -1), os.Chown(wal, uid, -1)))
	for _, sql := range []string{`create tablespace small location '` + disk + `'`,
		`alter table chain_blocks set tablespace small`, `create sequence small`,
		`alter system set max_wal_size = '64MB'`} {
		_, err := f.DB.Exec(ctx, sql)
		require.NoError(t, err)
	}

	require.NoError(t, f.PG.Down(ctx, testpg.Fast))
	require.NoError(t, exec.Command("sh", "-c", `cp -a "$0"/pg_wal/. "$1" && rm -r "$0"/pg_wal && ln -s "$1" "$0"/pg_wal`, data,
		wal).Run())
	require.NoError(t, f.PG.Up(ctx))
	f.DB.Reset()
	filler := filepath.Join(wal, "filler")

	return []lab.Fault{
		{Name: "disk of the tables full", Says: "No space left|database is full", Alert: "RelayerDatabaseDown",
			Begin: func(ctx context.Context) (func() error, error) {
				for rows := 1000; rows > 0; { // until not one more finds room
					if _, err := f.DB.Exec(ctx, `insert into chain_blocks (chain_id, number, hash)
						select 0, nextval('small'), repeat('x', 66) from generate_series(1, $1)`, rows); err != nil {
						rows /= 10
					}
				}

				return func() error {
					_, err := f.DB.Exec(context.WithoutCancel(ctx), `alter table chain_blocks set tablespace pg_default`)
					if err == nil {
						_, err = f.DB.Exec(context.WithoutCancel(ctx), `delete from chain_blocks where chain_id = 0`)
					}

					return err
				}, nil
			}},
		{Name: "disk of the WAL full: the server ends", Alert: "RelayerDatabaseDown",
			Says: "nothing accepts connections|No space left|shut down|recovering|closed at once|does not answer",
			Begin: func(ctx context.Context) (func() error, error) {
				_ = exec.Command("dd", "if=/dev/zero", "of="+filler, "bs=1M").Run() // it fails when the disk is full
				var ended error
				for ended == nil {
					_, ended = f.DB.Exec(ctx, `select pg_logical_emit_message(false, '', 'x'), pg_switch_wal()`)
				}

				t.Log(ended)

				return func() error {
					ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
					defer cancel()
					_ = f.PG.Down(ctx, testpg.Immediate) // it may have ended by itself

					return errors.Join(os.Remove(filler), f.PG.Up(ctx))
				}, nil
			}},
	}
}

// What an outage expects or allows is an alert of that severity: a name that no rule has would allow
// nothing, unnoticed.
func TestOutagesNameAlerts(t *testing.T) {
	severity := map[string]string{}
	for _, r := range alertRules(t) {
		severity[r.Alert] = r.Labels["severity"]
	}

	for kind := range fleet.Kinds { // may be either
		severity[kind] = "kind"
	}

	for _, o := range theOutages() {
		for alert := range o.pages {
			require.Contains(t, []string{"critical", "kind"}, severity[alert], "%s: %s", o.name, alert)
		}

		for alert := range o.tickets {
			require.Contains(t, []string{"warning", "kind"}, severity[alert], "%s: %s", o.name, alert)
		}

		for alert, reason := range o.may {
			require.Contains(t, []string{"warning", "kind"}, severity[alert], "%s: %s", o.name, alert)
			require.NotEmpty(t, reason, alert)
			require.NotContains(t, o.tickets, alert, "%s: it must, so it need not be allowed", o.name)
		}
	}
}

// outageFactor divides all times of rules, scrapes and platform.
func outageFactor(t *testing.T) time.Duration {
	t.Helper()
	factor, err := strconv.Atoi(cmp.Or(os.Getenv("OUTAGE_FACTOR"), "6"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, factor, 1)

	return time.Duration(factor)
}

// outagePrograms are Prometheus and a relayer.
func outagePrograms(t *testing.T) (prometheus, relayer string) {
	t.Helper()
	prometheus, err := exec.LookPath("prometheus")
	require.NoError(t, err, "install the program prometheus (Debian: prometheus)")
	relayer = filepath.Join(t.TempDir(), "escrow-relayer")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", relayer, "../cmd/escrow-relayer").CombinedOutput()
	require.NoError(t, err, "%s", out)

	return prometheus, relayer
}

// scrapeInterval is that of deploy's collector.
const scrapeInterval = 30 * time.Second

// busy is how long a look at the fleet takes where a machine is too busy for limits of seconds;
// idle it takes some milliseconds.
const busy = time.Second

// attempt returns what was wrong.
func (w *outageWorld) attempt(program string) []string {
	defer w.cleanUp()
	outages := theOutages()
	fleets := make([]*outageFleet, len(outages))
	var starting sync.WaitGroup
	for i := range outages {
		starting.Go(func() { fleets[i] = w.start(int64(1001+i), &outages[i]) })
	}

	starting.Wait()
	require.False(w.t, w.t.Failed())
	for _, f := range fleets {
		fleets = append(fleets, f.beside...)
	}

	var watched []Fleet
	for _, f := range fleets {
		watched = append(watched, Fleet{Chain: f.chain})
	}

	p := w.prometheus(program, watched)
	stop := w.probe(fleets)
	defer stop()
	if firing := p.quiet(3 * w.shortened(scrapeInterval)); len(firing) > 0 {
		stop()
		return []string{fmt.Sprintf("before anything happened: %v", firing)}
	}

	var under sync.WaitGroup
	for _, f := range fleets {
		under.Go(func() { f.suffer(p) })
	}

	under.Wait()
	stop()

	return w.report(fleets)
}

// probe looks at the database of the fleet whose leader is frozen, which is well, until it is
// stopped, and keeps the longest time.
func (w *outageWorld) probe(fleets []*outageFleet) (stop func()) {
	healthy := fleets[slices.IndexFunc(fleets, func(f *outageFleet) bool { return len(f.o.pages) == 0 })]
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			begun := time.Now()
			_, err := fleet.Read(ctx, healthy.DB, healthy.chain)
			if ctx.Err() == nil && err == nil {
				w.slowest = max(w.slowest, time.Since(begun))
			}

			select {
			case <-ctx.Done():
			case <-time.After(500 * time.Millisecond):
			}
		}
	}()

	return func() { cancel(); <-done }
}

func (w *outageWorld) later(f func() error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closers = append(w.closers, f)
}

func (w *outageWorld) cleanUp() {
	for _, closer := range slices.Backward(w.closers) {
		if err := closer(); err != nil {
			w.t.Errorf("clean up: %v", err)
		}
	}
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
	// may are the warnings that are right where they fire, and do not fire in every round, each with the
	// reason. No other may.
	may map[string]string
	// beside is how many other chains the same processes follow. Nothing may fire for them.
	beside int
	// lasts is for how long it goes on at least.
	lasts time.Duration
}

func theOutages() []outage {
	noDatabase := map[string]time.Duration{
		"RelayerNoLeader": fleet.LimitNoLeader.Critical, "RelayerDatabaseDown": fleet.LimitDatabase.Critical,
	}

	const (
		late    = "what waited when it began is as old as the outage until it is published"
		burn    = "in real time, messages of an outage of more than 256 s were late"
		errors  = "transactions that failed count for ten minutes, so it fires when the outage and the mending take longer"
		lasting = "it is true, and told when the round takes longer than its `for`: on a busy machine"
	)

	return []outage{
		{
			// Longer than DB_OUTAGE_LIMIT: every instance leaves and is started again without a database.
			name: "database stopped", pages: noDatabase, lasts: 8 * time.Minute,
			may: map[string]string{fleet.OldOutbox: late, "RelayerFreshnessBurn": burn, "RelayerCommitErrors": errors},
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
			// Who waits for an answer holds its connection.
			name: "packets to the database vanish", pages: noDatabase,
			may: map[string]string{fleet.OldOutbox: late, "RelayerCommitErrors": errors,
				"RelayerDatabaseConnections": lasting},
			begin: func(f *outageFleet) (func() error, error) { return f.database.Swallow(true), nil },
		},
		{
			name: "every relayer of the chain gone",
			may:  map[string]string{fleet.OldOutbox: late, "RelayerInstanceDown": lasting},
			pages: map[string]time.Duration{"RelayerFleetDown": fleet.LimitNoLeader.Critical,
				"RelayerNoLeader": fleet.LimitNoLeader.Critical},
			begin: func(f *outageFleet) (func() error, error) {
				for _, s := range f.relayers {
					s.keepDown()
				}

				return func() error {
					for _, s := range f.relayers {
						s.up()
					}

					return nil
				}, nil
			},
		},
		{
			// the platform ends it after a minute, and the other has long taken over
			name: "leader frozen", lasts: 4 * time.Minute,
			begin: func(f *outageFleet) (func() error, error) {
				s, err := f.leader()
				if err != nil {
					return nil, err
				}

				frozen := s.process()
				frozen.Signal(syscall.SIGSTOP)

				return func() error {
					if s.process() == frozen {
						return fmt.Errorf("%s was frozen and the platform did not restart it", s.id)
					}

					return nil
				}, nil
			},
		},
		{
			name: "Pub/Sub frozen", pages: map[string]time.Duration{fleet.OldOutbox: fleet.LimitOutbox.Critical},
			tickets: map[string]time.Duration{fleet.OldOutbox: fleet.LimitOutbox.Behind},
			may:     map[string]string{"RelayerFreshnessBurn": burn, "RelayerKeysBlocked": lasting},
			begin:   func(f *outageFleet) (func() error, error) { return f.pubsub.Freeze(), nil },
		},
		{
			// A leader whose node does not let it go on resigns, and nobody else has a node either.
			name: "node of one chain of ten down",
			pages: map[string]time.Duration{fleet.OwnNode: fleet.LimitNode.Critical, fleet.NoNode: fleet.LimitNode.Critical,
				"RelayerNoLeader": fleet.LimitNoLeader.Critical},
			may:    map[string]string{"RelayerEndpointDown": lasting, "RelayerRPCErrors": lasting},
			beside: 9,
			begin:  func(f *outageFleet) (func() error, error) { return f.node.Cut(), nil },
		},
	}
}

// outageWorld is one attempt.
type outageWorld struct {
	t       *testing.T
	factor  time.Duration
	bin     string
	dir     string                 // where Prometheus reads its targets
	breaks  func(map[string]*rule) // changes the rules of a chain, by alert; nil: they stay as they are
	slowest time.Duration          // of the looks at a healthy database; set while probe runs

	mu      sync.Mutex
	closers []func() error
}

func (w *outageWorld) shortened(d time.Duration) time.Duration { return d / w.factor }

// within is an alert's limit: a rule's is shortened; what a relayer judges is told by its own clock, and a ticket of it
// has a rule's `for` besides.
func (w *outageWorld) within(severity, alert string, limit time.Duration) time.Duration {
	switch {
	case fleet.Kinds[alert].Page == "":
		return w.shortened(limit)
	case severity == "warning":
		return limit + w.shortened(15*time.Minute)
	}

	return limit
}

// due are the alerts that an outage must bring, as severity/alert, with their limits. In the short form no outage lasts
// for a limit of more than two minutes by the relayer's clock, and in real time none for a ticket of what it judges.
func (w *outageWorld) due(o *outage) map[string]time.Duration {
	all := map[string]time.Duration{}
	for severity, of := range map[string]map[string]time.Duration{"critical": o.pages, "warning": o.tickets} {
		for alert, limit := range of {
			judged := fleet.Kinds[alert].Page != ""
			if !judged || severity == "critical" && limit <= 2*time.Minute || (severity == "critical") == (w.factor == 1) {
				all[severity+"/"+alert] = w.within(severity, alert, limit)
			}
		}
	}

	return all
}

// outageFleet is two relayers with everything around them, behind proxies that an outage may break.
type outageFleet struct {
	*lab.Lab
	w        *outageWorld
	o        *outage
	chain    int64
	relayers []*supervised
	beside   []*outageFleet // chains that its relayers follow too

	database, pubsub, node *faults.TCP

	fired map[string]time.Duration // alerts, since the outage began
	mend  time.Duration            // from its end until nothing fired
	wrong []string
}

func (w *outageWorld) start(chain int64, o *outage) *outageFleet {
	t := w.t
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	node, err := testchain.StartSim(testchain.Options{ChainID: uint64(chain), Interval: time.Second})
	require.NoError(t, err)
	w.later(node.Stop)
	l, err := lab.Start(ctx, lab.Options{Bin: w.bin, Node: node, Seed: 7, Env: map[string]string{
		"DB_OUTAGE_LIMIT":    w.shortened(5 * time.Minute).String(),
		"HEARTBEAT_INTERVAL": w.shortened(30 * time.Second).String(),
		"LEADER_STALE_AFTER": max(w.shortened(time.Minute), 10*time.Second).String(),
	}})
	require.NoError(t, err)
	w.later(l.Close)
	f := &outageFleet{Lab: l, w: w, o: o, chain: chain}
	proxy := func(raw string) (*faults.TCP, string) {
		p, behind, err := faults.ProxyURL(raw)
		require.NoError(t, err)
		w.later(p.Close)

		return p, behind
	}
	f.database, l.DatabaseURL = proxy(l.URL)
	var rpc, pubsub string
	f.node, rpc = proxy(node.HTTP())
	f.pubsub, pubsub = proxy("grpc://" + l.PubSub.Addr())
	l.RPC, l.PubSubAddr = []string{rpc}, strings.TrimPrefix(pubsub, "grpc://")

	others := f.others(ctx)
	for i := range 2 {
		id := fmt.Sprintf("r%d", i)
		s := supervise(id, max(w.shortened(10*time.Second), 2*time.Second), func() (*lab.Process, error) {
			if len(others) == 0 {
				return l.Run(id, i, 2, nil)
			}

			return l.RunChains(id, i, 2, nil, others...)
		}, func(p *lab.Process) { w.scrape(fmt.Sprintf("%d-%s", chain, id), p) })
		w.later(s.stop)
		f.relayers = append(f.relayers, s)
	}

	for _, c := range append([]*outageFleet{f}, f.beside...) {
		require.Eventually(t, func() bool {
			fl, err := fleet.Read(ctx, l.DB, c.chain)
			return err == nil && fl.Slots.Unserved == 0 && fl.Slots.Adopted == 0 && fl.Leader.Valid && fl.Live() == 2
		}, 2*time.Minute, 100*time.Millisecond, "the fleet of chain %d is whole", c.chain)
		c.traffic()
	}

	return f
}

// others sets up the chains beside.
func (f *outageFleet) others(ctx context.Context) (labs []*lab.Lab) {
	nothing := outage{name: "beside: " + f.o.name, begin: func(*outageFleet) (func() error, error) {
		return func() error { return nil }, nil
	}}
	for _, limit := range f.o.pages {
		nothing.lasts = max(nothing.lasts, limit+2*time.Minute)
	}

	for i := range f.o.beside {
		chain := 10*f.chain + int64(i)
		l, err := f.Beside(ctx, testchain.Options{ChainID: uint64(chain), Interval: time.Second})
		require.NoError(f.w.t, err)
		l.RPC = []string{l.Chain.HTTP()}
		labs = append(labs, l)
		f.beside = append(f.beside, &outageFleet{Lab: l, w: f.w, o: &nothing, chain: chain})
	}

	return labs
}

// traffic goes on until the test ends.
func (f *outageFleet) traffic() {
	t := f.w.t
	all := f.Chain.Accounts()
	traffic, err := testchain.NewTraffic(t.Context(), testchain.TrafficConfig{
		URL: f.Chain.HTTP(), Deployment: testchain.Deployment{Block: f.Contracts.Block, Factory: f.Contracts.Factory,
			Noise: f.Contracts.Noise},
		Accounts: all[:len(all)-1], Seed: 7,
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		// That it fails when the node is down is part of the outage.
		_ = lab.Every(ctx, time.Second, func() error { return traffic.Step(ctx, 2) })
	}()
	f.w.later(func() error { cancel(); <-done; traffic.Close(); return nil })
}

// leader is the relayer that leads.
func (f *outageFleet) leader() (*supervised, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	fl, err := fleet.Read(ctx, f.DB, f.chain)
	if err != nil {
		return nil, err
	}

	for _, s := range f.relayers {
		if s.id == fl.Leader.Instance {
			return s, nil
		}
	}

	return nil, fmt.Errorf("nobody leads chain %d", f.chain)
}

// scrape tells Prometheus where a relayer is now.
func (w *outageWorld) scrape(name string, p *lab.Process) {
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

func (w *outageWorld) prometheus(program string, fleets []Fleet) *prometheusServer {
	t := w.t
	dir := t.TempDir()
	rules, err := Alerts(fleets...)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "alerts.yaml"), w.shorten(rules), 0o600))
	every := w.shortened(scrapeInterval).Milliseconds()
	config := fmt.Sprintf(`
global: {scrape_interval: %[1]dms, scrape_timeout: %[1]dms, evaluation_interval: %[1]dms}
rule_files: [alerts.yaml]
scrape_configs:
  - job_name: escrow-relayer
    file_sd_configs: [{files: [%[2]q], refresh_interval: 5s}]
`, every, filepath.Join(w.dir, "*.json"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600))
	reserved, err := port.Reserve()
	require.NoError(t, err)
	w.later(reserved.Close)
	addr := reserved.Addr()
	logs, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	cmd := exec.Command(program, "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+addr)
	cmd.Stdout, cmd.Stderr = logs, logs
	require.NoError(t, cmd.Start())
	p := &prometheusServer{url: "http://" + addr, done: make(chan struct{}), change: make(chan struct{})}
	ctx, stop := context.WithCancel(context.Background())
	go func() { defer close(p.done); p.look(ctx) }()
	w.later(func() error {
		stop()
		<-p.done
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed

		return logs.Close()
	})
	require.Eventually(t, func() bool { p.mu.Lock(); defer p.mu.Unlock(); return p.rounds > 0 }, time.Minute,
		50*time.Millisecond, "Prometheus answers")

	return p
}

var (
	promRange  = regexp.MustCompile(`\[(\d+[smh])\]|offset (\d+[smh])`)
	promSecond = regexp.MustCompile(`([<>]) (\d{2,})`)
	freshLimit = regexp.MustCompile(`seconds\{[^}]*\} < 90\)`)
	inSeconds  = regexp.MustCompile(`^time\(\)|_age(_seconds)?\{`)
)

// shorten divides every time in the rules by the factor.
func (w *outageWorld) shorten(text []byte) []byte {
	var f ruleFile
	require.NoError(w.t, yaml.Unmarshal(text, &f))
	w.breakRules(&f)
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
				r.Expr = freshLimit.ReplaceAllStringFunc(r.Expr,
					func(m string) string { return strings.Replace(m, "90", seconds("90"), 1) })
			}
		}
	}

	out, err := yaml.Marshal(f)
	require.NoError(w.t, err)

	return out
}

// breakRules lets breaks change the rules, chain by chain.
func (w *outageWorld) breakRules(f *ruleFile) {
	if w.breaks == nil {
		return
	}

	chains := map[string]map[string]*rule{}
	for i := range f.Groups {
		for j := range f.Groups[i].Rules {
			r := &f.Groups[i].Rules[j]
			chain := r.Labels["chain_id"]
			if chains[chain] == nil {
				chains[chain] = map[string]*rule{}
			}

			chains[chain][r.Alert] = r
		}
	}

	for chain, rules := range chains {
		require.NotNil(w.t, rules["RelayerDatabaseDown"], "%q", chain)
		w.breaks(rules)
	}
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
			firing[a.Labels["chain_id"]+"/"+a.Labels["severity"]+"/"+cmp.Or(a.Labels["kind"], a.Labels["alertname"])] = true
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

// quiet waits until nothing has fired for so long that Prometheus has scraped everybody; it returns what
// still does after a long time.
func (p *prometheusServer) quiet(long time.Duration) []string {
	deadline := time.After(3*time.Minute + long)
	for since := time.Now(); time.Since(since) < long; {
		firing, next := p.now(0)
		if len(firing) > 0 {
			since = time.Now()
		}

		select {
		case <-next:
		case <-deadline:
			return firing
		}
	}

	return nil
}

// suffer goes through the outage and notes what fires.
func (f *outageFleet) suffer(p *prometheusServer) {
	f.fired = map[string]time.Duration{}
	expected := f.w.due(f.o)
	end, err := f.o.begin(f)
	if err != nil {
		f.wrong = append(f.wrong, fmt.Sprintf("%s: %v", f.o.name, err))
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

	// A scrape, an evaluation, and what a busy machine takes, come on top of each limit. Then it goes
	// on, for others that might fire.
	longest := f.w.shortened(f.o.lasts)
	for _, limit := range expected {
		longest = max(longest, limit)
	}

	deadline := begun.Add(longest + f.w.shortened(2*time.Minute) + time.Minute)
	for !all() && time.Now().Before(deadline) {
		<-note()
	}

	until := time.Now().Add(f.w.shortened(time.Minute))
	if last := begun.Add(f.w.shortened(f.o.lasts)); last.After(until) {
		until = last
	}

	for time.Now().Before(until) {
		<-note()
	}

	if err := end(); err != nil {
		f.wrong = append(f.wrong, fmt.Sprintf("%s: %v", f.o.name, err))
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
	f.wrong = append(f.wrong, fmt.Sprintf("%s: still firing long after it was over: %v", f.o.name, firing))
}

// report prints what fired, and returns what is wrong with it.
func (w *outageWorld) report(fleets []*outageFleet) (wrong []string) {
	var b strings.Builder
	fmt.Fprintf(&b, "times of rules, scrapes and platform divided by %d\n%-34s %-32s %9s %9s %9s\n", w.factor, "outage",
		"alert", "limit", "fired", "resolved")
	for _, f := range fleets {
		wrong = append(wrong, f.wrong...)
		if len(f.fired) == 0 {
			fmt.Fprintf(&b, "%-34s none\n", f.o.name)
		}

		for _, a := range slices.Sorted(maps.Keys(f.fired)) {
			severity, alert, _ := strings.Cut(a, "/")
			limit, expected := f.w.due(f.o)[a]
			_, allowed := f.o.may[alert]
			allowed = allowed && severity == "warning"

			says := "-"
			switch {
			case expected:
				says = limit.Round(100 * time.Millisecond).String()
			case allowed:
				says = "may"
			}

			fmt.Fprintf(&b, "%-34s %-32s %9s %9s %9s\n", f.o.name, a, says, f.fired[a].Round(100*time.Millisecond),
				f.mend.Round(100*time.Millisecond))
			if !expected && !allowed {
				wrong = append(wrong, fmt.Sprintf("%s: %s must not fire", f.o.name, alert))
			}

			if margin := w.shortened(2*time.Minute) + 30*time.Second; expected && f.fired[a] > limit+margin {
				wrong = append(wrong, fmt.Sprintf("%s: %s fired after %s, limit %s", f.o.name, alert, f.fired[a],
					limit))
			}
		}

		for alert := range w.due(f.o) {
			if f.fired[alert] == 0 {
				wrong = append(wrong, fmt.Sprintf("%s: %s did not fire", f.o.name, path.Base(alert)))
			}
		}
	}

	w.t.Log("\n" + b.String())

	return wrong
}
