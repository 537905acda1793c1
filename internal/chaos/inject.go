package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math/big"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
)

// inject makes one fault, and undoes it after its time.
func (r *run) inject(ctx context.Context, f Fault) error {
	k := kinds[f.Kind]
	if k.node.Mode != "" {
		return r.hitNodes(ctx, f, k.node)
	}

	return k.do(r, ctx, f)
}

// hitProcess kills, freezes or stops one process, and lets it run again later.
func (r *run) hitProcess(ctx context.Context, f Fault) error {
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
	case Term:
		r.stop(ctx, p)
	case KillAfterAck:
		if err := r.killAfterAck(ctx, p); err != nil {
			return err
		}
	default:
		p.Kill()
	}

	if f.Kind == TakeoverReorg {
		pause(ctx, f.For/3+adoptAfter/2) // around the time at which the others adopt
		if err := r.reorganise(ctx, f); err != nil {
			return err
		}
	}

	if f.Kind != SlowStart {
		pause(ctx, f.For)
		return r.again(i)
	}

	if err := r.again(i); err != nil {
		return err
	}

	pause(ctx, f.For/4)
	if p := r.process(i); p != nil {
		p.Signal(syscall.SIGSTOP)
		pause(ctx, f.For)
		p.Signal(syscall.SIGCONT)
	}

	return nil
}

// killAll kills every process at once. With BackfillReorg they have blocks to catch up with afterwards,
// and a reorganisation comes while they do.
func (r *run) killAll(ctx context.Context, f Fault) error {
	down := r.killEvery()
	if f.Kind == BackfillReorg {
		if err := r.blocks(ctx, 30, 2*r.plan.PerBlock); err != nil {
			return err
		}
	} else {
		pause(ctx, f.For)
	}

	if err := r.revive(down); err != nil {
		return err
	}

	if f.Kind == BackfillReorg {
		pause(ctx, f.For/2)
		return r.reorganise(ctx, f)
	}

	return nil
}

// pubsub makes the server refuse, lose or delay publications: where N is drawn, those of one key in N.
func pubsub(all testpubsub.Fault) func(*run, context.Context, Fault) error {
	return func(r *run, ctx context.Context, f Fault) error {
		fault := all
		if f.N > 0 {
			fault.Match = func(m *pubsubpb.PubsubMessage) bool {
				h := fnv.New32a()
				_, _ = h.Write([]byte(m.OrderingKey))

				return h.Sum32()%uint32(f.N) == 0
			}
		}

		i := r.lab.PubSub.Inject(fault)
		pause(ctx, f.For)
		i.Remove()

		return nil
	}
}

// withoutTopic deletes the topic and creates it again. Of two such faults the second waits for the first.
func (r *run) withoutTopic(ctx context.Context, f Fault) error {
	r.topic.Lock()
	defer r.topic.Unlock()
	if err := r.lab.PubSub.DeleteTopic(lab.Project, lab.Topic); err != nil {
		return err
	}

	pause(ctx, f.For)

	r.lab.PubSub.CreateTopic(lab.Project, lab.Topic)

	return nil
}

// reorganise replaces the newest f.N blocks, or as many as there are above the deployment.
func (r *run) reorganise(ctx context.Context, f Fault) error {
	r.mining.Lock()
	defer r.mining.Unlock()
	head, err := r.lab.Head(ctx)
	if err != nil {
		return err
	}

	lowest := int(r.lab.Contracts.Block)
	if r.way != nil {
		lowest = max(lowest, r.way.endowed)
	}

	depth := min(f.N, int(head)-lowest-1)
	switch {
	case depth <= 0:
		return nil
	case f.Kind != ShiftReorg:
		return r.chain.Reorg(ctx, depth, testchain.Fate(f.Keep))
	}

	b := testchain.Rebuild{Depth: depth, Shift: 1}
	if f.Keep {
		b.Shift, b.Random = 3, rand.New(rand.NewPCG(r.plan.Seed, head))
	} else if r.shifts++; r.shifts%2 == 0 {
		b.Shift = 0 // back to where they were
	}

	return r.chain.Rebuild(ctx, b)
}

