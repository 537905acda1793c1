package send_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"math/big"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/internal/testfleet"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/intake"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
	"github.com/fusion-prime/escrow-relayer/relayer/command/sign"
)

// patience bounds every wait: the machine may be busy.
const patience = 10 * time.Minute

const confirmations = 2

// lifetime of a command: each block is a second of the chain's time at least, and a busy machine mines many.
const lifetime = 6 * 24 * time.Hour

// world is a chain with the contracts, a database, and an intake whose policy allows the requester everything.
type world struct {
	t         *testing.T
	node      testchain.Node
	rpc       *rpc.Client
	wallet    *testchain.Wallet // of account 1, the payer
	sender    testchain.Account // account 0: payee of the escrows
	requester testchain.Account
	contracts testchain.Deployment
	db        *pgxpool.Pool
	source    *chain.Source
	nodes     *evm.Nodes
	policy    *intake.Policy
	intake    *intake.Intake
	salt      int64
	findings  map[uint64]send.Finding // of the last audit, by nonce

	stopLedger func()
}

func newWorld(t *testing.T, node testchain.Node) *world {
	t.Helper()
	w := newWorldWithout(t, node)
	var err error
	w.contracts, err = testchain.Deploy(t.Context(), node)
	require.NoError(t, err)
	fleet := testfleet.New(t, node.ChainID().Int64())
	fleet.Alone(ledgerID, int64(w.contracts.Block), w.contracts.Factory.Hex())
	w.db = fleet.DB
	w.watchTransitions()
	w.stopLedger = w.watch()
	w.wallet, err = testchain.OpenWallet(t.Context(), node.Client(), node.Accounts()[1])
	require.NoError(t, err)
	everything := `{"requesters":[{"name":"test","address":"` + w.requester.Address.Hex() + `","allow":[{"sender":"` +
		w.sender.Address.Hex() +
		`","kinds":["approve","release","refund","create"],"max_value":"1000000","max_fee":"1000000000000000000"}]}]}`
	w.allow(everything)

	return w
}

// allow replaces the policy: from now on commands are taken in, and senders started, with this one.
func (w *world) allow(policy string) {
	w.t.Helper()
	var err error
	w.policy, err = intake.ParsePolicy([]byte(policy))
	require.NoError(w.t, err)
	w.intake = intake.New(intake.Config{DB: w.db, ChainID: w.node.ChainID().Int64(),
		Factories: registry.NewFollowed(), Policy: w.policy})
	w.run(w.intake.Run)
}

// newWorldWithout has a chain as it is, and no database.
func newWorldWithout(t *testing.T, node testchain.Node) *world {
	t.Helper()
	t.Cleanup(func() { require.NoError(t, node.Stop()) })
	w := &world{t: t, node: node, sender: node.Accounts()[0], requester: testchain.Accounts(99, 1)[0]}
	var err error
	w.rpc, err = rpc.Dial(node.HTTP())
	require.NoError(t, err)
	t.Cleanup(w.rpc.Close)

	w.source = w.follow(node.HTTP())
	w.nodes = evm.NewNodes(w.source)

	return w
}

// follow reads the chain from an endpoint.
func (w *world) follow(urls ...string) *chain.Source {
	w.t.Helper()
	s := chain.New(chain.Config{
		URLs: urls, ChainID: w.node.ChainID().Uint64(), Finality: chain.Confirmations,
		Confirmations: confirmations, PollInterval: 20 * time.Millisecond,
	})
	w.run(func(ctx context.Context) error { return s.Run(ctx) })

	return s
}

// newFaultyWorld is a newWorld whose senders reach the chain through a node that can be made to misbehave; beside: or
// else through the chain's own.
func newFaultyWorld(t *testing.T, beside bool) (*world, *faults.Node) {
	t.Helper()
	w := newWorld(t, startSim(t))
	var others []string
	if beside {
		others = []string{w.node.HTTP()}
	}

	node, source := w.faulty(others...)
	w.nodes = evm.NewNodes(source)

	return w, node
}

// faulty is a node before the chain's that can be made to misbehave, and what reads the chain from it, or else from
// the others.
func (w *world) faulty(others ...string) (*faults.Node, *chain.Source) {
	w.t.Helper()
	node, err := faults.NewNode(w.node.HTTP(), w.node.WS(), 1)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, node.Close()) })

	return node, w.follow(append([]string{node.HTTP()}, others...)...)
}

