package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
)

// settleTimeout is how long the fleet may take after the last fault to be whole again and to have published everything. A node that gave
// an answer that is none is left alone for 30 s, and for twice as long each further time.
const settleTimeout = 120 * time.Second

// refused is the exit code of a relayer that does not fit its surroundings, such as a node of another chain.
const refused = 2

// run is a plan in progress.
type run struct {
	plan  Plan
	lab   *lab.Lab
	chain *testchain.Sim

	mu      sync.Mutex
	procs   []*lab.Process // by number
	total   int
	stopped []string // processes that ended other than they should
	dead    map[int]bool
	network map[int]*faults.TCP // between an instance and Postgres
	urls    map[int]string      // of the database, through it

	nodes [2]*faults.Node // in front of the chain
}

// Run carries a plan out with a relayer's binary and returns what the oracle says.
func Run(ctx context.Context, bin string, p Plan) (v *Verdict, err error) {
	l, err := lab.Start(ctx, lab.Options{
		Bin: bin, Seed: p.Seed, Confirmations: p.Confirmations, Postgres: testpg.Options{},
		Env: map[string]string{
			"SESSION_PROBE_INTERVAL": "300ms", "ADOPT_AFTER": "700ms", "PARTITION_STRATEGY": p.Strategy, "ORDERING_KEY": p.OrderingKey, "LOG_FILTER": p.Filter,
			"LEADER_STALE_AFTER": "5s", "INSTANCE_LOCK_WAIT": "30s", "LOG_LEVEL": "debug", "VERIFY_INTERVAL": "500ms", "POLL_INTERVAL": "200ms",
		},
	})
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
	r := &run{plan: p, lab: l, chain: l.Chain.(*testchain.Sim), total: p.Instances, dead: map[int]bool{}, network: map[int]*faults.TCP{}, urls: map[int]string{}}
	defer func() { err = errors.Join(err, r.disconnect()) }()
	for i := range r.nodes {
		if r.nodes[i], err = faults.NewNode(r.chain.HTTP(), r.chain.WS(), p.Seed+uint64(i)); err != nil {
			return nil, err
		}
	}
	for i := range p.Instances {
		if err := r.start(i); err != nil {
			return nil, err
		}
	}
	for i := range p.Instances {
		ready, cancel := context.WithTimeout(ctx, 60*time.Second)
		err := r.process(i).Ready(ready)
		cancel()
		if err != nil {
			return nil, err
		}
	}
	if err := r.play(ctx); err != nil {
		return nil, fmt.Errorf("%w (logs: %s)", err, l.Dir)
	}
	v, err = r.judge(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w (logs: %s)", err, l.Dir)
	}
	v.Logs = l.Dir
	keep = !v.Clean()
	return v, nil
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
	for _, t := range r.network {
		errs = append(errs, t.Close())
	}
	for _, n := range r.nodes {
		if n != nil {
			errs = append(errs, n.Close())
		}
	}
	return errors.Join(errs...)
}

// start runs an instance. Each has a network of its own to Postgres, and both nodes, in one of the ways that there are.
func (r *run) start(i int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.network[i] == nil {
		t, url, err := faults.ProxyURL(r.lab.URL)
		if err != nil {
			return err
		}
		r.network[i], r.urls[i] = t, url
	}
	a, b := r.nodes[0], r.nodes[1]
	rpc := [][2]string{{a.WS(), b.HTTP()}, {a.HTTP(), b.HTTP()}, {b.WS(), a.WS()}}[i%3]
	p, err := r.lab.Run("r"+strconv.Itoa(i), i, r.total, map[string]string{"DATABASE_URL": r.urls[i], "RPC_URLS": rpc[0] + "," + rpc[1]})
	if err != nil {
		return err
	}
	for len(r.procs) <= i {
		r.procs = append(r.procs, nil)
	}
	r.procs[i] = p
	return nil
}

// again starts an instance, unless a repartition has done away with its number.
func (r *run) again(i int) error {
	r.mu.Lock()
	gone := i >= r.total
	r.mu.Unlock()
	if gone {
		return nil
	}
	return r.start(i)
}

// alive returns the process with that number, or another one that runs.
func (r *run) alive(who int) (int, *lab.Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k := range r.procs {
		i := (who + k) % len(r.procs)
		if p := r.procs[i]; p != nil && p.Running() && !r.dead[i] {
			r.dead[i] = true // until it is back
			return i, p
		}
	}
	return -1, nil
}

