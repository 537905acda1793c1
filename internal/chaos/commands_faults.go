package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/lab"
)

// sendPatience is how long a fault waits for a transaction.
const sendPatience = 15 * time.Second

// owner is the number of the instance that has a sender now, and its process; -1 if that is not known.
func (w *way) owner(ctx context.Context, sender string) int {
	var id string
	if w.run.lab.DB.QueryRow(ctx, `select coalesce(max(instance_id), '') from senders where address = $1`,
		sender).Scan(&id) != nil {
		return -1
	}

	i, err := strconv.Atoi(strings.TrimPrefix(id, "r"))
	if err != nil {
		return -1
	}

	return i
}

// atStep waits until an instance is inside a step, and kills it, freezes it, or cuts it off there.
func (w *way) atStep(ctx context.Context, f Fault) error {
	r := w.run
	step := commandSteps[f.N%len(commandSteps)]
	i := f.Who
	if !strings.HasPrefix(step, "commands insert") && !strings.HasPrefix(step, "replies") {
		i = w.owner(ctx, lower(w.senders[f.Who%len(w.senders)].Address))
	}

	p := r.reserve(i)
	if p == nil {
		return nil
	}

	defer r.back(i)
	undo := func() error { p.Signal(syscall.SIGCONT); return nil }
	defer func() { _ = undo() }()
	caught, err := r.inStep(ctx, p, step, func() {
		r.saw("%s in %q", f.Kind, step)
		switch f.Kind {
		case StepKill:
			p.Kill()
		case StepFreeze:
			p.Signal(syscall.SIGSTOP)
		case StepCut:
			undo = r.network[i].database.Cut()
		}
	})
	if err != nil || !caught {
		return err
	}

	pause(ctx, f.For)
	if f.Kind == StepKill {
		return r.again(i)
	}

	return nil
}

// misbehave makes one node or both mistreat transactions for a time.
func misbehave(mode faults.Mode) func(*run, context.Context, Fault) error {
	return func(r *run, ctx context.Context, f Fault) error {
		fault := faults.Fault{Mode: mode, Words: sendWords[f.N%len(sendWords)]}
		if f.Keep {
			fault.Share = 0.5
		}

		for i, n := range r.nodes.front {
			if i == f.Who%2 || f.Who%3 > 0 { // both, mostly
				defer n.Inject(fault).Remove()
			}
		}

		pause(ctx, f.For)

		return nil
	}
}

// answerWait is less than a relayer waits for an answer to a transaction.
const answerWait = 4 * time.Second

// hang has one node take transactions and say nothing of them, so long that a sender comes to its next one. One that
// waits for every node comes to none within answerWait: where it has one in flight, and no other fault, that is wrong.
func (w *way) hang(ctx context.Context, f Fault) error {
	hung, p := w.run.nodes.front[f.Who%2].Inject(faults.Fault{Mode: faults.SendHangs}), w.run.plan
	defer hung.Remove()
	var last time.Time // when a transaction came
	hits, soonest := 0, sendPatience
	late := func() bool { return hits > 0 && soonest > answerWait }
	for begun := time.Now(); time.Since(begun) < f.For || late() && time.Since(begun) < sendPatience; {
		if !pause(ctx, time.Millisecond) {
			return nil
		}

		if n := hung.Hits(); n > hits {
			if hits > 0 {
				soonest = min(soonest, time.Since(last))
			}

			hits, last = n, time.Now()
		}
	}

	w.run.saw("%s: %d transactions, the next one after %s", f.Kind, hits, soonest)
	if late() && p.Commands.Senders*p.Commands.InFlight*len(p.Faults) == 1 {
		w.run.note("the sender waits for a node that does not answer")
	}

	return nil
}

// sendTrap is a crash that waits for a transaction.
type sendTrap struct {
	fault  Fault
	sprung chan int // the instance that it hit; -1: none
}

// crashSending kills or freezes the owner of a sender when its bytes arrive at a node.
func (w *way) crashSending(ctx context.Context, f Fault) error {
	r := w.run
	trap := &sendTrap{f, make(chan int, 1)}
	w.mu.Lock()
	if w.trap != nil {
		w.mu.Unlock()
		return nil // another fault waits
	}

	w.trap = trap
	w.mu.Unlock()

	var i int
	select {
	case i = <-trap.sprung:
	case <-time.After(stepPatience):
		w.mu.Lock()
		armed := w.trap == trap
		if armed {
			w.trap = nil
		}

		w.mu.Unlock()
		if armed {
			return nil
		}

		i = <-trap.sprung // it springs now
	}

	if i < 0 {
		return nil
	}

	defer r.back(i)
	r.saw("%s, taken %v", f.Kind, f.Keep)
	pause(ctx, f.For)
	if f.Kind == SendFreeze {
		r.process(i).Signal(syscall.SIGCONT)
		return nil
	}

	return r.again(i)
}

