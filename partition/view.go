package partition

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// querier is a pool, a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// view is the fleet and its slots as the database has them.
type view struct {
	epoch  int64 // of this instance's own cursor row
	fleet  []Member
	groups []Group
}

// glance reads the fleet outside of any transaction.
func (c *Claimer) glance(ctx context.Context) (view, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.look(ctx, c.cfg.DB)
}

func (c *Claimer) look(ctx context.Context, q querier) (v view, err error) {
	batch := &pgx.Batch{}
	batch.Queue(`select epoch from cursors where chain_id = $1 and instance_id = $2`, c.cfg.ChainID, c.cfg.InstanceID).
		QueryRow(func(row pgx.Row) error { return row.Scan(&v.epoch) })
	batch.Queue(selectFleet, c.cfg.ChainID).
		Query(func(rows pgx.Rows) error { v.fleet, err = collectFleet(rows); return err })
	batch.Queue(selectGroups, c.cfg.ChainID).
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
	return v, nil
}

// selectFleet reads every instance of the chain; the sessions of the living hold their locks.
const selectFleet = `
	select i.instance_id, i.partition_number, i.total_partitions, i.strategy, i.status = 'active',
	       exists (select from pg_locks l where l.locktype = 'advisory' and l.granted and l.objsubid = 1
	               and l.database = (select oid from pg_database where datname = current_database())
	               and (l.classid::bigint << 32 | l.objid::bigint) = i.lock_key),
	       coalesce(extract(epoch from now() - i.dead_since), 0)::float8
	from relayer_instances i where i.chain_id = $1`

const selectGroups = `
	select coalesce(owner, ''), extract(epoch from now() - since)::float8, array_agg(slot)
	from slot_ownership where chain_id = $1 group by owner, since`

func readFleet(ctx context.Context, q querier, chainID int64) ([]Member, error) {
	rows, _ := q.Query(ctx, selectFleet, chainID)
	fleet, err := collectFleet(rows)
	if err != nil {
		return nil, fmt.Errorf("read the fleet: %w", err)
	}
	return fleet, nil
}

func collectFleet(rows pgx.Rows) ([]Member, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (m Member, err error) {
		var deadFor float64
		p := &m.Partition
		err = row.Scan(&m.ID, &p.Number, &p.Total, &p.Strategy, &m.Active, &m.Alive, &deadFor)
		m.DeadFor = time.Duration(deadFor * float64(time.Second))
		return m, err
	})
}

// buryDead records since when an instance without a session is dead: the adoption of its slots counts from there.
func (c *Claimer) buryDead(ctx context.Context, v view) error {
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
	// One that came back in between has its lock again, and its own update made it active; the condition spares it.
	rows, err := c.cfg.DB.Query(ctx, markDead, c.cfg.ChainID, dead)
	if err != nil {
		return fmt.Errorf("mark the dead: %w", err)
	}
	rows.Close()
	return rows.Err()
}

const markDead = `
	update relayer_instances i set status = 'dead', dead_since = now()
	where i.chain_id = $1 and i.instance_id = any($2) and i.status <> 'dead'
	  and not exists (select from pg_locks l where l.locktype = 'advisory' and l.granted and l.objsubid = 1
	                  and l.database = (select oid from pg_database where datname = current_database())
	                  and (l.classid::bigint << 32 | l.objid::bigint) = i.lock_key)`
