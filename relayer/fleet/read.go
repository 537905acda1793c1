package fleet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/partition"
)

// outboxCounted is how many messages of the outbox are counted exactly: about 10 ms. More would
// burden the database when many people look at the fleet during an outage of Pub/Sub.
const outboxCounted = 20_000

// DB is a pool or a connection.
type DB interface {
	BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error)
}

// Read reads the whole fleet. It counts the registry, which costs some 100 ms at a million escrows:
// who reads every few seconds uses a Reader. A chain that is new to the database
// gives a Fleet with Known false and a problem for it, rather than an error.
func Read(ctx context.Context, db DB, chainID int64) (Fleet, error) {
	return read(ctx, db, chainID, nil)
}

// read uses the given counts, if any, instead of counting the registry.
func read(ctx context.Context, db DB, chainID int64, counted *Escrows) (f Fleet, err error) {
	r := rows{f: Fleet{ChainID: chainID}}
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, db, snapshot, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(selectLeadership, chainID).QueryRow(r.readLeadership)
		batch.Queue(selectLocks).Query(r.readLocks)
		batch.Queue(selectPassed, chainID).Query(r.readPassed)
		batch.Queue(selectInstances, chainID, forget.Seconds(), forgetStopped.Seconds(), election.ApplicationName("")).
			Query(into(&r.instances))
		batch.Queue(selectSlots, chainID).Query(into(&r.groups))
		batch.Queue(selectOutbox, chainID, outboxCounted).Query(r.outbox.read)
		batch.Queue(selectLate, chainID).Query(r.late.read)
		batch.Queue(selectFaults, chainID).Query(into(&r.f.Faults))
		batch.Queue(selectFindings, chainID).Query(into(&r.f.Findings))
		batch.Queue(selectLast, pgx.StrictNamedArgs{"chain": chainID, "limit": lastEvents}).Query(into(&r.f.Events))
		batch.Queue(selectTrying, chainID).Query(into(&r.f.trying))
		batch.Queue(selectWaits, election.ApplicationName("")).Query(into(&r.f.waits))
		r.queueCommands(batch)
		if counted == nil {
			batch.Queue(countEscrows, chainID).Query(r.readEscrows)
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

// into reads all rows of a statement, whose columns are the fields of a T in their order.
func into[T any](list *[]T) func(pgx.Rows) error {
	return func(rows pgx.Rows) (err error) {
		*list, err = pgx.CollectRows(rows, pgx.RowToStructByPos[T])
		return err
	}
}

// forget is how long a dead instance that owns nothing is shown: platforms with a new name for each
// replica leave many behind.
const forget = 24 * time.Hour

// forgetStopped is the same for one that stopped cleanly: long enough to see a restart.
const forgetStopped = 15 * time.Minute

// rows are what the statements return: the statements of one batch fill it, one after the other,
// and fold combines it.
type rows struct {
	f           Fleet
	leaderKey   int64 // of the lock that the leader's session holds
	leaderSince *time.Time
	factoryTime *time.Time
	beat        *time.Time
	locks       map[int64]int32 // advisory lock key to the pid of its holder, strangers excluded
	strangers   []strangerRow
	instances   []instanceRow // of f.Instances, in the same order
	groups      []group
	outbox      backlog
	late        backlog
	head        *time.Time // of the newest block that a live instance has reported; nil: unknown
	target      *time.Time // of the newest that may be processed
}

// group is a set of slots with one owner since one moment.
type group struct {
	Owner string
	Next  int64
	Since time.Time
	Slots []int16
}

// selectLeadership reads the row of the chain beside the time of the snapshot; all null for an
// unknown chain.
const selectLeadership = `
	select now(), l.chain_id is not null, coalesce(l.instance_id, ''), coalesce(l.epoch, 0), l.since, l.last_heartbeat,
	       coalesce(l.next_block, 0), l.block_time, coalesce(l.verified_block, 0), coalesce(l.start_block, 0),
	       coalesce((select string_agg(hex(f.address), ',' order by f.id) from factories f where f.chain_id = $1), ''),
	       coalesce((select sum(f.until_block - f.past_block)::bigint from factories f where f.chain_id = $1), 0),
	       coalesce(l.lock_key, 0),
	       pg_is_in_recovery() or exists (select from pg_settings where name = 'default_transaction_read_only'
	         and setting = 'on' and source in ('configuration file', 'database', 'global', 'command line'))
	from (select $1::bigint as chain_id) c left join leadership l using (chain_id)`

func (r *rows) readLeadership(row pgx.Row) error {
	l, c := &r.f.Leader, &r.f.Chain
	return row.Scan(&r.f.At, &r.f.Known, &l.Instance, &l.Epoch, &r.leaderSince, &r.beat, &c.FactoryCursor,
		&r.factoryTime, &c.Verified, &c.Start, &c.Factory, &c.Past, &r.leaderKey, &r.f.ReadOnly)
}

// selectLocks lists the holders of 64-bit advisory locks of this database. One reading of pg_locks
// serves all instances, so a lock that changes hands is seen once.
const selectLocks = `select key, pid, ours, coalesce(login::text, ''), coalesce(application, '') from all_locks()`

func (r *rows) readLocks(rows pgx.Rows) error {
	r.locks = map[int64]int32{}
	var key int64
	var ours bool
	var s Stranger
	_, err := pgx.ForEachRow(rows, []any{&key, &s.PID, &ours, &s.Login, &s.Application}, func() error {
		if ours {
			r.locks[key] = s.PID
		} else {
			r.strangers = append(r.strangers, strangerRow{key, s})
		}

		return nil
	})

	return err
}

// strangerRow is the holder of an advisory lock with a login that may not change our tables.
type strangerRow struct {
	key int64
	Stranger
}

// selectPassed lists the former keys of locks that got another one because of a stranger.
const selectPassed = `select passed, purpose, name from lock_turns where chain_id = $1`

func (r *rows) readPassed(rows pgx.Rows) error {
	var key int64
	var purpose, name string
	_, err := pgx.ForEachRow(rows, []any{&key, &purpose, &name}, func() error {
		r.foreign(key, strings.TrimSpace(purpose+" "+name))
		return nil
	})

	return err
}

// foreign records the strangers that hold a lock of ours.
func (r *rows) foreign(key int64, lock string) {
	for _, s := range r.strangers {
		if s.key == key {
			s.Lock = lock
			r.f.Strangers = append(r.f.Strangers, s.Stranger)
		}
	}
}

// selectInstances has the columns of instanceRow, in their order, without instances that died long
// ago and own nothing.
const selectInstances = `
	select i.instance_id, i.partition_number, i.total_partitions, i.strategy, i.status, i.settings,
	       i.started_at, i.version, i.escrows_monitored, coalesce(c.next_block, 0), coalesce(i.head_block, 0), coalesce(i.trust, ''),
	       i.left_at is not null, i.lock_key, i.last_heartbeat, i.seen_at, i.dead_since, c.block_time,
	       i.head_time, i.target_time, i.stuck_since, h.standing_since, h.reported_at, coalesce(h.fault, ''), h.fault_since,
	       exists (select from pg_stat_activity a where a.datname = current_database() and a.pid <> pg_backend_pid()
	         and a.application_name = $4 || i.instance_id and has_table_privilege(a.usesysid, 'leadership', 'update'))
	       and not exists (select from instance_health o where o.instance_id = i.instance_id and o.chain_id <> i.chain_id
	         and o.reported_at > h.reported_at + interval '1 minute')
	from relayer_instances i left join cursors c using (chain_id, instance_id)
	left join instance_health h using (chain_id, instance_id)
	where i.chain_id = $1 and (i.dead_since is null
	      or i.dead_since > now() - make_interval(secs => case when i.left_at is null then $2::float8 else $3::float8 end)
	      or exists (select from slot_ownership s where s.chain_id = i.chain_id and s.owner = i.instance_id))`

// selectTrying finds the last report of what is wrong. A platform may pause for minutes before it starts a process
// again.
const selectTrying = `
	select instance_id, fault, reported_at from instance_health
	where chain_id = $1 and fault <> '' and reported_at > now() - interval '10 minutes' order by reported_at desc limit 1`

// instanceRow is an instance as the statement returns it.
type instanceRow struct {
	Instance
	Left       bool // it stopped cleanly
	LockKey    int64
	Beat, Seen time.Time // when it last wrote its heartbeat, and last checked its slots
	DeadSince  *time.Time
	BlockTime  *time.Time // of the block below its cursor
	HeadTime   *time.Time // of the newest block of its nodes, as of its last heartbeat
	TargetTime *time.Time // of the newest block that it may process
	Stuck      *time.Time // since when its nodes block it; nil: it is able
	Standing   *time.Time // since when it has stored no block while there are some; nil: it goes on
	Reported   *time.Time // when it last committed a report of itself
	Told       string     // Instance.Fault
	Faulty     *time.Time // since when something has been wrong
	Connected  bool       // a connection has its name, and does not report for other chains alone
}

const selectSlots = `
	select coalesce(owner, ''), next_block, since, array_agg(slot) from slot_ownership where chain_id = $1
		group by owner, next_block, since`

// selectOutbox counts the oldest messages that wait, at most so many of the outbox and of the log, by slot. It reads a
// part of the log by the key, from the lowest place on: of a backlog beyond that part it sees less. The places are
// columns with an element for each slot, since a look at its row for each event takes five times as long.
const selectOutbox = `
	with s as materialized (
		select array_agg(sent_block order by slot) as blocks, array_agg(sent_index order by slot) as indexes,
			min(sent_block) as low
		from slot_ownership where chain_id = $1),
	o as (
		(select slot, created_at from outbox where chain_id = $1 order by seq limit $2)
		union all
		(select e.slot, e.processed_at
		 from s cross join lateral (
			select slot, processed_at, block_number, log_index, told and not apart as logged from events
			where chain_id = $1 and block_number >= s.low order by block_number, log_index limit 5 * $2::bigint) e
		 where e.logged and (e.block_number, e.log_index) > (s.blocks[e.slot + 1], s.indexes[e.slot + 1]) limit $2))
	select slot, count(*), min(created_at) from o group by slot`

// selectLate reads a small table: escrows leave it once they are caught up.
const selectLate = `
	select slot, count(*), min(since) from late_escrows where chain_id = $1 group by slot`

// selectFaults reads what endpoints are set aside for.
const selectFaults = `
	select endpoint, kind, since at time zone 'UTC' from endpoint_faults where chain_id = $1
		order by since, endpoint, kind`

// selectFindings reads the open findings on what the ABI does not know, and the others of the last hour.
const selectFindings = `
	select kind, sum(events), min(found_at) at time zone 'UTC', coalesce((array_agg(detail order by id desc))[1], '')
	from findings
	where chain_id = $1 and (kind in ('undecodable_event', 'unannounced_contract') and settled_at is null
		or kind in ('missing_event', 'extra_event', 'deep_reorg', 'announced_again') and found_at > now() - interval '1 hour')
	group by kind order by kind`

// backlog is what waits, by slot.
type backlog struct {
	bySlot map[int16]int
	all    int64
	oldest *time.Time // nil: it is empty
}

// read reads slot, count and the time of the oldest.
func (b *backlog) read(rows pgx.Rows) error {
	b.bySlot = map[int16]int{}
	var slot int16
	var n int
	var oldest time.Time
	_, err := pgx.ForEachRow(rows, []any{&slot, &n, &oldest}, func() error {
		b.bySlot[slot] = n
		b.all += int64(n)
		if b.oldest == nil || oldest.Before(*b.oldest) {
			first := oldest
			b.oldest = &first
		}

		return nil
	})

	return err
}

const countEscrows = `select status, count(*) from escrow_registry where chain_id = $1 group by status`

func (r *rows) readEscrows(rows pgx.Rows) error {
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

// fold combines the rows.
func (r *rows) fold() Fleet {
	f := &r.f
	f.At = f.At.UTC()
	if r.factoryTime != nil {
		f.Chain.FactoryTime = r.factoryTime.UTC()
	}

	if r.leaderSince != nil {
		f.Leader.Since = r.leaderSince.UTC()
	}

	f.Leader.HeartbeatAge = r.ageOf(r.beat)
	holder, held := r.locks[r.leaderKey]
	f.Leader.Held = held
	r.foreign(r.leaderKey, "leader")
	f.Instances = make([]Instance, len(r.instances))
	index := make(map[string]*Instance, len(r.instances))
	for n := range r.instances {
		i := &f.Instances[n]
		*i = r.foldInstance(&r.instances[n])
		r.foreign(r.instances[n].LockKey, "instance "+i.ID)
		if i.Alive {
			i.Leader = held && r.locks[r.instances[n].LockKey] == holder
			f.Leader.Valid = f.Leader.Valid || i.Leader && i.ID == f.Leader.Instance
			f.Chain.NodeHead = max(f.Chain.NodeHead, i.Head)
			r.newest(&r.instances[n])
		}

		index[i.ID] = i
	}

	f.Chain.HeadAge, f.Chain.TargetAge = r.lasting(r.head), r.lasting(r.target)
	r.foldHead()
	r.foldSlots(index)
	f.setStates()
	slices.SortFunc(f.Instances, func(a, b Instance) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.Total, b.Total), cmp.Compare(a.ID, b.ID))
	})

	f.Outbox = Outbox{Messages: r.outbox.all, More: r.outbox.all >= outboxCounted, OldestAge: r.ageOf(r.outbox.oldest)}

	f.Late = Late{Escrows: r.late.all, OldestAge: r.ageOf(r.late.oldest)}
	f.Problems = f.Judge()

	return *f
}

