package chaos

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// Verdict of the oracle.
type Verdict struct {
	Plan       Plan
	Audit      *lab.Audit
	Retracted  int
	Wrong      []string // everything that must not be
	Recovery   time.Duration
	Logs       string
	Duplicates int
}

// Clean says that nothing is wrong.
func (v *Verdict) Clean() bool { return len(v.Wrong) == 0 }

func (v *Verdict) String() string {
	s := fmt.Sprintf("seed %d: escrows %d, emitted %d, received %d, duplicates %d, retracted %d, whole after %s", v.Plan.Seed, v.Audit.Escrows, v.Audit.Emitted, v.Audit.Received, v.Duplicates, v.Retracted, v.Recovery.Round(time.Millisecond))
	if v.Clean() {
		return "ok    " + s
	}
	return "WRONG " + s + "\n  " + strings.Join(v.Wrong, "\n  ") + "\n  logs: " + v.Logs + "\n" + v.Plan.String()
}

// judge makes the fleet whole, lets the chain stand still, and compares.
func (r *run) judge(ctx context.Context) (*Verdict, error) {
	begun := time.Now()
	if err := r.heal(ctx); err != nil {
		return nil, err
	}
	deep := r.plan.Has(DeepReorg)
	last, err := r.lab.Head(ctx)
	if err != nil {
		return nil, err
	}
	// Enough blocks on top that both cursors pass whatever a reorganisation has left to settle.
	blocks := 2*r.plan.Confirmations + 10
	omits := r.plan.Has(NodeOmits)
	if omits {
		blocks += 2 * epoch
	}
	if err := r.chain.Mine(ctx, blocks); err != nil {
		return nil, err
	}
	head, err := r.lab.Head(ctx)
	if err != nil {
		return nil, err
	}
	target := head - uint64(r.plan.Confirmations)
	truth, err := r.lab.Truth(ctx, target)
	if err != nil {
		return nil, err
	}
	v := &Verdict{Plan: r.plan}
	wrong := func(format string, args ...any) { v.Wrong = append(v.Wrong, fmt.Sprintf(format, args...)) }
	settled, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	verified := int64(0)
	if omits {
		verified = int64(last)
	}
	if why := r.settle(settled, int64(target), verified); why != "" {
		wrong("not whole after %s: %s", settleTimeout, why)
	}
	if v.Audit, err = r.lab.Audit(settled, target); err != nil {
		return nil, err
	}
	v.Recovery = time.Since(begun)
	a := v.Audit
	if len(a.Missing) > 0 {
		wrong("missing: %v", a.Missing)
	}
	if len(a.Malformed) > 0 {
		wrong("malformed: %v", a.Malformed)
	}
	v.Duplicates = len(a.Duplicated)
	if !deep {
		if len(a.Duplicated) > 0 && !r.plan.Has(inDoubt...) {
			wrong("duplicated without a fault that explains it: %v", a.Duplicated)
		}
		if len(a.Unknown) > 0 {
			wrong("published below finality, or invented: %v", a.Unknown)
		}
		// What a node has left out comes when the verifier has found it, which is out of turn for its escrow.
		if len(a.Disordered) > 0 && !omits {
			wrong("out of order: %v", a.Disordered)
		}
	}
	r.retractions(truth, v, wrong)
	if err := r.tables(ctx, truth, wrong); err != nil {
		return nil, err
	}
	r.endings(ctx, wrong)
	return v, nil
}

// epoch is after how many blocks the simulated chain finalises, as Ethereum does.
const epoch = 32

// settle waits until every slot is served, every cursor has passed the target, everything up to a block has been verified, and nothing waits; it
// says what is not so.
func (r *run) settle(ctx context.Context, target, verified int64) string {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	why := ""
	for {
		f, err := fleet.Read(ctx, r.lab.DB, r.chain.ChainID().Int64())
		var orphans int
		if err == nil {
			err = r.lab.DB.QueryRow(ctx, `select count(*) from processed_events where state = 'orphaned'`).Scan(&orphans)
		}
		switch {
		case err != nil:
			why = err.Error()
		case f.Slots.Unserved > 0:
			why = fmt.Sprintf("%d slots unserved", f.Slots.Unserved)
		case f.Slots.Adopted > 0:
			why = fmt.Sprintf("%d slots adopted", f.Slots.Adopted)
		case !f.Leader.Valid:
			why = "no leader"
		case f.Chain.LowestCursor <= target || f.Chain.FactoryCursor <= target:
			why = fmt.Sprintf("cursors %d and %d, target %d", f.Chain.LowestCursor, f.Chain.FactoryCursor, target)
		case f.Chain.Verified < verified:
			why = fmt.Sprintf("verified %d of %d", f.Chain.Verified, verified)
		case f.Outbox.Messages > 0:
			why = fmt.Sprintf("%d messages in the outbox", f.Outbox.Messages)
		case f.Late.Escrows > 0:
			why = fmt.Sprintf("%d late escrows", f.Late.Escrows)
		case orphans > 0:
			why = fmt.Sprintf("%d orphans", orphans)
		default:
			return ""
		}
		select {
		case <-ctx.Done():
			return why
		case <-ticker.C:
		}
	}
}

