package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

const (
	scaleBackfill = 1000 // blocks
	scaleLive     = 60   // blocks, one per second
	scaleWarm     = 12   // blocks before those: until Postgres has the statistics of what happened earlier
	// The highest power of the number of instances that a cost may grow with. With 1 every instance
	// costs the same, with 2 the cost is the square.
	scalePower = 1.2
)

// scaleInstances are the fleets that Scale measures.
var scaleInstances = []int{1, 2, 3, 5, 10}

// Scale is what fleets of different sizes cost one database and the node, backfilling and live, at
// 20 events per block: the cost per block of the chain, of all instances together. The power says
// how the cost grows from one instance to the largest fleet.
func Scale(ctx context.Context, o *Options) (figures []Figure, err error) {
	l, err := lab.Start(ctx, lab.Options{Bin: o.Bin, Postgres: testpg.Options{Durable: true}})
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, l.Close()) }()
	s := scale{Options: o, lab: l}
	if s.template, err = l.PG.Template(ctx); err != nil {
		return nil, err
	}

	if _, _, err = history(ctx, l, max(10, o.scaled(scaleBackfill))); err != nil {
		return nil, err
	}

	if s.load, err = testchain.OpenLoad(ctx, l.Chain, l.Contracts); err != nil {
		return nil, err
	}

	defer s.load.Close()
	costs := map[string][]fleetCost{}
	var sizes []float64
	for _, n := range o.some(scaleInstances) {
		backfill, live, err := s.measure(ctx, n)
		if err != nil {
			return nil, fmt.Errorf("%d instances: %w", n, err)
		}

		sizes = append(sizes, float64(n))
		for way, c := range map[string]fleetCost{"backfill": backfill, "live": live} {
			o.say("scale: %s, %d instances, per block: %s", way, n, c)
			costs[way] = append(costs[way], c)
		}
	}

	return s.figures(sizes, costs)
}

// figures of the costs by way, one for each of sizes, and the plot.
func (s *scale) figures(sizes []float64, costs map[string][]fleetCost) (figures []Figure, err error) {
	p := plot{x: sizes, xName: "instances"}
	for _, kind := range []struct {
		name, unit string
		of         func(fleetCost) float64
	}{
		{"transactions", "transactions/block", func(c fleetCost) float64 { return c.transactions }},
		{"rows", "rows written/block", func(c fleetCost) float64 { return c.written }},
		{"read", "rows read/block", func(c fleetCost) float64 { return c.read }},
		{"wal", "WAL bytes/block", func(c fleetCost) float64 { return c.wal }},
		{"connections", "connections", func(c fleetCost) float64 { return c.connections }},
		{"requests", "requests/block", func(c fleetCost) float64 { return c.requests }},
		{"bytes", "RPC bytes/block", func(c fleetCost) float64 { return c.bytes }},
	} {
		panel := panel{title: kind.unit}
		for _, way := range []string{"live", "backfill"} {
			if kind.name == "connections" && way == "backfill" { // the instances have stopped when it is read
				continue
			}

			var values []float64
			for i, c := range costs[way] {
				v := kind.of(c)
				values = append(values, v)
				figures = append(figures, s.once(fmt.Sprintf("scale.%s.%s.%.0f", way, kind.name, sizes[i]), kind.unit, 0, v))
			}

			if values[0] == 0 {
				return nil, fmt.Errorf("%s of one instance, %s: none; the statistics of the database have not arrived",
					kind.unit, way)
			}

			power := math.Log(values[len(values)-1]/values[0]) / math.Log(sizes[len(sizes)-1]/sizes[0])
			figures = append(figures, s.atMost("scale."+way+"."+kind.name+".power", "power of instances", scalePower, power,
				ratios(values)))
			panel.lines = append(panel.lines, line{name: way, y: values})
		}

		p.panels = append(p.panels, panel)
	}

	return figures, s.draw("scale.svg", &p)
}

// fleetCost is what a fleet costs: since the start of the database, or per block of the chain.
type fleetCost struct {
	transactions, written, read, wal float64
	connections                      float64 // now, not per block
	requests, bytes                  float64 // at the node, sent and received
}

