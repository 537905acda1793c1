package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"strconv"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
)

const (
	noiseBlocks = 600
	noiseOurs   = 2    // events of our escrows per block
	noiseOthers = 200  // events with the same signature from other contracts, per block
	noiseWithin = 1.2  // times the cost of the better filter
	noisePrice  = 4000 // of a request, in bytes
	noiseRange  = "10" // blocks per request, as in free plans of providers: as many as one look
)

// noiseSizes are chosen around the point at which the list of addresses costs as much as the
// others' logs.
var noiseSizes = []int{100, 2000, 10_000}

var noiseModes = []string{"addresses", "topics", "auto"}

// Noise compares the two filters of LOG_FILTER, and the automatic choice between them, on a chain
// on which other contracts emit Approved 100 times as often as our escrows do. The cost is in
// bytes, and a request counts as noisePrice of them. The verifier does not run. Then it measures
// what caps cost that are lower than configured.
func Noise(ctx context.Context, o *Options) (figures []Figure, err error) {
	l, err := lab.Start(ctx, lab.Options{Bin: o.Bin})
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, l.Close()) }()
	n, err := newNoise(ctx, o, l)
	if err != nil {
		return nil, err
	}
	defer n.close()
	for _, way := range []string{"backfill", "live"} {
		for _, size := range o.some(noiseSizes) {
			costs := map[string]usage{}
			for _, mode := range noiseModes {
				u, err := n.measure(ctx, way, size, fmt.Sprintf("noise_%s_%d", mode, size), map[string]string{"LOG_FILTER": mode})
				if err != nil {
					return nil, fmt.Errorf("%s with %d escrows by %s: %w", way, size, mode, err)
				}

				o.say("noise: %s, %d escrows, %s: %.0f requests, %.0f bytes, %.2f s CPU for 1,000 blocks", way, size, mode,
					u.requests, u.bytes, u.cpu)
				name := fmt.Sprintf("noise.%s.%d.%s", way, size, mode)
				costs[mode] = u
				figures = append(figures,
					o.once(name+".requests", "requests/1000 blocks", 0, u.requests),
					o.once(name+".bytes", "bytes/1000 blocks", 0, u.bytes),
					o.once(name+".cpu", "CPU ms/block", 0, u.cpu))
			}

			better := min(costs["addresses"].cost(), costs["topics"].cost())
			ratio := costs["auto"].cost() / better
			figures = append(figures, o.once(fmt.Sprintf("noise.%s.%d.auto", way, size), "of the better", noiseWithin, ratio))
		}
	}

	more, err := n.caps(ctx)

	return append(figures, more...), err
}

// cost is in bytes.
func (u usage) cost() float64 { return u.bytes + u.requests*noisePrice }

// noise is a chain with many events of other contracts, and a database for each relayer that reads
// it.
type noise struct {
	*Options
	lab      *lab.Lab
	load     *testchain.Load
	wallet   *testchain.Wallet // makes the other contracts emit
	ours     []common.Address
	template string
	blocks   int // of one measurement
	emitted  int // blocks with events, so far
	start    uint64
}

func newNoise(ctx context.Context, o *Options, l *lab.Lab) (n *noise, err error) {
	n = &noise{Options: o, lab: l, blocks: max(10, o.scaled(noiseBlocks))}
	if n.template, err = l.PG.Template(ctx); err != nil {
		return nil, err
	}

	if n.load, err = testchain.OpenLoad(ctx, l.Chain, l.Contracts); err != nil {
		return nil, err
	}

	if n.wallet, err = testchain.OpenWallet(ctx, l.Chain.HTTP(), l.Chain.Accounts()[0]); err != nil {
		n.load.Close()
		return nil, err
	}

	err = func() error {
		if n.ours, err = n.load.Clone(ctx, noiseOurs); err != nil {
			return err
		}

		head, err := finalise(ctx, l)
		if err != nil {
			return err
		}

		n.start = head
		o.say("noise: making %d blocks", n.blocks)
		for range n.blocks {
			if err := n.emit(ctx); err != nil {
				return err
			}
		}

		_, err = finalise(ctx, l)

		return err
	}()
	if err != nil {
		n.close()
		return nil, err
	}

	return n, nil
}

func (n *noise) close() {
	n.load.Close()
	n.wallet.Close()
}

// emit makes a block with events of our escrows and of other contracts.
func (n *noise) emit(ctx context.Context) error {
	data := contracts.NewNoise().PackApproved(big.NewInt(noiseOthers))
	if _, err := n.wallet.Send(ctx, 0, testchain.Call{To: &n.lab.Contracts.Noise, Data: data}); err != nil {
		return err
	}

	n.emitted++

	return n.load.Emit(ctx, n.ours, 1)
}

// open opens the database of that name. If there is none, it makes one with so many escrows.
func (n *noise) open(ctx context.Context, name string, size int) (*pgxpool.Pool, error) {
	var there bool
	if err := n.lab.DB.QueryRow(ctx, `select exists (select from pg_database where datname = $1)`,
		name).Scan(&there); err != nil {
		return nil, err
	}

	if !there {
		if err := n.lab.PG.CreateDatabase(ctx, name, n.template); err != nil {
			return nil, err
		}
	}

	db, err := pgxpool.New(ctx, n.lab.PG.URL(name))
	if err != nil || there {
		return db, err
	}

	if err := register(ctx, db, n.lab, n.ours, size); err != nil {
		db.Close()
		return nil, err
	}

	return db, nil
}

