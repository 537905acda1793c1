package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"

	"github.com/fusion-prime/escrow-relayer/registry"
)

// settleTimeout is how long the fleet may take after the last fault until it serves every slot again
// and has published everything. A node that answered wrongly is not asked for 30 s, and for twice as
// long each further time.
const settleTimeout = 120 * time.Second

// suspectTimeout is how much longer a range may wait to be verified where a node leaves logs out: a node
// that has answered wrongly is not asked for up to ten minutes, and the second reading waits for it.
const suspectTimeout = 13 * time.Minute

// refused is the exit code of a relayer that does not fit its surroundings, such as a node of another chain.
const refused = 2

// adoptAfter is ADOPT_AFTER of the relayers.
const adoptAfter = 700 * time.Millisecond

// maxConnections of Postgres: enough for the largest fleet, few enough to take them all away.
const maxConnections = 120

// gasLimit of a block, for bursts.
const gasLimit = 400_000_000

// run is a plan in progress. Faults run side by side: what they change is under one of the locks. judge
// reads without them, since it begins when all faults have ended.
type run struct {
	plan    Plan
	lab     *lab.Lab
	chain   *testchain.Sim
	traffic *testchain.Traffic   // under mining
	shifts  int                  // how many ShiftReorgs without Keep there were; under mining
	tap     *testpubsub.Recorder // what the server stored, in all topics
	second  *second              // nil: there is none
	way     *way                 // of commands; nil: there is none

	mining     sync.Mutex // blocks, traffic and reorganisations take turns
	restarting sync.Mutex // restarts of Postgres take turns
	topic      sync.Mutex // deletions of the topic take turns
	resizing   sync.Mutex // repartitions take turns

	mu      sync.Mutex       // of what follows, but for nodes
	procs   []*lab.Process   // by number
	total   int              // TOTAL_PARTITIONS of the next start
	grown   bool             // the next start has ABIs with all events; where the plan has no Grow, every one
	started map[int]settings // by number
	seen    []string         // what is worth telling, by saw
	faulty  []string         // what must not be, by note
	dead    map[int]bool     // instances that a fault has taken; no other fault takes them
	network map[int]*network // by number

	nodes nodes // never changes once it is open
}

// settings are what a rolling restart changes.
type settings struct {
	total int
	grown bool
}

// settings of the next start.
func (r *run) settings() settings { return settings{r.total, r.grown} }

// asRole is the database's URL for relayers.
func asRole(l *lab.Lab) string { return strings.Replace(l.URL, "postgres@", role+"@", 1) }

// Run carries a plan out with a relayer's binary and returns what the oracle says.
func Run(ctx context.Context, bin string, p Plan) (v *Verdict, err error) {
	chain, err := startChain(p)
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, chain.Stop()) }()

	l, err := startLab(ctx, bin, chain, p)
	if err != nil {
		return nil, err
	}

	keep := true
	defer func() {
		err = errors.Join(err, l.Close())
		if !keep && err == nil {
			_ = os.RemoveAll(l.Dir)
		}
	}()

	if err := createRole(ctx, l); err != nil {
		return nil, err
	}

	r := &run{
		plan: p, lab: l, chain: chain, tap: l.PubSub.Tap(), total: p.Instances, grown: !p.Has(Grow),
		started: map[int]settings{}, dead: map[int]bool{}, network: map[int]*network{},
	}
	defer func() { err = errors.Join(err, r.disconnect()) }()

	if err := r.open(ctx); err != nil {
		return nil, err
	}

	if err := r.withTraffic(ctx); err != nil {
		return nil, fmt.Errorf("%w (logs: %s)", err, l.Dir)
	}

	v, err = r.judge(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w (logs: %s)", err, l.Dir)
	}

	v.Logs, v.Seen = l.Dir, r.seen
	keep = !v.Clean()

	return v, nil
}