// newest raises the times of the newest blocks to those that a live instance knows. A block that is stored may be up to
// 30 s newer than the heartbeat, and so are the heights that are shown beside the ages.
func (r *rows) newest(i *instanceRow) {
	if i.HeadTime != nil {
		r.head = later(later(r.head, i.HeadTime), i.BlockTime)
	}

	if i.TargetTime != nil {
		r.target = later(later(r.target, i.TargetTime), i.BlockTime)
	}
}

// foldInstance computes an instance, except what it owns and whether it leads.
func (r *rows) foldInstance(row *instanceRow) Instance {
	i := row.Instance
	_, locked := r.locks[row.LockKey]
	i.connected, i.left, i.Fault = locked || row.Connected, row.Left, row.Told
	i.Alive = locked && r.f.At.Sub(row.Seen) <= partition.StaleAfter
	i.Partition = partition.Partition{Number: i.Number, Total: i.Total, Strategy: partition.Strategy(i.Strategy)}
	i.Started, i.HeartbeatAge = i.Started.UTC(), r.age(row.Beat)
	if row.BlockTime != nil {
		i.CursorTime = row.BlockTime.UTC()
	}

	i.StuckFor, i.StandingFor, i.ReportAge = r.lasting(row.Stuck), r.lasting(row.Standing), r.lasting(row.Reported)
	i.FaultFor = r.lasting(row.Faulty)

	switch {
	case i.Alive:
	case row.DeadSince != nil:
		i.DeadFor = r.age(*row.DeadSince)
	default: // it was alive when it last wrote
		i.DeadFor = min(r.age(row.Beat), r.age(row.Seen))
	}

	return i
}

