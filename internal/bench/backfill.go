package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
)

// The chain that Backfill reads: the first fifth of its blocks create clones of the escrow,
// perBlock in each; each other block has one Approved of each clone of one such group.
const (
	backfillBlocks = 5000
	perBlock       = 20
)

// backfill is what every run reads.
type backfill struct {
	lab      *lab.Lab
	template string
	truth    *testchain.Truth
	events   int
}

// Backfill reads a chain from its start: 20,000 escrows and 100,000 events in 5,000 blocks. It
// measures as a user would: the clock runs from the start of the process to the last stored row, or
// the last message received, under the defaults of `run`, and every stored row is compared with the
// chain. The figure "stored" is the rate into the ledger while Pub/Sub holds every request,
// "drained" the rate at which the full outbox is acknowledged once Pub/Sub answers, "published" the
// rate when Pub/Sub answers from the start. Node and Pub/Sub share the machine.
func Backfill(ctx context.Context, o *Options) (figures []Figure, err error) {
	// A server that has run for a while uses files of its write-ahead log again: it fills none with zeros.
	l, err := lab.Start(ctx, lab.Options{Bin: o.Bin, Postgres: testpg.Options{Durable: true,
		Settings: map[string]string{"min_wal_size": "3GB", "wal_init_zero": "off"}}})
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, l.Close()) }()
	b := &backfill{lab: l}
	if b.template, err = l.PG.Template(ctx); err != nil {
		return nil, err
	}

	blocks := o.scaled(backfillBlocks)
	o.say("backfill: making %d blocks", blocks)
	if err := b.history(ctx, blocks); err != nil {
		return nil, err
	}

	samples := map[string][]float64{}
	for i := range o.Runs {
		ways := []way{{"escrow", false}, {"escrow", true}, {"slot", false}, {"slot", true}}
		if i%2 == 1 { // no way is always the last
			slices.Reverse(ways)
		}

		for _, w := range ways {
			r, err := b.once(ctx, fmt.Sprintf("backfill_%s_%t_%d", w.key, w.held, i), w)
			if err != nil {
				return nil, err
			}

			o.say("backfill: %+v: %v", w, r)
			for name, v := range r {
				samples[name] = append(samples[name], v)
			}
		}
	}

	for _, name := range []string{"stored", "published.escrow", "published.slot", "drained.escrow", "drained.slot"} {
		figures = append(figures, Figure{Name: "backfill." + name, Unit: "events/s", Q: 0.5, Samples: samples[name]})
	}

	return append(figures, Figure{Name: "backfill.peak", Unit: "MiB", Q: 0.5, Most: 140, Samples: samples["peak"]}), nil
}

// way is how a backfill is run: the ordering key, and whether Pub/Sub holds its answers until
// everything is stored.
type way struct {
	key  string
	held bool
}

// history makes blocks of perBlock events, and enough blocks on top that they are final.
func (b *backfill) history(ctx context.Context, blocks int) error {
	l := b.lab
	load, err := testchain.OpenLoad(ctx, l.Chain, l.Contracts)
	if err != nil {
		return err
	}
	var groups [][]common.Address
	for n := range blocks {
		if n < max(1, blocks/5) {
			clones, err := load.Clone(ctx, perBlock)
			if err != nil {
				return err
			}

			groups = append(groups, clones)
		} else if err := load.Emit(ctx, groups[n%len(groups)], 1); err != nil {
			return err
		}
	}

	end, err := l.Head(ctx)
	if err = errors.Join(err, l.Chain.Mine(ctx, 40)); err != nil {
		return err
	}

	b.truth, err = testchain.ReadTruth(ctx, l.Chain.Client(), l.Contracts.Block, end, l.Contracts.Load)
	if err == nil {
		b.events = b.truth.Count()
	}

	if err == nil && b.events != blocks*perBlock {
		err = fmt.Errorf("the chain has %d events, not %d", b.events, blocks*perBlock)
	}

	return err
}