// startChain starts the first chain of a plan.
func startChain(p Plan) (*testchain.Sim, error) {
	options := testchain.Options{Seed: p.Seed, GasLimit: gasLimit}
	if p.Commands != nil { // senders, two who make escrows, and who deploys; blocks that can be filled
		options.Accounts, options.GasLimit = trafficAccounts+p.Commands.Senders+3, 30_000_000
	}

	return testchain.StartSim(options)
}

// startLab starts Postgres and Pub/Sub, and decides the environment of the relayers.
func startLab(ctx context.Context, bin string, chain *testchain.Sim, p Plan) (*lab.Lab, error) {
	finality, confirmations := "confirmations", strconv.Itoa(p.Confirmations)
	switch {
	case p.Safe:
		finality, confirmations = "safe", ""
	case p.Latest:
		finality = "latest"
	}

	// Events are read again, so a killed Postgres may forget what it has just committed, as one does whose
	// standby takes over. A command that was answered for must not be forgotten; restore does that, and says so.
	// Nor may what was published before a reorganisation deeper than finality, which nobody could retract.
	postgres := testpg.Options{MaxConnections: maxConnections}
	if p.Commands == nil && (!p.Deep() || !p.some(func(k kind) bool { return k.forgets })) {
		postgres.Settings = map[string]string{"synchronous_commit": "off"}
	}

	l, err := lab.Start(ctx, lab.Options{
		Bin: bin, Node: chain, Confirmations: p.Confirmations, Postgres: postgres,
		Env: map[string]string{
			"FINALITY": finality, "CONFIRMATIONS": confirmations,
			"SESSION_PROBE_INTERVAL": p.Probe.String(), "ADOPT_AFTER": adoptAfter.String(), "PARTITION_STRATEGY": p.Strategy,
			"ORDERING_KEY": p.OrderingKey, "LOG_FILTER": p.Filter,
			"LEADER_STALE_AFTER": "5s", "INSTANCE_LOCK_WAIT": "30s", "LOG_LEVEL": "debug", "VERIFY_INTERVAL": "500ms",
			"POLL_INTERVAL": "200ms", "RESIGN_AFTER": "5s",
		},
	})
	if err != nil {
		return nil, err
	}

	l.DatabaseURL = asRole(l)

	return l, nil
}

// createRole makes the role that relayers log in as, and gives it their database.
func createRole(ctx context.Context, l *lab.Lab) error {
	for _, statement := range []string{`create role ` + role + ` login`, `alter database relayer owner to ` + role} {
		if _, err := l.DB.Exec(ctx, statement); err != nil {
			return fmt.Errorf("make the relayers' role: %w", err)
		}
	}

	return nil
}

// open starts the nodes, what commands need, the second chain, and the relayers.
// Of what it has started disconnect ends the nodes, after an error too, and the lab the rest.
func (r *run) open(ctx context.Context) (err error) {
	if err := r.nodes.open(r.chain, r.plan.Seed, r.lab.Dir); err != nil {
		return err
	}

	if r.plan.Safe {
		for _, n := range r.nodes.front {
			n.Inject(faults.Fault{Mode: faults.Tagged, N: uint64(r.plan.Confirmations)})
		}
	}

	if r.plan.Commands != nil {
		if r.way, err = prepare(ctx, r); err != nil {
			return err
		}
	}

	if r.plan.Second {
		if r.second, err = openSecond(ctx, r); err != nil {
			return err
		}
	}

	if err := r.startFleet(ctx); err != nil {
		return err
	}

	if r.way != nil {
		if err := r.way.addPast(ctx); err != nil {
			return err
		}
	}

	return r.instrument(ctx)
}

// startFleet starts all instances and waits until they are ready.
func (r *run) startFleet(ctx context.Context) error {
	for i := range r.plan.Instances {
		if err := r.start(i); err != nil {
			return err
		}
	}

	for i := range r.plan.Instances {
		if err := ready(ctx, r.process(i)); err != nil {
			return err
		}
	}

	return nil
}

func ready(ctx context.Context, p *lab.Process) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	return p.Ready(ctx)
}