// blocks makes traffic and mines it.
func (r *run) blocks(ctx context.Context, n, actions int) error {
	r.mining.Lock()
	defer r.mining.Unlock()
	for range n {
		if r.way != nil && actions > 0 {
			r.way.step(ctx)
		}

		if err := errors.Join(r.traffic.Step(ctx, actions), r.chain.Mine(ctx, 1)); err != nil {
			return err
		}
	}

	return nil
}

// stretch makes blocks without anything.
func (r *run) stretch(ctx context.Context, f Fault) error {
	r.mining.Lock()
	defer r.mining.Unlock()
	return r.chain.Mine(ctx, f.N)
}

// burst makes many escrows in one block or a few, approves them all, and makes another contract emit
// thousands of logs.
func (r *run) burst(ctx context.Context, f Fault) error {
	r.mining.Lock()
	defer r.mining.Unlock()
	l, err := testchain.OpenLoad(ctx, r.chain, r.lab.Contracts)
	if err != nil {
		return err
	}
	escrows, err := l.Create(ctx, f.N)
	if err != nil {
		return err
	}

	return errors.Join(l.Approve(ctx, escrows), l.Emit(ctx, []common.Address{r.lab.Contracts.Noise}, 4000))
}

// hitNodes makes one node or both misbehave for a time; a node that omits logs does so until the end.
func (r *run) hitNodes(ctx context.Context, f Fault, fault faults.Fault) error {
	if err := r.particulars(ctx, f, &fault); err != nil {
		return err
	}

	nodes := r.nodes.front[f.Who%2 : f.Who%2+1]
	switch {
	case f.Kind == NodeOmits:
		nodes = r.nodes.front[:1] // always the same one: with both, nobody could notice
	case f.Both:
		nodes = r.nodes.front[:]
	}

	for _, n := range nodes {
		i := n.Inject(fault)
		if f.Kind != NodeOmits {
			defer i.Remove()
		}
	}

	if f.Kind == NodeStayed {
		if err := r.reorganise(ctx, f); err != nil {
			return err
		}
	}

	switch {
	case f.Kind == NodeStands && f.Both:
		return r.stands(ctx, f)
	case f.Kind != NodeOmits:
		pause(ctx, f.For)
	}

	return nil
}

// stands looks on while what every node calls safe stands still: for the time of the fault, and until ten more
// blocks are there and an instance has told, by the chain's own times, how far the safe one is behind. Meanwhile no
// event may be stored above the newest block that was safe before.
func (r *run) stands(ctx context.Context, f Fault) error {
	head, err := r.lab.Head(ctx)
	if err != nil {
		return err
	}

	above := int64(r.plan.Confirmations) + 10
	tag := int64(head) - int64(r.plan.Confirmations)
	begun, chain := time.Now(), r.chain.ChainID().Int64()
	bounded, cancel := context.WithTimeout(ctx, f.For+settleTimeout)
	defer cancel()
	for told := false; !told || time.Since(begun) < f.For; {
		var newest int64
		// Blocks are a second apart at least. While the database is down, the question is asked again.
		err = r.lab.DB.QueryRow(bounded, `select
			(select coalesce(max(block_number), 0) from events where chain_id = $1),
			exists (select from relayer_instances where chain_id = $1 and head_block >= $2
				and head_time - target_time >= make_interval(secs => $3))`, chain, tag+above, above).Scan(&newest, &told)
		if newest > tag {
			r.note("an event of block %d is stored, though no node has called one after %d safe", newest, tag)
			return nil
		}

		if !pause(bounded, 100*time.Millisecond) {
			if ctx.Err() == nil {
				r.note("the safe block stood still at %d for %s, and no instance told: %v", tag, time.Since(begun), err)
			}

			return nil
		}
	}

	return nil
}

// reach waits until the chain has a block, and returns the newest one.
func (r *run) reach(ctx context.Context, block uint64) (head uint64, err error) {
	for {
		if head, err = r.lab.Head(ctx); err != nil || head >= block {
			return head, err
		}

		if !pause(ctx, r.plan.BlockTime) {
			return head, ctx.Err()
		}
	}
}