// raw is a transfer of nothing by the sender.
func (w *world) raw(nonce, gas uint64, fee *big.Int) []byte {
	w.t.Helper()
	tx, err := types.SignNewTx(w.sender.Key, types.LatestSignerForChainID(w.node.ChainID()), &types.DynamicFeeTx{
		ChainID: w.node.ChainID(), Nonce: nonce, GasTipCap: fee, GasFeeCap: fee, Gas: gas, To: &common.Address{1},
		Value: new(big.Int),
	})
	require.NoError(w.t, err)
	raw, err := tx.MarshalBinary()
	require.NoError(w.t, err)

	return raw
}

// run runs a service until the end of the test, or until the returned function is called.
func (w *world) run(f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f(ctx); err != nil && ctx.Err() == nil {
			w.t.Errorf("a service ended: %v", err)
		}
	})
	stop = func() { cancel(); wg.Wait() }
	w.t.Cleanup(stop)

	return stop
}

// awaitEscrow waits until the ledger has an escrow.
func (w *world) awaitEscrow(escrow common.Address) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		return w.int(`select count(*) from escrow_records where escrow_key = $1`, escrow[:]) == 1
	}, patience, 10*time.Millisecond)
}

// escrow makes an escrow of the payer, for the sender, that is due at once and needs one approval;
// it waits until the ledger has it.
func (w *world) escrow(required uint8, delay int64) common.Address {
	w.t.Helper()
	return w.deploy(w.sender.Address, common.Address{}, required, delay)
}

// deploy is escrow, with a payee and an arbiter.
func (w *world) deploy(payee, arbiter common.Address, required uint8, delay int64) common.Address {
	w.t.Helper()
	factory := contracts.NewEscrowFactory()
	receipts, err := w.wallet.Transact(w.t.Context(), w.node, 0, testchain.Call{
		To: &w.contracts.Factory, Data: factory.PackCreateEscrow(payee, big.NewInt(delay), required, arbiter),
		Value: big.NewInt(7),
	})
	require.NoError(w.t, err)
	last := receipts[0].Logs[len(receipts[0].Logs)-1]
	escrow := common.BytesToAddress(last.Topics[1][:])
	w.mine(confirmations)
	w.awaitEscrow(escrow)

	return escrow
}

func (w *world) wallet0() common.Address { return w.node.Accounts()[1].Address }

func (w *world) mine(n int) {
	w.t.Helper()
	require.NoError(w.t, w.node.Mine(w.t.Context(), n))
}

// reorg replaces the newest blocks by others without their transactions.
func (w *world) reorg(depth int) {
	w.t.Helper()
	require.NoError(w.t, w.node.(*testchain.Sim).Reorg(w.t.Context(), depth, testchain.Drop))
}

// command makes a signed command of the requester.
func (w *world) command(kind command.Kind, escrow common.Address, change func(*command.Command)) *command.Signed {
	w.t.Helper()
	w.salt++
	c := command.Command{
		ChainID: w.node.ChainID().Uint64(), Factory: w.contracts.Factory, Kind: kind, Sender: w.sender.Address,
		Escrow:    escrow,
		ExpiresAt: uint64(time.Now().Add(lifetime).Unix()), MaxFee: big.NewInt(1e17), Reference: "r",
		Salt: common.BigToHash(big.NewInt(w.salt)),
	}
	if change != nil {
		change(&c)
	}

	s, err := c.Sign(w.requester.Key)
	require.NoError(w.t, err)

	return s
}

// take hands commands to the intake and returns what it says of them.
func (w *world) take(all ...*command.Signed) []intake.Verdict {
	w.t.Helper()
	body, err := json.Marshal(all)
	require.NoError(w.t, err)
	verdicts, err := w.intake.Take(w.t.Context(), body, false)
	require.NoError(w.t, err)

	return verdicts
}

func (w *world) accept(c *command.Signed) common.Hash {
	w.t.Helper()
	v := w.take(c)[0]
	require.Equal(w.t, command.Accepted, v.Answer.State, "%+v", v)

	return c.ID()
}

func (w *world) config() send.Config {
	return send.Config{
		DB: w.db, ChainID: w.node.ChainID().Int64(), InstanceID: "a", Chain: w.nodes,
		Signer: sign.NewLocal(w.sender.Key), Policy: w.policy,
		Limits: send.Limits{MaxInFlight: 16, MaxFee: big.NewInt(1e17), DayFees: big.NewInt(1e18),
			DayValue: big.NewInt(1e18)},
		LookEvery: 50 * time.Millisecond, // these senders are not told that commands have come
		HoldFor:   50 * time.Millisecond,
		Metrics:   send.NewMetrics(prometheus.NewRegistry(), nil),
		Log:       slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo})),
	}
}

// said counts the lines of a log that have a text.
type said struct {
	slog.Handler
	text  string
	count *atomic.Int64
}