// note keeps something that must not be, for the verdict.
func (r *run) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faulty = append(r.faulty, fmt.Sprintf(format, args...))
}

// saw keeps something worth telling, for the verdict.
func (r *run) saw(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, fmt.Sprintf(format, args...))
}

func (r *run) process(i int) *lab.Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.procs[i]
}

// disconnect ends the proxies.
func (r *run) disconnect() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, n := range r.network {
		errs = append(errs, n.close())
	}

	return errors.Join(append(errs, r.nodes.close())...)
}

// start runs an instance. Each has a network of its own.
func (r *run) start(i int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.network[i] == nil {
		n, err := connect(asRole(r.lab), r.lab.PubSub.Addr(), r.nodes.urls(i))
		if err != nil {
			return err
		}

		r.network[i] = n
	}

	env := r.network[i].environ()
	env["SSL_CERT_FILE"] = r.nodes.certificates
	if r.plan.Auto {
		env["PARTITION_NUMBER"] = "auto"
	}

	if r.plan.Clock != 0 && i == r.plan.ClockWho {
		env[clockVariable] = strconv.Itoa(int(r.plan.Clock.Seconds()))
	}

	if !r.grown {
		lesser, err := lesserABIs(r.plan.lacksRefunds())
		if err != nil {
			return err
		}

		maps.Copy(env, lesser)
	}

	p, err := r.launch("r"+strconv.Itoa(i), i, env)
	if err != nil {
		return err
	}

	r.started[i] = r.settings()
	for len(r.procs) <= i {
		r.procs = append(r.procs, nil)
	}

	r.procs[i] = p

	return nil
}

// launch starts a process of the fleet, which may follow both chains.
func (r *run) launch(id string, number int, env map[string]string) (*lab.Process, error) {
	if r.second == nil {
		return r.lab.Run(id, number, r.total, env)
	}

	first := *r.lab
	first.RPC = strings.Split(env["RPC_URLS"], ",")
	delete(env, "RPC_URLS")

	return first.RunChains(id, number, r.total, env, r.second.lab)
}

// again starts an instance, unless its number is none of the current total.
func (r *run) again(i int) error {
	r.mu.Lock()
	gone := i >= r.total
	r.mu.Unlock()
	if gone {
		return nil
	}

	return r.start(i)
}

// alive takes the process with that number for one fault, or another one that runs; nil: all are taken
// or dead. The fault gives it up by back.
func (r *run) alive(who int) (int, *lab.Process) {
	r.mu.Lock()
	n := len(r.procs)
	r.mu.Unlock()
	for k := range n {
		if p := r.reserve((who + k) % n); p != nil {
			return (who + k) % n, p
		}
	}

	return -1, nil
}

// reserve takes the process with that number; nil: there is none, it is dead, or another fault has it.
func (r *run) reserve(i int) *lab.Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i < 0 || i >= len(r.procs) || r.procs[i] == nil || !r.procs[i].Running() || r.dead[i] {
		return nil
	}

	r.dead[i] = true

	return r.procs[i]
}

// back gives up an instance that alive has taken.
func (r *run) back(i int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.dead, i)
}

// killEvery kills all instances at once that no other fault has taken, and returns their numbers.
func (r *run) killEvery() (down []int) {
	for {
		i, p := r.alive(0)
		if p == nil {
			return down
		}

		p.Kill()
		down = append(down, i)
	}
}

// revive starts instances again that killEvery has killed.
func (r *run) revive(down []int) error {
	for _, i := range down {
		if err := r.again(i); err != nil {
			return err
		}

		r.back(i)
	}

	return nil
}