// branch are the hashes of the newest blocks, and the number of the first of them.
func (r *run) branch(ctx context.Context, depth int) (first uint64, hashes []common.Hash, err error) {
	r.mining.Lock()
	defer r.mining.Unlock()
	head, err := r.lab.Head(ctx)
	if err != nil {
		return 0, nil, err
	}

	first = head - min(head, uint64(depth)) + 1
	for number := first; number <= head; number++ {
		h, err := r.chain.Client().HeaderByNumber(ctx, new(big.Int).SetUint64(number))
		if err != nil {
			return 0, nil, fmt.Errorf("read block %d: %w", number, err)
		}

		hashes = append(hashes, h.Hash())
	}

	return first, hashes, nil
}

// particulars says how exactly a node is to misbehave.
func (r *run) particulars(ctx context.Context, f Fault, fault *faults.Fault) error {
	fault.N = uint64(f.N)
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
	case NodePruned, NodeForgets: // what is older than that is gone
		head, err := r.lab.Head(ctx)
		fault.N = head - min(head, fault.N)
		return err
	case NodeUneven:
		if f.Keep {
			fault.Mode = faults.Split
		}
	case NodeStayed:
		var err error
		fault.N, fault.Branch, err = r.branch(ctx, f.N)
		return err
	case NodeStands: // above the genesis block, which has no time that would tell its age
		confirmations := uint64(r.plan.Confirmations)
		head, err := r.reach(ctx, confirmations+1)
		fault.N = head - min(head, confirmations)
		return err
	case NodeWords:
		fault.Words = unknownWords[f.N%len(unknownWords)]
	}

	return nil
}

// repartition is a rolling restart with another total.
func (r *run) repartition(ctx context.Context, f Fault) error {
	return r.roll(ctx, func() { r.total = f.N }, 300*time.Millisecond, false)
}

// roll restarts one instance after the other with other settings. The next one waits, as operators do:
// else an instance could be started with an index that is not below the newer total.
func (r *run) roll(ctx context.Context, change func(), between time.Duration, kill bool) error {
	r.resizing.Lock()
	defer r.resizing.Unlock()
	r.mu.Lock()
	old := len(r.procs)
	change()
	total := r.total
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
			continue // another fault has taken it, and starts it again with the new settings
		}

		switch {
		case p == nil || !p.Running():
		case kill:
			p.Kill()
		default:
			r.stop(ctx, p)
		}

		if i < total {
			if err := r.start(i); err != nil {
				return err
			}
		}

		r.back(i)
		pause(ctx, between)
	}

	return nil
}

// growABIs restarts all instances with all events, once what they have stored was read a second time without some, or
// after a while: other faults may hold that up.
func (r *run) growABIs(ctx context.Context, f Fault) error {
	r.mining.Lock()
	head, err := r.lab.Head(ctx)
	err = errors.Join(err, r.chain.Mine(ctx, 2*epoch))
	r.mining.Unlock()
	if err != nil {
		return err
	}

	for range 150 {
		var done bool
		_ = r.lab.DB.QueryRow(ctx, `select verified_block >= $2 from leadership where chain_id = $1`, // the database may be down
			r.chain.ChainID().Int64(), int64(head)).Scan(&done)
		if done || !pause(ctx, 100*time.Millisecond) {
			break
		}
	}

	return r.roll(ctx, func() { r.grown = true }, f.For/2, f.Keep)
}

// lesserABIs are settings that know one deployment less than the built-in ABIs, that of the older factory, and where
// wanted no refund either.
func lesserABIs(withoutRefunds bool) (map[string]string, error) {
	env := map[string]string{"FACTORY_ABI": contracts.EscrowFactoryMetaData.ABI}
	if !withoutRefunds {
		return env, nil
	}

	var all []map[string]any
	if err := json.Unmarshal([]byte(contracts.EscrowMetaData.ABI), &all); err != nil {
		return nil, fmt.Errorf("read the ABI of escrows: %w", err)
	}

	all = slices.DeleteFunc(all, func(e map[string]any) bool { return e["name"] == "EscrowRefunded" })
	lesser, err := json.Marshal(all)
	env["ESCROW_ABI"] = string(lesser)

	return env, err
}
