package partition

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// querier is a pool, a connection or a transaction.
type querier interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// view is the fleet and its slots as in the database.
type view struct {
	epoch  int64   // of this instance's cursor row; 0: the row is missing
	mine   []int16 // the slots of this instance, ascending
	fleet  []Member
	groups []Group
}

// readNow reads the view outside of a transaction.
func readNow(ctx context.Context, cfg *Config) (view, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()

	return read(ctx, cfg, cfg.DB)
}

func read(ctx context.Context, cfg *Config, q querier) (v view, err error) {
	batch := &pgx.Batch{}
	batch.Queue(`select coalesce((select epoch from cursors where chain_id = $1 and instance_id = $2), 0),
		array(`+heldSlots+`)`, cfg.ChainID, cfg.InstanceID).
		QueryRow(func(row pgx.Row) error { return row.Scan(&v.epoch, &v.mine) })
	batch.Queue(selectFleet, cfg.ChainID, cfg.StaleAfter.Seconds()).
		Query(func(rows pgx.Rows) error { v.fleet, err = collectFleet(rows); return err })
	batch.Queue(selectGroups, cfg.ChainID).
		Query(func(rows pgx.Rows) error {
			v.groups, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (g Group, err error) {
				var seconds float64
				err = row.Scan(&g.Owner, &seconds, &g.Slots)
				g.Since = time.Duration(seconds * float64(time.Second))

				return g, err
			})

			return err
		})
	if err := q.SendBatch(ctx, batch).Close(); err != nil {
		return v, fmt.Errorf("read the fleet: %w", err)
	}

	for i := range v.fleet {
		m := &v.fleet[i]
		m.Serves = slices.ContainsFunc(v.groups, func(g Group) bool {
			return g.Owner == m.ID && slices.ContainsFunc(g.Slots, m.Partition.Prefers)
		})
		knows := slices.IndexFunc(v.fleet, func(o Member) bool { return o.works() && lacks(m.events, o.events) })
		if knows >= 0 {
			m.Lacks = v.fleet[knows].ID
		}
	}

	return v, nil
}

// member returns an instance of the fleet, or nil.
func (v *view) member(id string) *Member {
	i := slices.IndexFunc(v.fleet, func(m Member) bool { return m.ID == id })
	if i < 0 {
		return nil
	}

	return &v.fleet[i]
}

// living is the condition that an instance i is alive: its session holds its lock, and its slot
// checks are recent.
const living = `i.seen_at > now() - make_interval(secs => $2)
	           and exists (select from held_locks() l where l.key = i.lock_key)`

// selectFleet reads every instance of the chain.
const selectFleet = `
	select i.instance_id, i.partition_number, i.total_partitions, i.strategy, i.status = 'active', ` + living + `,
	       coalesce(extract(epoch from now() - i.dead_since), 0)::float8, i.stuck_since is not null,
	       extract(epoch from now() - coalesce(i.stuck_since, i.able_since))::float8, i.sits_out,
	       coalesce(i.settings -> 'events', '{}')
	from relayer_instances i where i.chain_id = $1`

const selectGroups = `
	select coalesce(owner, ''), extract(epoch from now() - since)::float8, array_agg(slot)
	from slot_ownership where chain_id = $1 group by owner, since`

func collectFleet(rows pgx.Rows) ([]Member, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (m Member, err error) {
		var deadFor, stateFor float64
		p := &m.Partition
		err = row.Scan(&m.ID, &p.Number, &p.Total, &p.Strategy, &m.Active, &m.Alive, &deadFor, &m.Stuck,
			&stateFor, &m.SitsOut, &m.events)
		m.DeadFor, m.StateFor = time.Duration(deadFor*float64(time.Second)), time.Duration(stateFor*float64(time.Second))

		return m, err
	})
}

// markDead records when an instance died: AdoptAfter counts from then.
func markDead(ctx context.Context, cfg *Config, v view) error {
	var dead []string
	for _, m := range v.fleet {
		if !m.Alive && m.DeadFor == 0 {
			dead = append(dead, m.ID)
		}
	}

	if len(dead) == 0 {
		return nil
	}

	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	// The statement's condition spares an instance that came back after the read.
	rows, err := cfg.DB.Query(ctx, markInstances, cfg.ChainID, cfg.StaleAfter.Seconds(), dead)
	if err != nil {
		return fmt.Errorf("mark dead instances: %w", err)
	}

	rows.Close()

	return rows.Err()
}

const markInstances = `
	update relayer_instances i set status = 'dead', dead_since = now()
	where i.chain_id = $1 and i.instance_id = any($3) and i.status <> 'dead' and not (` + living + `)`