// foldHead raises the head to the newest report. A heartbeat is older than a commit: a processed
// block exists. Cursors at a START_BLOCK above every node's head prove nothing.
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

// foldSlots computes the server of each slot, and what each instance owns.
func (r *rows) foldSlots(index map[string]*Instance) {
	s, c := &r.f.Slots, &r.f.Chain
	s.Total = partition.Slots
	for _, g := range r.groups {
		owner := index[g.Owner]
		next := int64(0) // the next block of these slots; 0: unknown
		switch {
		case owner != nil:
			next = owner.Cursor
		case g.Owner == "":
			next = g.Next
		}

		if next > 0 && (c.LowestCursor == 0 || next < c.LowestCursor) {
			c.LowestCursor = next
		}

		for _, number := range g.Slots {
			s.Each = append(s.Each, r.foldSlot(number, &g, owner))
		}
	}

	s.Unserved = s.Free + s.Dead
	slices.SortFunc(s.Each, func(a, b Slot) int { return cmp.Compare(a.Number, b.Number) })
}

// foldSlot counts one slot of a group. owner is nil if the slot is free, or the owner has no row.
func (r *rows) foldSlot(number int16, g *group, owner *Instance) Slot {
	s := &r.f.Slots
	slot := Slot{Number: number, Owner: g.Owner, Since: g.Since.UTC(), Unserved: r.age(g.Since)}
	if owner != nil {
		owner.Slots++
		owner.Outbox += r.outbox.bySlot[number]
		owner.Late += r.late.bySlot[number]
		slot.Served, slot.Adopted, slot.Unserved = owner.Alive, !owner.Partition.Prefers(number), owner.DeadFor
		if slot.Adopted {
			owner.Adopted++
		}
	}

	switch {
	case slot.Served:
		s.Served++
		if slot.Adopted {
			s.Adopted++
		}

		return slot
	case g.Owner == "":
		s.Free++
	default:
		s.Dead++
	}

	slot.Adopted = false

	return slot
}

