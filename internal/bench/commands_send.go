package bench

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/ethclient/gethclient"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

const (
	busySenders    = 40
	busyEach       = 64 // commands per sender, and the most that a sender may have in flight
	singleCommands = 200
	singlePause    = 200 * time.Millisecond
)

// escrows makes n escrows, and waits until they are known and every sender has an owner. Their payees are the senders
// in turn. Each needs two approvals, so that the one that a sender sends does not release it.
func (k *keys) escrows(ctx context.Context, n int) (all []common.Address, err error) {
	w, err := testchain.OpenWallet(ctx, k.lab.Chain.Client(), k.lab.Chain.Accounts()[0])
	if err != nil {
		return nil, err
	}

	factory := contracts.NewEscrowFactory()
	for len(all) < n {
		var calls []testchain.Call
		for i := len(all); i < min(n, len(all)+50); i++ { // they fill half a block of geth
			calls = append(calls, testchain.Call{To: &k.lab.Contracts.Factory, Value: big.NewInt(7),
				Data: factory.PackCreateEscrow(k.senders[i%len(k.senders)].Address, new(big.Int), 2, common.Address{})})
		}

		receipts, err := w.Transact(ctx, k.lab.Chain, 0, calls...)
		if err != nil {
			return nil, fmt.Errorf("create escrows: %w", err)
		}

		for _, r := range receipts {
			all = append(all, common.BytesToAddress(r.Logs[len(r.Logs)-1].Topics[1][:]))
		}
	}

	if err := k.lab.Chain.Mine(ctx, k.lab.Confirmations+1); err != nil {
		return nil, err
	}

	return all, lab.Until(ctx, 50*time.Millisecond, "escrows to be registered, and senders to have owners", func() bool {
		return k.count(ctx, `select count(*) from escrow_records where status = 'created'`) >= n &&
			k.count(ctx, `select count(*) from senders where next_nonce is not null`) == len(k.senders)
	})
}

func (k *keys) count(ctx context.Context, sql string, args ...any) (n int) {
	if k.lab.DB.QueryRow(ctx, sql, args...).Scan(&n) != nil {
		return -1
	}

	return n
}

// answered waits until no command is open.
func (k *keys) answered(ctx context.Context) error {
	return lab.Until(ctx, 50*time.Millisecond, "all commands to be answered", func() bool {
		return k.count(ctx, `select count(*) from commands where answered_at is null`) == 0
	})
}

// broadcastFigures measures many senders against a real geth node that makes a block per second: how fast a queue of
// commands that become due at one moment is broadcast and answered; and then, for single commands, the time from
// before the request to the moment at which the node's pool announces the transaction.
func broadcastFigures(ctx context.Context, o *Options) (figures []Figure, err error) {
	senders, each, singles := busySenders, busyEach, max(3, o.scaled(singleCommands))
	if o.Scale < 0.01 {
		senders, each = 2, 3
	}

	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	node, err := testchain.StartGeth(ctx, testchain.Options{Seed: 7, Accounts: senders + 2, Interval: time.Second})
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, node.Stop()) }()
	k, err := openKeys(ctx, lab.Options{Bin: o.Bin, Node: node, Postgres: testpg.Options{Durable: true}}, senders,
		busyEach)
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, k.lab.Close()) }()
	p, err := k.lab.RunReady(ctx, "busy", 0, 1, k.env)
	if err != nil {
		return nil, err
	}

	o.say("commands: creating %d escrows", senders*each+singles)
	escrows, err := k.escrows(ctx, senders*each+singles)
	if err != nil {
		return nil, err
	}

	broadcast, done, err := k.burst(ctx, p, escrows[:senders*each])
	if err != nil {
		return nil, err
	}

	o.say("commands: %.0f broadcasts per second, %.0f answers per second", broadcast, done)
	latencies, err := k.singles(ctx, p, escrows[senders*each:], senders*each)
	if err != nil {
		return nil, err
	}

	return []Figure{
		{Name: "commands.broadcasts", Unit: "transactions/s", Q: 0.5, Least: 500, Samples: []float64{broadcast}},
		{Name: "commands.answers", Unit: "answers/s", Q: 0.5, Samples: []float64{done}},
		{Name: "commands.latency.p50", Unit: "ms", Q: 0.5, Most: 30, Needed: 30, Samples: latencies},
		{Name: "commands.latency.p99", Unit: "ms", Q: 0.99, Most: 150, Needed: 100, Samples: latencies},
	}, nil
}

