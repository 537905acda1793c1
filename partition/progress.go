package partition

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
)

// StaleAfter is how long an instance that holds its lock counts as alive without a check of its
// slots: a process that hangs must free its slots for instances that would serve them. A check
// takes milliseconds; one that yields waits some seconds for the publisher.
const StaleAfter = 20 * time.Second

// An instance that its nodes block leaves its slots to those that can go on, and sits out until it
// can again. So does one that cannot claim, for any reason: the others leave free slots to the
// instance that prefers them, which would leave them unserved. While it sits out it has nothing to
// claim, so it counts as able:
//
//	         stuck for StallAfter, and another has been able for as long
//	works ──────────────────────────────────────────────────────────────► sits out
//	  ▲                                                                      │
//	  └──────────────────────────────────────────────────────────────────────┘
//	     able for its probation, or able while all others are stuck, or alone
//
// The other instance must have been able for as long: a fleet with nodes that all fail, or fail and
// return together, keeps its slots in place. The probation is StallAfter at first and doubles each
// time that the instance sits out, up to maxProbation: a node that fails only under the load of the
// slots would otherwise move them back and forth. It starts over once the instance has been able
// for forgetAfter.
const (
	maxProbation = 64 // times StallAfter
	forgetAfter  = 20 // times StallAfter
)

// sitsOut reports whether the instance me should sit out from now on, given whether it sits out now
// and the length of its probation.
func sitsOut(me string, fleet []Member, stallAfter, probation time.Duration) bool {
	var my Member
	var others, able, settled bool // another instance works; one of them is able; and has been for long enough
	for _, m := range fleet {
		switch {
		case m.ID == me:
			my = m
		case m.works():
			others = true
			able = able || !m.Stuck
			settled = settled || !m.Stuck && m.StateFor >= stallAfter
		}
	}

	switch {
	case !my.SitsOut:
		return my.Stuck && my.StateFor >= stallAfter && settled
	case my.Stuck:
		return others // a stuck instance has no use for slots, even if the others are stuck too
	}

	return able && my.StateFor < max(probation, stallAfter)
}

// progress tracks whether the instance can go on. It belongs to the goroutine that calls Join and
// Run.
type progress struct {
	cfg       *Config
	probation time.Duration // if the instance sits out: how long it must be able before it takes part again
	wasStuck  bool
	unclaimed error // why the last claim failed; nil after a success, or with nothing to claim
}

// stamp writes into the instance's row the time of its slot check and whether its nodes block it.
// It returns ErrFenced when the row is gone.
func (p *progress) stamp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	tag, err := p.cfg.DB.Exec(ctx, stampInstance, p.cfg.ChainID, p.cfg.InstanceID, p.stuck(ctx))
	if err != nil {
		return fmt.Errorf("write that %s checks its slots: %w", p.cfg.InstanceID, err)
	}

	if tag.RowsAffected() == 0 {
		return fmt.Errorf("%w: its row is gone", ErrFenced)
	}

	return nil
}

// stuck reports whether the instance is blocked, and logs a change.
func (p *progress) stuck(ctx context.Context) bool {
	err := p.unclaimed
	if p.cfg.Able != nil && err == nil {
		err = p.cfg.Able()
	}

	if was := p.wasStuck; was != (err != nil) {
		p.wasStuck = err != nil
		p.cfg.Log.InfoContext(ctx, "instance eligibility changed",
			slog.Bool("able", err == nil), slog.Any("err", err))
	}

	return err != nil
}

// An instance that was marked dead and comes back is alive again; if its slots were claimed
// meanwhile, its epoch shows it.
const stampInstance = `
	update relayer_instances
	set seen_at = now(), status = case when status = 'dead' then 'active' else status end, dead_since = null,
	    stuck_since = case when $3 then coalesce(stuck_since, now()) end, able_since = case when $3 then null else coalesce(able_since, now()) end
	where chain_id = $1 and instance_id = $2`

// review decides whether the instance sits out, and writes a change to the database and into the
// view.
func (p *progress) review(ctx context.Context, v *view) error {
	my := v.member(p.cfg.InstanceID)
	if my == nil {
		return nil
	}

	if !my.Stuck && !my.SitsOut && my.StateFor > forgetAfter*p.cfg.StallAfter {
		p.probation = 0
	}

	out := sitsOut(p.cfg.InstanceID, v.fleet, p.cfg.StallAfter, p.probation)
	if out == my.SitsOut {
		return nil
	}

	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	batch := &pgx.Batch{}
	batch.Queue(`update relayer_instances set sits_out = $3 where chain_id = $1 and instance_id = $2`, p.cfg.ChainID,
		p.cfg.InstanceID, out)
	batch.Queue(notify, p.cfg.ChainID)
	if err := p.cfg.DB.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("write whether %s sits out: %w", p.cfg.InstanceID, err)
	}

	my.SitsOut = out
	if out {
		p.probation = min(max(2*p.probation, p.cfg.StallAfter), maxProbation*p.cfg.StallAfter)
		p.cfg.Log.WarnContext(ctx, "leaving the slots to others: this instance is stuck and another one is able",
			slog.Duration("for", my.StateFor))

		return nil
	}

	p.cfg.Log.InfoContext(ctx, "eligible for slots again")

	return nil
}