func (c fleetCost) String() string {
	return fmt.Sprintf("%.1f transactions, %.1f rows written, %.1f read, %.0f bytes of WAL, %.1f requests, %.0f RPC bytes; %.0f connections",
		c.transactions, c.written, c.read, c.wal, c.requests, c.bytes, c.connections)
}

// perBlock is the cost per block since before.
func (c fleetCost) perBlock(before fleetCost, blocks int) fleetCost {
	n := float64(blocks)

	return fleetCost{
		(c.transactions - before.transactions) / n, (c.written - before.written) / n, (c.read - before.read) / n,
		(c.wal - before.wal) / n,
		c.connections, (c.requests - before.requests) / n, (c.bytes - before.bytes) / n,
	}
}

type scale struct {
	*Options
	lab      *lab.Lab
	load     *testchain.Load
	template string
}

// measure runs n instances on an empty database until they have read the chain, and again while it
// grows.
func (s *scale) measure(ctx context.Context, n int) (backfill, live fleetCost, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	name := "scale_" + strconv.Itoa(n)
	if err := s.lab.PG.CreateDatabase(ctx, name, s.template); err != nil {
		return backfill, live, err
	}

	db, err := pgxpool.New(ctx, s.lab.PG.URL(name))
	if err != nil {
		return backfill, live, err
	}
	defer db.Close()
	clones, err := s.load.Clone(ctx, perBlock)
	if err != nil {
		return backfill, live, err
	}

	if backfill, err = s.measureBackfill(ctx, db, name, n); err != nil {
		return backfill, live, err
	}

	live, err = s.measureLive(ctx, db, name, n, clones)

	return backfill, live, err
}

// measureBackfill is the cost per block of reading the chain up to its head, the start of the
// instances included.
func (s *scale) measureBackfill(ctx context.Context, db *pgxpool.Pool, name string, n int) (c fleetCost, err error) {
	head, err := finalise(ctx, s.lab)
	if err != nil {
		return c, err
	}

	start, err := s.cost(ctx, name, usage{})
	if err != nil {
		return c, err
	}

	var requests usage
	blocks := int(head-s.lab.Contracts.Block) + 1
	began := time.Now()
	err = s.with(ctx, name, n, func(fleet []*lab.Process) error {
		if err := s.drained(ctx, db, fleet, head); err != nil {
			return err
		}

		s.say("scale: %d instances read %.0f blocks/s, their start included", n, perSecond(blocks, time.Since(began)))
		requests, err = used(ctx, fleet...)

		return err
	})
	if err != nil {
		return c, err
	}

	// A session reports what it did at its end, if not before: the instances have stopped by now.
	end, err := s.cost(ctx, name, requests)

	return end.perBlock(start, blocks), err
}

// measureLive is the cost per block of blocks that come once per second.
func (s *scale) measureLive(ctx context.Context, db *pgxpool.Pool, name string, n int,
	clones []common.Address) (c fleetCost, err error) {
	warm := scaleWarm
	if s.Scale < 0.1 {
		warm = 1
	}

	err = s.with(ctx, name, n, func(fleet []*lab.Process) error {
		if err := s.shared(ctx, db, n); err != nil {
			return err
		}

		if err := s.follow(ctx, db, fleet, clones, warm); err != nil {
			return err
		}

		before, err := s.live(ctx, name, fleet)
		if err != nil {
			return err
		}

		blocks := max(5, s.scaled(scaleLive))
		if err := s.follow(ctx, db, fleet, clones, blocks); err != nil {
			return err
		}

		after, err := s.live(ctx, name, fleet)
		c = after.perBlock(before, blocks)

		return err
	})

	return c, err
}

