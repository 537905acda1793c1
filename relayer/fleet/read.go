package fleet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/partition"
)

// outboxCounted is how many messages of the outbox are counted one by one: about 10 ms. Past it a
// fleet that many people look at during an outage of Pub/Sub would burden the database that has to
// survive it.
const outboxCounted = 20_000

// DB is a pool or a connection.
type DB interface {
	BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error)
}

// Read reads the whole fleet. It counts the registry, which costs some 100 ms at a million escrows;
// who reads every few seconds wants a Reader. A chain that the database does not know gives a Fleet
// with Known false and a problem that says so, not an error.
func Read(ctx context.Context, db DB, chainID int64) (Fleet, error) {
	return read(ctx, db, chainID, nil)
}

// read does not count the registry again when counts are given.
func read(ctx context.Context, db DB, chainID int64, counted *Escrows) (f Fleet, err error) {
	r := rows{f: Fleet{ChainID: chainID, Instances: []Instance{}}}
	err = inSnapshot(ctx, db, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(selectLeadership, chainID).QueryRow(r.leadership)
		batch.Queue(selectLocks).Query(r.readLocks)
		batch.Queue(selectInstances, chainID, forget.Seconds(), forgetStopped.Seconds()).Query(r.instances)
		batch.Queue(selectForgotten, chainID, forget.Seconds(),
			forgetStopped.Seconds()).QueryRow(func(row pgx.Row) error { return row.Scan(&r.f.Forgotten) })
		batch.Queue(selectSlots, chainID).Query(r.slots)
		batch.Queue(selectOutbox, chainID, outboxCounted).Query(r.outbox)
		batch.Queue(selectOutboxSpan, chainID).QueryRow(func(row pgx.Row) error { return row.Scan(&r.span) })
		batch.Queue(selectLate, chainID).Query(r.late)
		r.queueCommands(batch)
		if counted == nil {
			batch.Queue(countEscrows, chainID).Query(r.escrows)
		} else {
			r.f.Escrows = *counted
		}

		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return Fleet{}, fmt.Errorf("read the fleet of chain %d: %w", chainID, err)
	}

	return r.fold(), nil
}

func inSnapshot(ctx context.Context, db DB, f func(pgx.Tx) error) error {
	tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return err
	}

	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = tx.Rollback(ctx) // nothing was written; a connection that cannot roll back is thrown away
	}()

	return f(tx)
}

// forget is how long a dead instance that owns nothing is shown: platforms that name each replica
// anew leave many behind.
const forget = 24 * time.Hour

// forgetStopped is the same for one that stopped cleanly: long enough to see a restart.
const forgetStopped = 15 * time.Minute

// rows are what the statements return, before it is put together.
type rows struct {
	f           Fleet
	leaderSince *time.Time
	beat        *time.Time
	locks       map[int64]int32 // advisory lock key to the pid of its holder
	lockKeys    []int64         // of f.Instances
	deadSince   []*time.Time    // of f.Instances
	beats       []time.Time     // of f.Instances
	seen        []time.Time     // of f.Instances: when each last checked its slots
	groups      []group
	outboxBy    map[int16]int
	oldest      *time.Time
	counted     int64
	span        int64
	lateBy      map[int16]int
	oldestLate  *time.Time
}

// group is a set of slots with one owner since one moment.
type group struct {
	owner string
	next  int64
	since time.Time
	slots []int16
}

// selectLeadership reads the row of the chain beside the time of the snapshot; all null where there
// is no such chain.
const selectLeadership = `
	select now(), l.chain_id is not null, coalesce(l.instance_id, ''), coalesce(l.epoch, 0), l.since, l.last_heartbeat,
	       coalesce(l.next_block, 0), coalesce(l.verified_block, 0), coalesce(l.start_block, 0), coalesce(l.factory, '')
	from (select $1::bigint as chain_id) c left join leadership l using (chain_id)`