func (s *said) WithAttrs(list []slog.Attr) slog.Handler {
	return &said{s.Handler.WithAttrs(list), s.text, s.count}
}

func (s *said) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == s.text {
		s.count.Add(1)
	}

	return s.Handler.Handle(ctx, r)
}

// listen has a sender's log counted.
func listen(c *send.Config, text string) *said {
	s := &said{c.Log.Handler(), text, &atomic.Int64{}}
	c.Log = slog.New(s)

	return s
}

// start runs a sender, and has what is over dismissed, as an instance of the chain does.
func (w *world) start(change func(*send.Config)) (stop func()) {
	cfg := w.config()
	if change != nil {
		change(&cfg)
	}

	return w.run(func(ctx context.Context) error {
		go func() {
			ticker := time.NewTicker(cfg.LookEvery)
			defer ticker.Stop()
			for ctx.Err() == nil {
				<-ticker.C
				_, _ = send.Dismiss(ctx, w.db, cfg.ChainID) // what fails is tried again
			}
		}()

		return send.Run(ctx, cfg, make(chan struct{}))
	})
}

// answer is what is stored of a command now.
func (w *world) answer(id common.Hash) command.Answer {
	w.t.Helper()
	a, ok, err := w.intake.Lookup(w.t.Context(), id)
	require.NoError(w.t, err)
	require.True(w.t, ok)

	return a
}

// mineAhead mines a block, unless the ledger is so far behind that nodes might have thrown away the state that is
// needed: they keep that of 128 blocks.
func (w *world) mineAhead() {
	w.t.Helper()
	if w.head()-w.int(`select next_block from leadership`) < 64 {
		w.mine(1)
	}
}

// await mines blocks, if told so, until the command is in one of the states.
func (w *world) await(id common.Hash, mining bool, states ...command.State) command.Answer {
	w.t.Helper()
	var a command.Answer
	require.Eventually(w.t, func() bool {
		a = w.answer(id)
		if slices.Contains(states, a.State) {
			return true
		}

		if mining {
			w.mineAhead()
		}

		return false
	}, patience, 20*time.Millisecond, "last: %+v", &a)

	return a
}

// awaitHeld mines blocks until the command is held for a reason, which may not be the first one: an
// escrow is not final yet where the sender sees less of the chain than the test.
func (w *world) awaitHeld(id common.Hash, reason string) {
	w.t.Helper()
	var a command.Answer
	require.Eventually(w.t, func() bool {
		a = w.answer(id)
		if a.State == command.Accepted && (a.Code == reason || a.Detail == reason) {
			return true
		}

		w.mine(1)

		return false
	}, patience, 20*time.Millisecond, "last: %+v", &a)
}

// replies are the answers that wait to be published, oldest first.
func (w *world) replies(id common.Hash) (states []command.State) {
	w.t.Helper()
	rows, err := w.db.Query(w.t.Context(), `select body from replies where command_id = $1 order by seq`, id.Hex())
	require.NoError(w.t, err)
	defer rows.Close()
	for rows.Next() {
		var body []byte
		require.NoError(w.t, rows.Scan(&body))
		a, err := command.DecodeAnswer(body)
		require.NoError(w.t, err)
		states = append(states, a.State)
	}

	require.NoError(w.t, rows.Err())

	return states
}

// sent are the transactions of the sender that the chain has, by nonce.
func (w *world) sent() map[uint64]common.Hash {
	w.t.Helper()
	var head hexutil.Uint64
	require.NoError(w.t, w.rpc.CallContext(w.t.Context(), &head, "eth_blockNumber"))
	found := map[uint64]common.Hash{}
	for n := uint64(1); n <= uint64(head); n++ {
		var block struct {
			Transactions []struct {
				Hash  common.Hash
				From  common.Address
				Nonce hexutil.Uint64
			}
		}
		require.NoError(w.t, w.rpc.CallContext(w.t.Context(), &block, "eth_getBlockByNumber", hexutil.Uint64(n), true))
		for _, tx := range block.Transactions {
			if tx.From == w.sender.Address {
				found[uint64(tx.Nonce)] = tx.Hash
			}
		}
	}

	return found
}

func (w *world) receipt(hash common.Hash) *types.Receipt {
	w.t.Helper()
	var r *types.Receipt
	require.NoError(w.t, w.rpc.CallContext(w.t.Context(), &r, "eth_getTransactionReceipt", hash))

	return r
}

// hash of a block.
func (w *world) hash(number int) common.Hash {
	w.t.Helper()
	var h struct{ Hash common.Hash }
	require.NoError(w.t, w.rpc.CallContext(w.t.Context(), &h, "eth_getBlockByNumber", hexutil.Uint64(number), false))

	return h.Hash
}