func (r *run) back(i int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.dead, i)
}

// play makes traffic and faults, and ends when both have ended and everything is running again.
func (r *run) play(ctx context.Context) error {
	traffic, err := testchain.NewTraffic(ctx, testchain.TrafficConfig{
		URL: r.chain.HTTP(), Deployment: testchain.Deployment{Block: r.lab.Contracts.Block, Factory: r.lab.Contracts.Factory, Noise: r.lab.Contracts.Noise},
		Accounts: r.chain.Accounts()[:len(r.chain.Accounts())-1], Seed: r.plan.Seed,
	})
	if err != nil {
		return err
	}
	defer traffic.Close()
	timed, cancel := context.WithTimeout(ctx, r.plan.Length)
	defer cancel()
	var mining sync.Mutex // a reorganisation and a block take turns
	var g errgroup.Group
	g.Go(func() error {
		ticker := time.NewTicker(r.plan.BlockTime)
		defer ticker.Stop()
		for {
			select {
			case <-timed.Done():
				return nil
			case <-ticker.C:
			}
			mining.Lock()
			err := traffic.Step(ctx, r.plan.PerBlock)
			if err == nil {
				err = r.chain.Mine(ctx, 1)
			}
			mining.Unlock()
			if err != nil {
				return fmt.Errorf("traffic: %w", err)
			}
		}
	})
	begun := time.Now()
	for _, f := range r.plan.Faults {
		g.Go(func() error {
			if !pause(ctx, time.Until(begun.Add(f.At))) {
				return nil
			}
			if err := r.inject(ctx, f, &mining); err != nil {
				return fmt.Errorf("%s: %w", f, err)
			}
			return nil
		})
	}
	return g.Wait()
}

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

func (r *run) inject(ctx context.Context, f Fault, mining *sync.Mutex) error {
	pubsub := func(fault testpubsub.Fault) {
		i := r.lab.PubSub.Inject(fault)
		pause(ctx, f.For)
		i.Remove()
	}
	if mode := nodeModes[f.Kind]; mode != "" {
		return r.mislead(ctx, f, mode)
	}
	switch f.Kind {
	case DBCut, DBFreeze, DBSlow:
		return r.disturb(ctx, f)
	case Kill, Freeze, Term:
		i, p := r.alive(f.Who)
		if p == nil {
			return nil
		}
		defer r.back(i)
		switch f.Kind {
		case Freeze:
			p.Signal(syscall.SIGSTOP)
			pause(ctx, f.For)
			p.Signal(syscall.SIGCONT)
			return nil
		case Kill:
			p.Kill()
		case Term:
			if err := r.stop(ctx, p); err != nil {
				return err
			}
		}
		pause(ctx, f.For)
		return r.again(i)
	case KillAll:
		var down []int
		for {
			i, p := r.alive(0)
			if p == nil {
				break
			}
			p.Kill()
			down = append(down, i)
		}
		pause(ctx, f.For)
		for _, i := range down {
			if err := r.again(i); err != nil {
				return err
			}
			r.back(i)
		}
	case Repartition:
		return r.repartition(ctx, f.N)
	case Session:
		r.terminate(ctx, `application_name = 'escrow-relayer/r`+strconv.Itoa(f.Who)+`' and exists (select from pg_locks l where l.pid = a.pid and l.locktype = 'advisory')`)
	case Backends:
		r.terminate(ctx, `application_name like 'escrow-relayer/%'`)
	case Restart:
		return r.restart(ctx, testpg.Fast)
	case Crash:
		return r.restart(ctx, testpg.Immediate)
	case PubSubDown:
		pubsub(testpubsub.Fault{Code: codes.Unavailable})
	case Denied:
		pubsub(testpubsub.Fault{Code: codes.PermissionDenied})
	case AckLost:
		pubsub(testpubsub.Fault{Code: codes.Aborted, Stored: true, Times: 3})
	case Slow:
		pubsub(testpubsub.Fault{Delay: 300 * time.Millisecond})
	case Reorg, DeepReorg:
		mining.Lock()
		defer mining.Unlock()
		head, err := r.lab.Head(ctx)
		if err != nil {
			return err
		}
		if depth := min(f.N, int(head)-int(r.lab.Contracts.Block)-1); depth > 0 {
			return r.chain.Reorg(ctx, depth, testchain.Fate(f.Keep))
		}
	}
	return nil
}