// once runs one instance on an empty database until everything is published, and compares
// what it stored with the chain.
func (b *backfill) once(ctx context.Context, name string, w way) (r map[string]float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	l := b.lab
	if err := l.PG.CreateDatabase(ctx, name, b.template); err != nil {
		return nil, err
	}

	defer func() { // the next run must not pay for what this one left to write back and to vacuum
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(err, l.PG.DropDatabase(ctx, name))
		if _, failed := l.DB.Exec(ctx, `checkpoint`); failed != nil {
			err = errors.Join(err, fmt.Errorf("write back what a run left: %w", failed))
		}
	}()
	db, err := pgxpool.New(ctx, l.PG.URL(name))
	if err != nil {
		return nil, err
	}
	defer db.Close()
	sink, err := testpubsub.Start(ctx, testpubsub.Options{Forget: true})
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, sink.Stop()) }()
	for _, topic := range []string{lab.Topic, lab.Retractions} {
		sink.CreateTopic(lab.Project, topic)
	}

	if r, err = b.measure(ctx, db, sink, name, w); err != nil {
		return nil, err
	}

	wrong, err := lab.CompareStored(ctx, db, b.truth, l.Chain.ChainID().Int64())
	if err == nil && len(wrong) > 0 {
		err = fmt.Errorf("%d stored events are not what the chain has, such as: %s", len(wrong), wrong[0])
	}

	return r, err
}

// measure runs one instance with a database and a Pub/Sub server of its own: events per second, and the largest
// resident memory of the process in MiB.
func (b *backfill) measure(ctx context.Context, db *pgxpool.Pool, sink *testpubsub.Server, name string,
	w way) (r map[string]float64, err error) {
	r = map[string]float64{}
	hold := sink.Inject(testpubsub.Fault{Delay: time.Hour})
	if !w.held {
		hold.Remove()
	}

	tap := sink.TapRaw()
	defer func() { err = errors.Join(err, tap.Stop()) }()
	start := time.Now()
	l := b.lab
	p, err := l.Run(name, 0, 1, map[string]string{ // the defaults, but for what the lab needs
		"DATABASE_URL": l.PG.URL(name), "PUBSUB_EMULATOR_HOST": sink.Addr(), "FACTORY_ADDRESS": l.Contracts.Load.Hex(),
		"ESCROW_ABI": contracts.NoiseMetaData.ABI, "ORDERING_KEY": w.key, "VERIFY_INTERVAL": "30s",
		"HEARTBEAT_INTERVAL": "30s", "CONFIRMATIONS": "12", "RPC_URLS": l.Chain.HTTP(),
	})
	if err != nil {
		return nil, err
	}

	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		err = errors.Join(err, p.Stop(ctx))
	}()
	if err := lab.Until(ctx, 10*time.Millisecond, "the last block",
		func() bool { return storedUpTo(ctx, db, b.truth.To) || !p.Running() }); err != nil {
		return nil, err
	}

	published := "published." + w.key
	if w.held {
		r["stored"], published = perSecond(b.events, time.Since(start)), "drained."+w.key
		start = time.Now()
		hold.Remove()
	}

	if !p.Running() {
		return nil, fmt.Errorf("the relayer ended, see %s", p.LogFile)
	}

	if err := tap.Wait(ctx, b.events); err != nil {
		return nil, fmt.Errorf("received %d of %d messages: %w", tap.Len(), b.events, err)
	}

	r[published] = perSecond(b.events, time.Since(start))
	r["peak"], err = peakMemory(p.PID())

	return r, err
}

// storedUpTo reports whether everything up to a block is stored. The tables are not there at first.
func storedUpTo(ctx context.Context, db *pgxpool.Pool, end uint64) bool {
	var done bool
	err := db.QueryRow(ctx, `select min(c.next_block) > $1 and min(l.next_block) > $1
			and not exists (select from escrow_registry where not caught_up)
		from leadership l join cursors c using (chain_id) where c.next_block is not null`, int64(end)).Scan(&done)

	return err == nil && done
}

// peakMemory is the most that a process had resident at once, in MiB (VmHWM of proc(5)).
func peakMemory(pid int) (float64, error) {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}

	for line := range strings.Lines(string(status)) {
		var kib float64
		if n, _ := fmt.Sscanf(line, "VmHWM: %f kB", &kib); n == 1 {
			return kib / 1024, nil
		}
	}

	return 0, fmt.Errorf("read the memory of process %d: no VmHWM in its status", pid)
}