func (r *rows) leadership(row pgx.Row) error {
	l, c := &r.f.Leader, &r.f.Chain
	return row.Scan(&r.f.At, &r.f.Known, &l.Instance, &l.Epoch, &r.leaderSince, &r.beat, &c.FactoryCursor, &c.Verified,
		&c.Start, &c.Factory)
}

// selectLocks lists the holders of 64-bit advisory locks of this database. One reading of pg_locks
// serves all instances, so that no lock is seen twice while it changes hands.
const selectLocks = `select key, pid from held_locks()`

func (r *rows) readLocks(rows pgx.Rows) error {
	r.locks = map[int64]int32{}
	var key int64
	var pid int32
	_, err := pgx.ForEachRow(rows, []any{&key, &pid}, func() error { r.locks[key] = pid; return nil })

	return err
}

// selectInstances leaves out those that died long ago and own nothing.
const selectInstances = `
	select i.instance_id, i.partition_number, i.total_partitions, i.strategy, i.status, i.last_heartbeat, i.dead_since, i.started_at, i.version,
	       i.escrows_monitored, coalesce(i.head_block, 0), i.lock_key, coalesce(c.next_block, 0), c.block_time, c.updated_at,
	       i.seen_at, i.left_at is not null, i.sits_out, i.settings
	from relayer_instances i left join cursors c using (chain_id, instance_id)
	where i.chain_id = $1 and (i.dead_since is null
	      or i.dead_since > now() - make_interval(secs => case when i.left_at is null then $2::float8 else $3::float8 end)
	      or exists (select from slot_ownership s where s.chain_id = i.chain_id and s.owner = i.instance_id))`

const selectForgotten = `
	select count(*) from relayer_instances i
	where i.chain_id = $1 and i.dead_since <= now() - make_interval(secs => case when i.left_at is null then $2::float8 else $3::float8 end)
	  and not exists (select from slot_ownership s where s.chain_id = i.chain_id and s.owner = i.instance_id)`

func (r *rows) instances(rows pgx.Rows) error {
	for rows.Next() {
		var i Instance
		var beat, seen time.Time
		var dead, at, moved *time.Time
		var key int64
		if err := rows.Scan(&i.ID, &i.Number, &i.Total, &i.Strategy, &i.Status, &beat, &dead, &i.Started, &i.Version,
			&i.Escrows, &i.Head, &key, &i.Cursor, &at, &moved, &seen, &i.left, &i.SitsOut, &i.Settings); err != nil {
			return err
		}

		i.Partition = partition.Partition{Number: i.Number, Total: i.Total, Strategy: partition.Strategy(i.Strategy)}
		if at != nil {
			i.CursorTime = at.UTC()
		}

		if moved != nil && i.Cursor > 0 {
			i.CursorAge = r.age(*moved)
		}

		i.Started = i.Started.UTC()
		r.f.Instances = append(r.f.Instances, i)
		r.lockKeys = append(r.lockKeys, key)
		r.deadSince = append(r.deadSince, dead)
		r.beats = append(r.beats, beat)
		r.seen = append(r.seen, seen)
	}

	return rows.Err()
}

const selectSlots = `
	select coalesce(owner, ''), next_block, since, array_agg(slot) from slot_ownership where chain_id = $1
		group by owner, next_block, since`

func (r *rows) slots(rows pgx.Rows) error {
	for rows.Next() {
		var g group
		if err := rows.Scan(&g.owner, &g.next, &g.since, &g.slots); err != nil {
			return err
		}

		r.groups = append(r.groups, g)
	}

	return rows.Err()
}

// selectOutbox counts the oldest messages, at most so many, by slot.
const selectOutbox = `
	select slot, count(*), min(created_at) from (select slot, created_at from outbox where chain_id = $1 order by seq
		limit $2) o group by slot`

// selectOutboxSpan is an upper bound of the number of messages: sequence numbers have gaps.
const selectOutboxSpan = `select coalesce(max(seq) - min(seq) + 1, 0) from outbox where chain_id = $1`