func (w *world) int(sql string, args ...any) (n int) {
	w.t.Helper()
	require.NoError(w.t, w.db.QueryRow(w.t.Context(), sql, args...).Scan(&n))
	return n
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	require.NoError(w.t, pgx.BeginFunc(w.t.Context(), w.db, func(tx pgx.Tx) error {
		_, err := tx.Exec(w.t.Context(), `select set_config('test.exec', 'on', true)`)
		if err == nil {
			_, err = tx.Exec(w.t.Context(), sql, args...)
		}

		return err
	}))
}

// watchTransitions has the test fail at its end if a command got a state that the table of transitions does not allow
// after the one before, but by exec.
func (w *world) watchTransitions() {
	w.t.Helper()
	var from, to []string
	for _, x := range command.Transitions {
		from, to = append(from, string(x.From)), append(to, string(x.To))
	}

	w.exec(`create table wrong_transitions (command_id text, before text, after text)`)
	w.exec(`create table transitions (before text, after text)`)
	w.exec(`insert into transitions select * from unnest($1::text[], $2::text[])`, from, to)
	w.exec(`create function watch_transition() returns trigger language plpgsql as $$ begin
		insert into wrong_transitions select new.command_id, old.state, new.state
		 where current_setting('test.exec', true) is distinct from 'on'
		   and not exists (select from transitions t where t.before = old.state and t.after = new.state);
		return new; end $$`)
	w.exec(`create trigger watch_transition before update on commands for each row when (old.state <> new.state)
		execute function watch_transition()`)
	w.t.Cleanup(func() {
		var wrong int
		err := w.db.QueryRow(context.Background(), `select count(*) from wrong_transitions`).Scan(&wrong)
		require.NoError(w.t, err)
		require.Zero(w.t, wrong, "commands got states that the table of transitions does not allow")
	})
}

func startSim(t *testing.T) testchain.Node {
	t.Helper()
	node, err := testchain.StartSim(testchain.Options{Seed: 7})
	require.NoError(t, err)

	return node
}

// createAddress is where createEscrowDeterministic would put an escrow: CREATE2 of the contract's
// code with its arguments.
func (w *world) createAddress(args *command.CreateArgs) common.Address {
	return w.createAddressOf(w.contracts.Factory, args)
}

func (w *world) createAddressOf(factory common.Address, args *command.CreateArgs) common.Address {
	init := append(common.FromHex(contracts.EscrowMetaData.Bin),
		contracts.NewEscrow().PackConstructor(w.sender.Address, args.Payee, args.ReleaseDelay, args.ApprovalsRequired,
			args.Arbiter)...)

	return crypto.CreateAddress2(factory, args.Salt, crypto.Keccak256(init))
}

// awaitLook waits until a sender has looked at the newest final block, which the source may not have seen yet.
func (w *world) awaitLook() {
	w.t.Helper()
	target := w.head() - confirmations
	require.Eventually(w.t,
		func() bool { return w.int(`select coalesce(max(checked_block), 0) from senders`) >= target }, patience,
		10*time.Millisecond)
}

// awaitTarget waits until senders see the newest final block.
func (w *world) awaitTarget() {
	w.t.Helper()
	target := uint64(w.head() - confirmations)
	require.Eventually(w.t, func() bool { return w.nodes.View().Target >= target }, patience, 10*time.Millisecond)
}

// awaitBroadcast waits, without a new block, until the nodes have got a command's transaction: it is
// sent a moment earlier, when it is recorded.
func (w *world) awaitBroadcast(id common.Hash) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		var hash string
		var known map[string]any
		err := w.db.QueryRow(w.t.Context(), `select tx_hash from command_attempts where command_id = $1
			order by attempt desc limit 1`, id.Hex()).Scan(&hash) // it replaces those before it

		return err == nil &&
			w.rpc.CallContext(w.t.Context(), &known, "eth_getTransactionByHash", hash) == nil && known != nil
	}, patience, 10*time.Millisecond)
}

// steal replaces the transaction of a nonce in the pool by one that the sender's key signed elsewhere.
func (w *world) steal(nonce uint64) {
	w.t.Helper()
	raw := w.raw(nonce, 21000, big.NewInt(5e11))
	require.NoError(w.t, w.rpc.CallContext(w.t.Context(), nil, "eth_sendRawTransaction", hexutil.Bytes(raw)))
}

func (w *world) head() int {
	w.t.Helper()
	var head hexutil.Uint64
	require.NoError(w.t, w.rpc.CallContext(w.t.Context(), &head, "eth_blockNumber"))

	return int(head)
}