// mislead makes one node or both misbehave for a time; one that omits logs does so from then on.
func (r *run) mislead(ctx context.Context, f Fault, mode faults.Mode) error {
	fault := faults.Fault{Mode: mode, N: uint64(f.N)}
	switch f.Kind {
	case NodeSlow:
		fault.Delay = f.For / 2
	case NodeLimited:
		if f.Keep {
			fault.Delay = time.Second // as Retry-After
		}
	case NodeTruncated, NodeMalformed, NodeHTML, NodeFailing:
		if f.Keep {
			fault.Share = 0.3
		}
	case NodeChain:
		fault.N = 5
	case NodePruned:
		head, err := r.lab.Head(ctx)
		if err != nil {
			return err
		}
		fault.N = head - min(head, 20)
	}
	nodes := r.nodes[f.Who%2 : f.Who%2+1]
	switch {
	case f.Kind == NodeOmits:
		nodes = r.nodes[:1] // always the same: with both, nothing could tell
	case f.Both:
		nodes = r.nodes[:]
	}
	for _, n := range nodes {
		i := n.Inject(fault)
		if f.Kind != NodeOmits {
			defer i.Remove()
		}
	}
	if f.Kind != NodeOmits {
		pause(ctx, f.For)
	}
	return nil
}

// disturb the network between an instance and Postgres for a time.
func (r *run) disturb(ctx context.Context, f Fault) error {
	r.mu.Lock()
	t := r.network[f.Who]
	r.mu.Unlock()
	var undo func() error
	var err error
	switch f.Kind {
	case DBCut:
		undo = t.Cut()
	case DBFreeze:
		undo, err = t.Freeze()
	case DBSlow:
		undo, err = t.Slow(150 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	pause(ctx, f.For)
	return undo()
}

// restart is one at a time.
var restarting sync.Mutex

func (r *run) restart(ctx context.Context, mode testpg.Mode) error {
	restarting.Lock()
	defer restarting.Unlock()
	return r.lab.PG.Restart(ctx, mode)
}

func (r *run) terminate(ctx context.Context, where string) {
	// The database may be down: then there is nothing to terminate.
	_, _ = r.lab.DB.Exec(ctx, `select pg_terminate_backend(a.pid) from pg_stat_activity a where a.pid <> pg_backend_pid() and `+where)
}

// stop ends a process by SIGTERM; it has to exit with 0 within the 10 s that Cloud Run leaves.
func (r *run) stop(ctx context.Context, p *lab.Process) error {
	stop, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := p.Stop(stop); err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.stopped = append(r.stopped, err.Error())
	}
	return nil
}

// repartition restarts one instance after the other with another total.
func (r *run) repartition(ctx context.Context, total int) error {
	r.mu.Lock()
	old := len(r.procs)
	r.total = total
	r.mu.Unlock()
	for i := range max(old, total) {
		r.mu.Lock()
		var p *lab.Process
		if i < len(r.procs) && !r.dead[i] {
			p = r.procs[i]
		}
		busy := i < len(r.procs) && r.dead[i]
		r.dead[i] = true
		r.mu.Unlock()
		if busy {
			continue // another fault has it, and starts it again with the new total
		}
		if p != nil && p.Running() {
			if err := r.stop(ctx, p); err != nil {
				return err
			}
		}
		if i < total {
			if err := r.start(i); err != nil {
				return err
			}
		}
		r.back(i)
		pause(ctx, 300*time.Millisecond)
	}
	return nil
}

// heal makes the fleet whole: exactly the instances 0 to total-1 run, with the last total.
func (r *run) heal(ctx context.Context) error {
	for i := range max(len(r.procs), r.total) {
		var p *lab.Process
		if i < len(r.procs) {
			p = r.procs[i]
		}
		running := p != nil && p.Running()
		if running && i >= r.total {
			if err := r.stop(ctx, p); err != nil {
				return err
			}
		}
		if p != nil && !running {
			select {
			case <-p.Exited():
				if code, err := p.Wait(ctx); err == nil && code > 0 && (code != refused || !r.plan.Has(NodeChain)) {
					r.stopped = append(r.stopped, fmt.Sprintf("%s exited with %d by itself: %s", p.ID, code, tail(p.LogFile)))
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

func tail(file string) string {
	b, _ := os.ReadFile(file)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1]
}