// measure is the usage per 1,000 blocks. With "backfill" these are the blocks that are there, and
// the start of the relayer counts; with "live" they are new ones.
func (n *noise) measure(ctx context.Context, way string, size int, name string,
	env map[string]string) (u usage, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	db, err := n.open(ctx, name, size)
	if err != nil {
		return u, err
	}
	defer db.Close()

	// Without this the verifier would read what it has not read yet.
	if _, err := db.Exec(ctx, `update leadership set verified_block = next_block - 1`); err != nil {
		return u, err
	}

	p, err := n.lab.RunReady(ctx, name, 0, 1, n.environ(way, name, env))
	if err != nil {
		return u, err
	}

	defer func() { err = errors.Join(err, p.Stop(context.WithoutCancel(ctx))) }()
	head, err := n.lab.Head(ctx)
	if err != nil {
		return u, err
	}

	if err := passed(ctx, db, head); err != nil {
		return u, err
	}

	u, err = used(ctx, p)
	blocks := head - n.start
	if way == "live" && err == nil {
		before := u
		if err := n.emitAndFollow(ctx, db); err != nil {
			return u, err
		}

		u, err = used(ctx, p)
		u, blocks = u.minus(before), uint64(n.blocks)
	}

	if err != nil {
		return u, err
	}

	if _, err = finalise(ctx, n.lab); err != nil { // for the next measurement
		return u, err
	}

	return u.times(1000 / float64(blocks)), n.complete(ctx, db)
}

// environ is the environment of a relayer that reads the chain, backfilling or live.
func (n *noise) environ(way, name string, env map[string]string) map[string]string {
	all := map[string]string{
		"DATABASE_URL": n.lab.PG.URL(name), "FACTORY_ADDRESS": n.lab.Contracts.Load.Hex(),
		"ESCROW_ABI":       contracts.NoiseMetaData.ABI,
		"START_BLOCK":      strconv.FormatUint(n.start, 10),
		"ALLOW_LATE_START": "true", "LOG_LEVEL": "warn", // the escrows below START_BLOCK are registered already
		"VERIFY_INTERVAL": "1h", "RPC_MAX_RANGE": noiseRange, "RPC_URLS": n.lab.Chain.HTTP(), "FINALITY": "finalized",
	}
	if way == "live" {
		all["RPC_URLS"], all["FINALITY"] = n.lab.Chain.WS(), "latest"
	}

	maps.Copy(all, env)

	return all
}

// emitAndFollow mines blocks one by one, each when the one before has been processed.
func (n *noise) emitAndFollow(ctx context.Context, db *pgxpool.Pool) error {
	for range n.blocks {
		if err := n.emit(ctx); err != nil {
			return err
		}

		head, err := n.lab.Head(ctx)
		if err != nil {
			return err
		}

		if err := passed(ctx, db, head); err != nil {
			return err
		}
	}

	return nil
}

// complete is an error unless every event of our escrows is stored, and nothing else.
func (n *noise) complete(ctx context.Context, db *pgxpool.Pool) error {
	var stored, blocks int
	err := db.QueryRow(ctx, `select count(*), count(distinct block_number) from processed_events`).Scan(&stored, &blocks)
	if err == nil && (blocks != n.emitted || stored != blocks*noiseOurs) {
		err = fmt.Errorf("stored %d events of %d blocks, the chain has %d in each of %d", stored, blocks, noiseOurs, n.emitted)
	}

	return err
}

// caps measures the requests where a provider's caps on addresses and blocks are lower than
// configured.
func (n *noise) caps(ctx context.Context) (figures []Figure, err error) {
	node, err := faults.NewNode(n.lab.Chain.HTTP(), n.lab.Chain.WS(), 1)
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, node.Close()) }()
	node.Inject(faults.Fault{Mode: faults.Range, N: 10})
	for _, limit := range []struct {
		name string
		size int
		env  map[string]string
	}{
		// the node accepts 1,000 addresses
		{"addresses", 10_000, map[string]string{"LOG_FILTER": "addresses", "RPC_MAX_ADDRESSES": "8000"}},
		{"range", 100, map[string]string{"RPC_URLS": node.HTTP(), "RPC_MAX_RANGE": "10000"}}, // it accepts 10 blocks
	} {
		u, err := n.measure(ctx, "backfill", limit.size, "noise_cap_"+limit.name, limit.env)
		if err != nil {
			return nil, fmt.Errorf("cap on %s: %w", limit.name, err)
		}

		figures = append(figures,
			n.once("noise.cap."+limit.name+".requests", "requests/1000 blocks", 0, u.requests),
			n.once("noise.cap."+limit.name+".refused", "% of the requests", 5, 100*u.refused/u.requests))
	}

	return figures, nil
}
