package chaos

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
)

// requestSome asks for a replay of some stored events, in their order, as `escrow-relayer replay` does.
const requestSome = `
	insert into requests (chain_id, block_number, log_index, slot, escrow, kind)
	select chain_id, block_number, log_index, slot, escrow, 2
	from (select * from events where chain_id = $1 and told order by random() limit 8) e
	order by escrow, type <> 1, block_number, log_index`

// replays has events published again while the fleet publishes others. Every second request is written
// by a transaction that stays open while the owners of the slots commit, so that it is committed behind
// requests and events with higher numbers. That the database fails meanwhile is no error.
func (r *run) replays(ctx context.Context, f Fault) error {
	n := 0
	r.repeat(ctx, f.For, 50*time.Millisecond, func() {
		tx, err := r.lab.DB.Begin(ctx)
		if err != nil {
			return
		}

		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
		if _, err := tx.Exec(ctx, requestSome, r.chain.ChainID().Int64()); err != nil {
			return
		}

		if n++; n%2 == 0 {
			pause(ctx, f.For/4)
		}

		_ = tx.Commit(ctx)
		_, _ = r.lab.DB.Exec(ctx, `select pg_notify('relayer_requests', $1::text)`, r.chain.ChainID().Int64())
	})

	return nil
}

// killBackend ends one server process of an instance by SIGKILL: Postgres ends all others and recovers,
// without being started again.
func (r *run) killBackend(ctx context.Context, _ Fault) error {
	r.restarting.Lock()
	defer r.restarting.Unlock()
	var pid int
	if err := r.lab.DB.QueryRow(ctx, `
		select pid from pg_stat_activity where application_name like 'escrow-relayer/%' order by state = 'active' desc, random()
		limit 1`).Scan(&pid); err != nil {
		return nil // nobody is connected, or the database is down for another fault
	}

	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill the server process %d: %w", pid, err)
	}

	return nil
}

// lateAndStayed keeps the leader from finding escrows while their owners go on, and has the nodes answer
// small ranges only, part of them from a branch that the chain has left: the escrows are caught up in
// several ranges.
func (r *run) lateAndStayed(ctx context.Context, f Fault) error {
	for _, n := range r.nodes.front {
		defer n.Inject(faults.Fault{Mode: faults.Range, N: 2}).Remove()
	}

	var g errgroup.Group
	leaderless := f
	leaderless.For += 3 * time.Second
	g.Go(func() error { return r.flap(ctx, leaderless) })
	g.Go(func() error {
		pause(ctx, f.For/2+2*time.Second)
		f.Kind, f.For = NodeStayed, f.For+2*time.Second
		return r.hitNodes(ctx, f, faults.Fault{Mode: faults.Stayed, Share: 0.4})
	})

	return g.Wait()
}