// setStates sets the state of each instance.
func (f *Fleet) setStates() {
	for n := range f.Instances {
		i := &f.Instances[n]
		switch {
		case !i.Alive && i.left:
			i.State = Stopped
		case !i.Alive && f.replaced(i):
			i.State = Replaced
		case !i.Alive && i.connected:
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

// replaced reports whether a dead instance is superseded: another one has its partition, or the
// partition is gone.
func (f *Fleet) replaced(gone *Instance) bool {
	if gone.Slots > 0 {
		return false
	}

	exists, lives := false, false
	for i := range f.alive() {
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

// later is the later of two optional times.
func later(a, b *time.Time) *time.Time {
	if a == nil || b != nil && b.After(*a) {
		return b
	}

	return a
}

// age is at least zero: a row may have been written between the start of the snapshot's transaction
// and its first statement.
func (r *rows) age(t time.Time) Age { return Age(max(0, r.f.At.Sub(t))) }

// lasting is ageOf of a state that may have begun this moment, which is no 0.
func (r *rows) lasting(t *time.Time) Age {
	if t == nil {
		return 0
	}

	return max(1, r.age(*t))
}

// ageOf is the age of an optional time; 0 for nil.
func (r *rows) ageOf(t *time.Time) Age {
	if t == nil {
		return 0
	}

	return r.age(*t)
}