// onSend sees every transaction that a relayer sends, before the node does, and reports whether the
// node is to get it. C2: it must be in the database by now.
func (w *way) onSend(raw []byte) bool {
	var tx types.Transaction
	if tx.UnmarshalBinary(raw) != nil {
		return true
	}

	from, err := types.Sender(types.LatestSignerForChainID(w.run.chain.ChainID()), &tx)
	if err != nil {
		return true
	}

	w.replacing.RLock()
	defer w.replacing.RUnlock()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	var recorded bool
	err = w.run.lab.DB.QueryRow(ctx, `select exists (select from command_attempts where tx_hash = $1)`,
		tx.Hash().Hex()).Scan(&recorded)
	w.mu.Lock()
	if _, before := w.lost.attempt(tx.Hash()); err == nil && !recorded && !before { // else it could not be asked
		w.unrecorded = append(w.unrecorded, fmt.Sprintf("%s, nonce %d of %s", tx.Hash(), tx.Nonce(), from))
	}

	trap := w.trap
	w.trap = nil
	w.mu.Unlock()
	if trap == nil {
		return true
	}

	i := w.owner(ctx, lower(from))
	p := w.run.reserve(i)
	if p == nil {
		trap.sprung <- -1
		return true
	}

	if trap.fault.Kind == SendFreeze {
		p.Signal(syscall.SIGSTOP)
	} else {
		p.Kill()
	}

	trap.sprung <- i

	return trap.fault.Keep
}

// spike fills blocks, so that the base fee rises and nothing else gets in.
func (w *way) spike(ctx context.Context, f Fault) error {
	for range f.N {
		if err := func() error {
			w.run.mining.Lock()
			defer w.run.mining.Unlock()
			w.fill(ctx)

			return w.run.chain.Mine(ctx, 1)
		}(); err != nil {
			return err
		}

		pause(ctx, w.run.plan.BlockTime)
	}

	return nil
}

// receiptLag is by how much a node indexes receipts late.
const receiptLag = 4 * time.Second

// hideReceipts has one node or both know no receipts, or know them late, for a time.
func (w *way) hideReceipts(ctx context.Context, f Fault) error {
	var mu sync.Mutex
	asked := map[common.Hash]time.Time{} // for the first time
	hidden := func(method, result string) string {
		var r *struct{ TransactionHash common.Hash }
		if method != "eth_getTransactionReceipt" || json.Unmarshal([]byte(result), &r) != nil || r == nil {
			return result
		}

		mu.Lock()
		defer mu.Unlock()
		first, again := asked[r.TransactionHash]
		if !again {
			first = time.Now()
			asked[r.TransactionHash] = first
		}

		if f.Kind == ReceiptLate && time.Since(first) > receiptLag {
			return result
		}

		return "null"
	}
	for i, n := range w.run.nodes.front {
		if f.Both || i == f.Who%2 {
			defer n.Inject(faults.Fault{Mode: faults.Rewritten, Rewrite: hidden}).Remove()
		}
	}

	pause(ctx, f.For)
	mu.Lock()
	defer mu.Unlock()
	w.run.saw("%s: %d receipts", f.Kind, len(asked))

	return nil
}

// useKey sends a transaction with a sender's key, as a thief would; with Keep for the nonce that is to be mined next.
func (w *way) useKey(ctx context.Context, f Fault) error {
	thief := w.senders[f.N%len(w.senders)]
	sender := thief.Address
	c := w.run.chain.Client()
	nonce, err := c.PendingNonceAt(ctx, sender)
	if err != nil {
		return err
	}

	tip := big.NewInt(2e9)
	if f.Keep {
		if nonce, err = c.NonceAt(ctx, sender, nil); err != nil {
			return err
		}

		tip = big.NewInt(1e11) // more than what is offered for it
	}

	tx, err := types.SignNewTx(thief.Key, types.LatestSignerForChainID(w.run.chain.ChainID()), &types.DynamicFeeTx{
		ChainID: w.run.chain.ChainID(), Nonce: nonce, GasTipCap: tip, GasFeeCap: big.NewInt(1e12), Gas: 21000,
		To: &common.Address{1}, Value: big.NewInt(1),
	})
	if err != nil {
		return err
	}

	if c.SendTransaction(ctx, tx) == nil { // else the relayer was faster
		w.mu.Lock()
		w.foreign[tx.Hash()] = foreignUse{sender, nonce}
		w.mu.Unlock()
		w.run.saw("foreign use of nonce %d of %s: %s", nonce, sender, tx.Hash())
	}

	return nil
}