func (r *rows) outbox(rows pgx.Rows) error {
	r.outboxBy = map[int16]int{}
	var slot int16
	var n int
	var oldest time.Time
	_, err := pgx.ForEachRow(rows, []any{&slot, &n, &oldest}, func() error {
		r.outboxBy[slot] = n
		r.counted += int64(n)
		r.oldest = earlier(r.oldest, oldest)

		return nil
	})

	return err
}

// selectLate reads a small table: escrows leave it once they are caught up.
const selectLate = `
	select slot, count(*), min(since) from late_escrows where chain_id = $1 group by slot`

func (r *rows) late(rows pgx.Rows) error {
	r.lateBy = map[int16]int{}
	var slot int16
	var n int
	var oldest time.Time
	_, err := pgx.ForEachRow(rows, []any{&slot, &n, &oldest}, func() error {
		r.lateBy[slot] = n
		r.f.Late.Escrows += int64(n)
		r.oldestLate = earlier(r.oldestLate, oldest)

		return nil
	})

	return err
}

const countEscrows = `select status, count(*) from escrow_registry where chain_id = $1 group by status`

func (r *rows) escrows(rows pgx.Rows) error {
	e := &r.f.Escrows
	by := map[string]*int64{"active": &e.Active, "released": &e.Released, "refunded": &e.Refunded, "orphaned": &e.Orphaned}
	var status string
	var n int64
	_, err := pgx.ForEachRow(rows, []any{&status, &n}, func() error {
		count, ok := by[status]
		if !ok {
			return fmt.Errorf("count escrows of unknown status %q", status)
		}

		*count = n

		return nil
	})

	return err
}

// fold puts the rows together.
func (r *rows) fold() Fleet {
	f := &r.f
	f.At = f.At.UTC()
	if r.leaderSince != nil {
		f.Leader.Since = r.leaderSince.UTC()
	}

	if r.beat != nil {
		f.Leader.HeartbeatAge = r.age(*r.beat)
	}

	holder, held := r.locks[election.LeaderKey(f.ChainID)]
	f.Leader.Held = held
	index := make(map[string]*Instance, len(f.Instances))
	for n := range f.Instances {
		r.foldInstance(n, holder)
		index[f.Instances[n].ID] = &f.Instances[n]
	}

	r.foldHead()
	r.foldSlots(index)
	f.setStates()
	slices.SortFunc(f.Instances, func(a, b Instance) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.Total, b.Total), cmp.Compare(a.ID, b.ID))
	})

	f.Outbox.Messages = r.counted
	if r.counted >= outboxCounted {
		f.Outbox.Messages, f.Outbox.Estimated = r.span, r.span > r.counted
	}

	if r.oldest != nil {
		f.Outbox.OldestAge = r.age(*r.oldest)
	}

	if r.oldestLate != nil {
		f.Late.OldestAge = r.age(*r.oldestLate)
	}

	f.Problems = f.Judge(DefaultLimits)

	return *f
}

// foldInstance says of the nth instance whether it lives and leads. The session of process holder
// holds the leader lock; 0 is none.
func (r *rows) foldInstance(n int, holder int32) {
	f := &r.f
	i := &f.Instances[n]
	pid, locked := r.locks[r.lockKeys[n]]
	i.locked, i.Alive = locked, locked && f.At.Sub(r.seen[n]) <= partition.StaleAfter
	i.HeartbeatAge = r.age(r.beats[n])
	if i.Alive {
		f.Chain.NodeHead = max(f.Chain.NodeHead, i.Head)
		i.Leader = f.Leader.Held && pid == holder
		f.Leader.Valid = f.Leader.Valid || i.Leader && i.ID == f.Leader.Instance
	} else {
		// It lived when it last wrote anything.
		died := r.beats[n]
		if r.seen[n].After(died) {
			died = r.seen[n]
		}

		if r.deadSince[n] != nil {
			died = *r.deadSince[n]
		}

		i.DeadFor = r.age(died)
	}

	for s := range int16(partition.Slots) {
		if i.Partition.Prefers(s) {
			i.Preferred++
		}
	}
}