// retractions: what was published and is not on the chain was retracted, and nothing that is on the chain was retracted last.
func (r *run) retractions(truth *testchain.Truth, v *Verdict, wrong func(string, ...any)) {
	canonical := map[string]bool{}
	for _, e := range truth.Escrows {
		for _, id := range lab.Expected(truth, e) {
			canonical[id] = true
		}
	}
	retracted := map[string]int{}
	for _, m := range r.lab.Retracted.Messages() {
		retracted[m.Attributes[message.AttrEventID]]++
	}
	v.Retracted = len(retracted)
	published := map[string]int{}
	for _, m := range r.lab.Received.Messages() {
		published[m.Attributes[message.AttrEventID]]++
	}
	for id := range published {
		if !canonical[id] && retracted[id] == 0 {
			wrong("published, not on the chain, and not retracted: %s", id)
		}
	}
	for id, n := range retracted {
		if published[id] == 0 {
			wrong("retracted without having been published: %s", id)
		}
		if canonical[id] && published[id] <= n && !r.plan.Has(inDoubt...) {
			wrong("on the chain, but retracted and not published again: %s", id)
		}
	}
}

// tables: processed_events and escrow_records say what the chain says.
func (r *run) tables(ctx context.Context, truth *testchain.Truth, wrong func(string, ...any)) error {
	want := map[string]bool{}
	type state struct {
		status    string
		approvals int
	}
	states := map[string]state{}
	for _, escrow := range truth.Escrows {
		s := state{status: "created"}
		for _, e := range truth.Events[escrow] {
			want[e.ID] = true
			switch e.Name {
			case "Approved":
				s.approvals++
				if s.status == "created" {
					s.status = "approved"
				}
			case "EscrowReleased":
				s.status = "released"
			case "EscrowRefunded":
				s.status = "refunded"
			}
		}
		states[strings.ToLower(escrow.Hex())] = s
	}
	rows, err := r.lab.DB.Query(ctx, `select event_id from processed_events where state = 'canonical' and block_number <= $1`, int64(truth.To))
	if err != nil {
		return err
	}
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return err
		}
		if !want[id] {
			wrong("stored, but not on the chain: %s", id)
		}
		delete(want, id)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for id := range want {
		wrong("on the chain, but not stored: %s", id)
	}
	rows, err = r.lab.DB.Query(ctx, `select escrow, status, approvals from escrow_records`)
	if err != nil {
		return err
	}
	for rows.Next() {
		var escrow string
		var s state
		if err := rows.Scan(&escrow, &s.status, &s.approvals); err != nil {
			return err
		}
		if states[escrow] != s {
			wrong("record of %s is %+v, the chain says %+v", common.HexToAddress(escrow), s, states[escrow])
		}
		delete(states, escrow)
	}
	for escrow := range states {
		wrong("no record of %s", escrow)
	}
	return rows.Err()
}

// endings: every process stops cleanly, none has raced or panicked, and nothing is left in the database.
func (r *run) endings(ctx context.Context, wrong func(string, ...any)) {
	for _, p := range r.procs {
		if p != nil && p.Running() {
			_ = r.stop(ctx, p)
		}
	}
	for _, s := range r.stopped {
		wrong("%s", s)
	}
	files, _ := filepath.Glob(filepath.Join(r.lab.Dir, "*.log"))
	for _, f := range files {
		b, _ := os.ReadFile(f)
		for _, sign := range []string{"DATA RACE", "panic:", "fatal error:", "WaitGroup misuse"} {
			if strings.Contains(string(b), sign) {
				wrong("%s in %s", sign, f)
			}
		}
	}
	var locks, connections int
	var kept []string // by whom slots were not given back
	var err error
	for range 50 { // the server hears of the end of a connection a moment later
		err = r.lab.DB.QueryRow(ctx, `select (select count(*) from pg_locks l join pg_stat_activity a using (pid) where l.locktype = 'advisory' and a.application_name like 'escrow-relayer/%'),
		(select count(*) from pg_stat_activity where application_name like 'escrow-relayer/%'), (select coalesce(array_agg(distinct owner), '{}') from slot_ownership where owner is not null)`).Scan(&locks, &connections, &kept)
		if err == nil && locks+connections == 0 || !pause(ctx, 100*time.Millisecond) {
			break
		}
	}
	kept = slices.DeleteFunc(kept, r.lostAtTheEnd)
	if err != nil || locks > 0 || connections > 0 || len(kept) > 0 {
		wrong("after all have stopped: %d locks, %d connections, slots not given back by %v, %v", locks, connections, kept, err)
	}
}

// lostAtTheEnd says whether an instance had no session when it stopped: on a machine as busy as this one, a session with such short probes may
// be lost at any time, and without one nothing can be given back.
func (r *run) lostAtTheEnd(id string) bool {
	b, _ := os.ReadFile(filepath.Join(r.lab.Dir, id+".log"))
	return strings.LastIndex(string(b), `"tenure over, joining again"`) > strings.LastIndex(string(b), `"joined the fleet"`)
}