// copyName is the backup's, and goneName that of the database that it took the place of.
const (
	copyName = "backup"
	goneName = "replaced"
)

// restore copies the database, and puts the copy in its place a while later: everything since is
// forgotten, but not by the chain. Keep: the relayers run meanwhile and lose their connections only.
func (w *way) restore(ctx context.Context, f Fault) error {
	r := w.run
	r.restarting.Lock() // Postgres has to be up
	defer r.restarting.Unlock()
	if err := w.alone(ctx, `create database `+copyName+` template relayer owner `+role); err != nil {
		return err
	}

	pause(ctx, f.For)
	w.awaitForgotten(ctx)
	var down []int
	if !f.Keep {
		down = r.killEvery()
	}

	if err := w.replace(ctx); err != nil {
		return err
	}

	for _, t := range []string{"chaos_refusal", "chaos_slow", "chaos_steps"} { // faults of then
		if err := r.surely(ctx, `delete from `+t); err != nil {
			return err
		}
	}

	return r.revive(down)
}

// replace puts the copy in the database's place. What was recorded in the old one and is on its way to
// a node meanwhile arrives when both can be asked.
func (w *way) replace(ctx context.Context) error {
	w.replacing.Lock()
	defer w.replacing.Unlock()
	if err := w.alone(ctx, `alter database relayer rename to `+goneName+ // in one transaction: it is always there
		`; alter database `+copyName+` rename to relayer`); err != nil {
		return err
	}

	return w.noteForgotten(ctx)
}

// awaitForgotten waits until a transaction was sent that the copy does not know: without one nothing
// was forgotten that matters, and no sender would have to halt. It does not wait for ever: nothing may
// be asked for.
func (w *way) awaitForgotten(ctx context.Context) {
	sent := func() (n int) {
		_ = w.run.lab.DB.QueryRow(ctx, `select count(*) from command_attempts`).Scan(&n)
		return n
	}
	known := sent() // or more than that
	for begun := time.Now(); time.Since(begun) < sendPatience && sent() <= known; {
		if !pause(ctx, 20*time.Millisecond) {
			return
		}
	}
}

// noteForgotten keeps what the database that was replaced said, for the oracle.
func (w *way) noteForgotten(ctx context.Context) error {
	gone, err := pgx.Connect(ctx, w.run.lab.PG.URL(goneName))
	if err != nil {
		return fmt.Errorf("read the database that was replaced: %w", err)
	}

	lost, err := readBooks(ctx, gone)
	if err := gone.Close(ctx); err != nil {
		return err
	}

	if err != nil {
		return err
	}

	w.mu.Lock()
	w.lost = lost
	w.mu.Unlock()
	now, err := readBooks(ctx, w.run.lab.DB)
	if err != nil {
		return err
	}

	w.run.saw("restored as it was before: of %d commands %d are forgotten, of %d attempts %d", len(lost.commands),
		len(lost.commands)-len(now.commands), len(lost.attempts), len(lost.attempts)-len(now.attempts))

	return nil
}

// alone runs statements that need the databases to have no connections.
func (w *way) alone(ctx context.Context, statements ...string) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, w.run.lab.PG.URL("postgres"))
	if err != nil {
		return fmt.Errorf("connect to the maintenance database: %w", err)
	}

	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	const ours = ` where datname in ('relayer', '` + copyName + `', '` + goneName + `')`
	done := func(sql string) bool {
		_, err = conn.Exec(ctx, sql)
		return err == nil
	}
	_ = lab.Until(ctx, 20*time.Millisecond, "the databases to be free", func() bool { // somebody may be connected still
		for done(`update pg_database set datallowconn = false`+ours) &&
			done(`select pg_terminate_backend(pid) from pg_stat_activity`+ours) && len(statements) > 0 && done(statements[0]) {
			statements = statements[1:]
		}

		return len(statements) == 0 && done(`update pg_database set datallowconn = true`+ours)
	})
	w.run.lab.DB.Reset()

	return err
}

// cancelAll asks for every command of a state to be given up; empty: of any that is open.
func (w *way) cancelAll(ctx context.Context, state string) {
	rows, _ := w.run.lab.DB.Query(ctx, `select command_id from commands where answered_at is null
		and ($1 in ('', state) or $1 = 'held' and state = 'accepted' and code <> '')`, state)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return
	}

	for _, id := range ids {
		w.cancel(ctx, id)
	}
}

// cancelEvery cancels every open command.
func (w *way) cancelEvery(ctx context.Context, _ Fault) error {
	w.cancelAll(ctx, "")
	return nil
}

func lower(a common.Address) string { return strings.ToLower(a.Hex()) }