// burst sends approvals that all become due at one moment. The rates are from the first nonce given
// to the last transaction that was stored, which goes out next, and to the last answer.
func (k *keys) burst(ctx context.Context, p *lab.Process, escrows []common.Address) (broadcast, done float64,
	err error) {
	due := time.Now().Add(5 * time.Second)
	var commands []*command.Signed
	for i, escrow := range escrows {
		c, err := k.sign(command.Approve, i%len(k.senders), escrow, due)
		if err != nil {
			return 0, 0, err
		}

		commands = append(commands, c)
	}

	for some := range slices.Chunk(commands, commandsArray) {
		if err := k.post(ctx, p, some); err != nil {
			return 0, 0, err
		}
	}

	if err := k.answered(ctx); err != nil {
		return 0, 0, err
	}

	var sending, following float64
	var wrong int
	const times = `
		select extract(epoch from max(a.signed_at) - min(c.assigned_at))::float8,
		       extract(epoch from max(c.answered_at) - min(c.assigned_at))::float8, count(*) filter (where c.state <> 'done')
		  from commands c left join command_attempts a
		       on a.chain_id = c.chain_id and a.command_id = c.command_id and a.attempt = 1`
	if err := k.lab.DB.QueryRow(ctx, times).Scan(&sending, &following, &wrong); err != nil {
		return 0, 0, err
	}

	if wrong > 0 {
		return 0, 0, fmt.Errorf("%d of %d commands did not take effect", wrong, len(escrows))
	}

	return float64(len(escrows)) / sending, float64(len(escrows)) / following, nil
}

// singles sends one approval after the other and returns the times, in ms, from before each request
// to the announcement of its transaction by the node's pool.
func (k *keys) singles(ctx context.Context, p *lab.Process, escrows []common.Address, before int) (ms []float64,
	err error) {
	pool, stop, err := transactions(ctx, k.lab.Chain.WS())
	if err != nil {
		return nil, err
	}
	defer stop()

	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same pauses each time
	asked := map[string]time.Time{}
	for i, escrow := range escrows {
		c, err := k.sign(command.Approve, (before+i)%len(k.senders), escrow, time.Time{})
		if err != nil {
			return nil, err
		}

		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(singlePause/2 + time.Duration(random.Int64N(int64(singlePause)))):
		}

		asked[c.ID().Hex()] = time.Now()
		if err := k.post(ctx, p, []*command.Signed{c}); err != nil {
			return nil, err
		}
	}

	if err := k.answered(ctx); err != nil {
		return nil, err
	}

	rows, err := k.lab.DB.Query(ctx, `select command_id, tx_hash from command_attempts where attempt = 1`)
	if err != nil {
		return nil, err
	}

	defer rows.Close()
	for rows.Next() {
		var id, tx string
		if err := rows.Scan(&id, &tx); err != nil {
			return nil, err
		}

		if start, mine := asked[id]; mine {
			at, ok := pool(common.HexToHash(tx))
			if !ok {
				return nil, fmt.Errorf("the node never announced transaction %s", tx)
			}

			ms = append(ms, milliseconds(at.Sub(start)))
		}
	}

	if len(ms) != len(escrows) {
		return nil, fmt.Errorf("%d of %d commands were sent", len(ms), len(escrows))
	}

	return ms, rows.Err()
}

// transactions notes when a node's pool announces which transaction, until it is stopped.
func transactions(ctx context.Context, url string) (at func(common.Hash) (time.Time, bool), stop func(), err error) {
	return announced(ctx, url, func(h common.Hash) common.Hash { return h },
		func(c *rpc.Client, to chan<- common.Hash) (ethereum.Subscription, error) {
			return gethclient.New(c).SubscribePendingTransactions(ctx, to)
		})
}