// withTraffic makes blocks while play makes faults, and ends when both have ended.
func (r *run) withTraffic(ctx context.Context) (err error) {
	r.traffic, err = newTraffic(ctx, r.lab, r.plan.Seed)
	if err != nil {
		return err
	}
	defer r.traffic.Close()
	whole := ctx
	g, ctx := errgroup.WithContext(ctx)
	busy, end := context.WithCancel(ctx)
	g.Go(func() error {
		return lab.Every(busy, r.plan.BlockTime, func() error { return r.blocks(ctx, 1, r.plan.PerBlock) })
	})
	if r.way != nil {
		g.Go(func() error { return r.way.request(busy, whole) })
	}

	if r.second != nil {
		g.Go(func() error { return lab.Every(busy, 2*r.plan.BlockTime, func() error { return r.second.block(ctx) }) })
	}

	g.Go(func() error {
		if pause(busy, r.plan.Length/4) {
			return r.follow(busy)
		}

		return nil
	})
	g.Go(func() error {
		defer end()
		return r.play(ctx)
	})

	return g.Wait()
}

// play makes the faults of the plan at their times.
func (r *run) play(ctx context.Context) error {
	var g errgroup.Group
	begun := time.Now()
	for _, f := range r.plan.Faults {
		g.Go(func() error {
			if !pause(ctx, time.Until(begun.Add(f.At))) {
				return nil
			}

			if err := r.inject(ctx, f); err != nil {
				return fmt.Errorf("%s: %w", f, err)
			}

			return nil
		})
	}

	g.Go(func() error {
		pause(ctx, r.plan.Length)
		return nil
	})

	return g.Wait()
}

// follow adds the older factory, which the traffic has used from the beginning, as `escrow-relayer factory add`
// does, as soon as the database allows it.
func (r *run) follow(ctx context.Context) error {
	chainID, d := r.chain.ChainID().Int64(), r.lab.Contracts
	for {
		var known bool
		err := pgx.BeginFunc(ctx, r.lab.DB, func(tx pgx.Tx) error {
			err := tx.QueryRow(ctx, `select exists (select from factories where chain_id = $1 and address = $2) from leadership
				where chain_id = $1 for update`, chainID, d.Legacy.Bytes()).Scan(&known)
			if err != nil || known {
				return err
			}

			return registry.AddFactories(ctx, tx, chainID, []registry.Factory{{Address: d.Legacy, Start: int64(d.Block)}})
		})
		if err == nil || !pause(ctx, 100*time.Millisecond) {
			return nil
		}
	}
}

func newTraffic(ctx context.Context, l *lab.Lab, seed uint64) (*testchain.Traffic, error) {
	return testchain.NewTraffic(ctx, testchain.TrafficConfig{
		URL: l.Chain.HTTP(), Deployment: l.Contracts,
		Accounts: l.Chain.Accounts()[:trafficAccounts], Seed: seed, Mix: testchain.DenseMix(),
	})
}

// pause waits, and reports whether it was for the whole time.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// stop ends a process by SIGTERM; it has to exit with 0 within the 10 s that Cloud Run allows.
func (r *run) stop(ctx context.Context, p *lab.Process) {
	stop, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := p.Stop(stop); err != nil {
		r.note("%v", err)
	}
}

// heal makes the fleet whole: exactly the instances 0 to total-1 run, with the last total.
func (r *run) heal(ctx context.Context) error {
	defer func() { _ = r.follow(ctx) }()
	for i := range max(len(r.procs), r.total) {
		var p *lab.Process
		if i < len(r.procs) {
			p = r.procs[i]
		}

		running := p != nil && p.Running()

		// An instance may have been frozen while the others were started with other settings.
		if running && (i >= r.total || r.started[i] != r.settings()) {
			r.stop(ctx, p)
			p, running = nil, false
		}

		if p != nil && !running {
			select {
			case <-p.Exited():
				if code, err := p.Wait(ctx); err == nil && code > 0 &&
					(code != refused || !r.plan.Has(NodeChain, TopicGone)) {
					r.note("%s exited with %d by itself: %s", p.ID, code, tail(p.LogFile))
				}
			default:
			}
		}

		if !running && i < r.total {
			if err := r.start(i); err != nil {
				return err
			}
		}
	}

	return nil
}

// tail is the last line of a log.
func tail(file string) string {
	b, _ := os.ReadFile(file)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1]
}