// foldHead puts the head where the newest of all reports says. A heartbeat is older than a commit:
// what was processed is there. Cursors that stand at a START_BLOCK which no node has yet prove
// nothing.
func (r *rows) foldHead() {
	f := &r.f
	f.Chain.Head = f.Chain.NodeHead
	if f.Chain.Start > f.Chain.NodeHead {
		return
	}

	f.Chain.Head = max(f.Chain.Head, f.Chain.FactoryCursor-1)
	for n := range f.Instances {
		i := &f.Instances[n]
		i.Head = max(i.Head, i.Cursor-1)
		if i.Alive {
			f.Chain.Head = max(f.Chain.Head, i.Head)
		}
	}
}

func (r *rows) foldSlots(index map[string]*Instance) {
	s := &r.f.Slots
	s.Total = partition.Slots
	lowest := func(next int64) {
		if c := &r.f.Chain.LowestCursor; *c == 0 || next < *c {
			*c = next
		}
	}
	for _, g := range r.groups {
		owner := index[g.owner]
		switch {
		case owner != nil && owner.Cursor > 0:
			lowest(owner.Cursor)
		case g.owner == "":
			lowest(g.next)
		}

		for _, number := range g.slots {
			slot := Slot{Number: number, Owner: g.owner, Since: g.since.UTC()}
			switch {
			case g.owner == "":
				slot.Unserved = r.age(g.since)
				s.Free++
			case owner == nil || !owner.Alive:
				slot.Unserved = r.age(g.since)
				if owner != nil {
					slot.Unserved = owner.DeadFor
				}

				s.Dead++
			default:
				slot.Served = true
				slot.Adopted = !owner.Partition.Prefers(number)
				s.Served++
			}

			if slot.Adopted {
				s.Adopted++
			}

			if owner != nil {
				owner.Slots++
				owner.Outbox += r.outboxBy[number]
				owner.Late += r.lateBy[number]
				if !owner.Partition.Prefers(number) {
					owner.Adopted++
				}
			}

			s.Each = append(s.Each, slot)
		}
	}

	s.Unserved = s.Free + s.Dead
	slices.SortFunc(s.Each, func(a, b Slot) int { return cmp.Compare(a.Number, b.Number) })
}

// setStates says of each instance what it is to an operator.
func (f *Fleet) setStates() {
	for n := range f.Instances {
		i := &f.Instances[n]
		switch {
		case !i.Alive && i.left:
			i.State = Stopped
		case !i.Alive && f.replaced(i):
			i.State = Replaced
		case !i.Alive && i.locked:
			i.State = Hung
		case !i.Alive:
			i.State = Dead
		case i.Status == "stopping":
			i.State = Stopping
		case i.Slots == 0:
			i.State = Standby
		default:
			i.State = Serving
		}
	}
}

// replaced says whether nobody misses an instance that is not alive: another one has its partition,
// or there is no such partition any more.
func (f *Fleet) replaced(gone *Instance) bool {
	if gone.Slots > 0 {
		return false
	}

	exists, lives := false, false
	for n := range f.Instances {
		i := &f.Instances[n]
		if !i.Alive {
			continue
		}

		lives = true
		if i.Total == gone.Total && i.Strategy == gone.Strategy {
			exists = true
			if i.Number == gone.Number {
				return true
			}
		}
	}

	return lives && !exists
}

// age is never negative: a row may have been written between the start of the snapshot's
// transaction and its first statement.
func (r *rows) age(t time.Time) Age { return Age(max(0, r.f.At.Sub(t))) }

func earlier(a *time.Time, b time.Time) *time.Time {
	if a == nil || b.Before(*a) {
		return &b
	}

	return a
}