// with calls do while n instances run.
func (s *scale) with(ctx context.Context, name string, n int, do func([]*lab.Process) error) (err error) {
	var fleet []*lab.Process
	defer func() {
		for _, p := range fleet {
			err = errors.Join(err, p.Stop(context.WithoutCancel(ctx)))
		}
	}()
	for i := range n {
		p, err := s.lab.Run(fmt.Sprintf("%s_%d", name, i), i, n, map[string]string{
			"DATABASE_URL": s.lab.PG.URL(name), "FACTORY_ADDRESS": s.lab.Contracts.Load.Hex(),
			"ESCROW_ABI": contracts.NoiseMetaData.ABI, "FINALITY": "latest",
			"RPC_URLS":        s.lab.Chain.WS(),
			"VERIFY_INTERVAL": "30s", "HEARTBEAT_INTERVAL": "30s", "LOG_LEVEL": "warn",
			"ADOPT_AFTER": "10m", // all instances will come, one after the other
		})
		if err != nil {
			return err
		}

		fleet = append(fleet, p)
	}

	return do(fleet)
}

// follow mines blocks, one per second, and waits until the last is processed and published.
func (s *scale) follow(ctx context.Context, db *pgxpool.Pool, fleet []*lab.Process, clones []common.Address,
	blocks int) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for range blocks {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}

		if err := s.load.Emit(ctx, clones, 1); err != nil {
			return err
		}
	}

	head, err := s.lab.Head(ctx)
	if err != nil {
		return err
	}

	return s.drained(ctx, db, fleet, head)
}

// drained waits until everything up to a block is processed and published. It asks the fleet first,
// so that the database has little to do with it: its statistics count these queries too.
func (s *scale) drained(ctx context.Context, db *pgxpool.Pool, fleet []*lab.Process, block uint64) error {
	err := poll(ctx, 50*time.Millisecond, fmt.Sprintf("block %d to be processed", block), func() bool {
		slots := 0.0
		for _, p := range fleet {
			m, err := p.Metrics(ctx)
			owned := m.Sum("relayer_slots_owned")
			if slots += owned; err != nil || owned > 0 && m.Sum("relayer_cursor_block") <= float64(block) {
				return false
			}
		}

		return slots == 2520
	})
	if err != nil {
		return err
	}

	return poll(ctx, 100*time.Millisecond, "the outbox to be empty", func() bool {
		n := -1
		return db.QueryRow(ctx, `select count(*) from outbox`).Scan(&n) == nil && n == 0
	})
}

// shared waits until each of n instances has its share of the slots.
func (s *scale) shared(ctx context.Context, db *pgxpool.Pool, n int) error {
	return poll(ctx, 50*time.Millisecond, "every instance to have its share", func() bool {
		var owners, most int
		err := db.QueryRow(ctx,
			`select count(*), coalesce(max(n), 0) from (select count(*) n from slot_ownership where owner is not null group by owner) s`).Scan(&owners, &most)

		return err == nil && owners == n && most == 2520/n
	})
}

// databaseCost reads the statistics of a database. A session adds what it did to them after a
// second while it is busy, ten seconds after it has become idle, and at its end.
const databaseCost = `
	select xact_commit + xact_rollback, tup_inserted + tup_updated + tup_deleted, tup_returned, pg_current_wal_lsn() - '0/0'::pg_lsn,
	       (select count(*) from pg_stat_activity a where a.datname = d.datname
		and a.application_name like 'escrow-relayer%')
	from pg_stat_database d where datname = $1`

// cost so far: of the database, by its statistics, and of the node, as given. The query runs in the
// lab's own database, whose statistics are separate.
func (s *scale) cost(ctx context.Context, name string, u usage) (c fleetCost, err error) {
	err = s.lab.DB.QueryRow(ctx, databaseCost, name).Scan(&c.transactions, &c.written, &c.read, &c.wal, &c.connections)
	if err != nil {
		return c, fmt.Errorf("read the statistics of %s: %w", name, err)
	}

	c.requests, c.bytes = u.requests, u.bytes

	return c, nil
}

// live is the cost so far of a fleet that runs.
func (s *scale) live(ctx context.Context, name string, fleet []*lab.Process) (fleetCost, error) {
	u, err := used(ctx, fleet...)
	if err != nil {
		return fleetCost{}, err
	}

	return s.cost(ctx, name, u)
}
