package testchain

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core"
	"github.com/ethereum/go-ethereum/core/rawdb"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/eth"
	"github.com/ethereum/go-ethereum/eth/catalyst"
	"github.com/ethereum/go-ethereum/eth/ethconfig"
	"github.com/ethereum/go-ethereum/eth/filters"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/node"
	"github.com/ethereum/go-ethereum/p2p"
	"github.com/ethereum/go-ethereum/params"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/fusion-prime/escrow-relayer/internal/port"
)

// Sim is go-ethereum's simulated chain, in this process, with an HTTP and a WebSocket endpoint for
// others. It mines when told to, or at Options.Interval; a transaction alone makes no block.
type Sim struct {
	options  Options
	reserved *port.Reserved
	accounts []Account
	stranger Account // emits what shifts the indexes of others' logs
	client   *rpc.Client

	mu     sync.Mutex // one block at a time
	node   *node.Node
	eth    *eth.Ethereum
	beacon *catalyst.SimulatedBeacon
	begun  []time.Time // by number: when the making of the first block of that number began

	miner sync.WaitGroup
	stop  chan struct{}
	pace  chan time.Duration
}

// StartSim starts a simulated chain. Its genesis block has the time zero, its first block the current one.
func StartSim(o Options) (*Sim, error) {
	o = o.withDefaults()
	all := Accounts(o.Seed, o.Accounts+1)
	s := &Sim{options: o, accounts: all[:o.Accounts], stranger: all[o.Accounts], stop: make(chan struct{}),
		pace: make(chan time.Duration)}
	var err error
	if s.reserved, err = port.Reserve(); err == nil {
		err = s.startBackend(endow(all))
	}

	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the simulated chain: %w", err), s.close())
	}

	if s.client, err = rpc.Dial(s.HTTP()); err != nil {
		return nil, errors.Join(fmt.Errorf("reach the simulated chain: %w", err), s.close())
	}

	s.miner.Go(s.mineAtInterval)
	s.SetInterval(o.Interval)

	return s, nil
}

// startBackend does what go-ethereum's package simulated does, and keeps hold of the chain.
func (s *Sim) startBackend(alloc types.GenesisAlloc) (err error) {
	n, host, number := node.DefaultConfig, "127.0.0.1", s.reserved.Number
	n.DataDir, n.P2P = "", p2p.Config{NoDiscovery: true}
	// The same port serves both.
	n.HTTPHost, n.HTTPPort, n.HTTPModules, n.HTTPVirtualHosts = host, number,
		[]string{"eth", "net", "web3", "txpool"}, []string{"*"}
	n.WSHost, n.WSPort, n.WSModules, n.WSOrigins = host, number, n.HTTPModules, []string{"*"}
	config := *params.AllDevChainProtocolChanges
	config.ChainID = new(big.Int).SetUint64(s.options.ChainID)
	// the rules of live chains: the drafts of the next forks price gas otherwise
	config.BogotaTime, config.AmsterdamTime = nil, nil
	e := ethconfig.Defaults
	e.NetworkId, e.SyncMode, e.TxPool.NoLocals, e.LogNoHistory = s.options.ChainID, ethconfig.FullSync, true, true
	e.Genesis = &core.Genesis{Config: &config, Alloc: core.SystemContractAllocs(),
		GasLimit: cmp.Or(s.options.GasLimit, e.Miner.GasCeil)}
	maps.Copy(e.Genesis.Alloc, alloc)
	e.Miner.GasCeil = e.Genesis.GasLimit
	// a block is built in one go, and until then; the default leaves out what takes over 2 s
	e.Miner.Recommit = time.Minute
	// a full block at a high fee costs more than the default allows
	e.RPCTxFeeCap = 0
	e.TxPool.GlobalSlots, e.TxPool.AccountSlots = 1<<16, 1<<14 // a load test sends more at once than a network would
	e.TxPool.GlobalQueue, e.TxPool.AccountQueue = 1<<16, 1<<14
	if s.node, err = node.New(&n); err != nil {
		return err
	}

	if s.eth, err = eth.New(s.node, &e); err != nil {
		return err
	}

	s.node.RegisterAPIs([]rpc.API{{Namespace: "eth",
		Service: filters.NewFilterAPI(filters.NewFilterSystem(s.eth.APIBackend, filters.Config{}))}})
	if err = s.node.Start(); err != nil {
		return err
	}

	if s.beacon, err = catalyst.NewSimulatedBeacon(0, common.Address{}, s.eth); err != nil {
		return err
	}

	return s.beacon.Fork(s.eth.BlockChain().GetCanonicalHash(0))
}

// close ends what startBackend has begun.
func (s *Sim) close() (err error) {
	if s.beacon != nil {
		err = s.beacon.Stop()
	}

	if s.node != nil {
		err = errors.Join(err, s.node.Close())
	}

	return errors.Join(err, s.reserved.Close())
}

// sealed hides the final block from the database's freezer, which once a minute moves all blocks up to it to where no
// reorganisation reaches them any more: the chain would never get another block then.
func (s *Sim) sealed() { rawdb.WriteFinalizedBlockHash(s.eth.ChainDb(), common.Hash{}) }

// thaw brings back what the freezer has moved all the same: it may look between a block and sealed.
func (s *Sim) thaw() error {
	db := s.eth.ChainDb()
	frozen, err := db.Ancients()
	if err != nil || frozen <= 1 { // the genesis block always is
		return err
	}

	back := db.NewBatch()
	for n := uint64(1); n < frozen; n++ {
		hash := rawdb.ReadCanonicalHash(db, n)
		rawdb.WriteBlock(back, rawdb.ReadBlock(db, hash, n))
		rawdb.WriteRawReceipts(back, hash, n, rawdb.ReadReceiptsRLP(db, hash, n))
		rawdb.WriteCanonicalHash(back, hash, n)
	}

	if err := back.Write(); err != nil {
		return err
	}

	_, err = db.TruncateHead(1)

	return err
}

// HTTP is its URL for requests.
func (s *Sim) HTTP() string { return "http://" + s.reserved.Addr() }

// WS is its URL for subscriptions.
func (s *Sim) WS() string { return "ws://" + s.reserved.Addr() }

// Client asks it over HTTP, as others do.
func (s *Sim) Client() *ethclient.Client { return ethclient.NewClient(s.client) }

// ChainID is what eth_chainId answers.
func (s *Sim) ChainID() *big.Int { return new(big.Int).SetUint64(s.options.ChainID) }

// Accounts have ether, and keys.
func (s *Sim) Accounts() []Account { return s.accounts }

// Mine makes n blocks. A block's time is the current one, and at least a second more than its parent's.
func (s *Sim) Mine(ctx context.Context, n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mine(ctx, n)
}

func (s *Sim) mine(ctx context.Context, n int) error {
	for range n {
		if err := s.settle(ctx); err != nil {
			return err
		}

		before := s.head()
		s.begins(before + 1)
		err := s.whileRefused(ctx, func() error {
			s.beacon.Commit()
			s.sealed()
			if s.head() <= before { // Commit keeps its error to itself
				return fmt.Errorf("mine block %d: the simulated chain is still at %d", before+1, s.head())
			}

			return nil
		})
		if err != nil {
			return err
		}

		if err := s.eth.TxPool().Sync(); err != nil { // it has heard of the block then
			return fmt.Errorf("wait for the pool: %w", err)
		}
	}

	return nil
}

// settleTimeout is how long a block waits for transactions that the pool has accepted and not yet
// lined up. Longer than that waits only what cannot be mined, since an earlier transaction of the
// account is missing.
const settleTimeout = 250 * time.Millisecond

// settle waits until the pool has lined up the transactions that it was given, which it does in the
// background. A block must not start before, nor may the pool be busy with an earlier block when
// they come: it then leaves out the account's newest ones until the block after.
func (s *Sim) settle(ctx context.Context) error {
	timeout := time.NewTimer(settleTimeout)
	defer timeout.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		var status struct{ Queued hexutil.Uint }
		if err := s.client.CallContext(ctx, &status, "txpool_status"); err != nil {
			return fmt.Errorf("read the state of the pool: %w", err)
		}

		if status.Queued == 0 {
			return nil
		}

		select {
		case <-tick.C:
		case <-timeout.C: // on a busy machine the pool may not have come to it: it does now
			return s.eth.TxPool().Sync()
		}
	}
}

// begins notes that a block of that number may be seen from now on. Under s.mu.
func (s *Sim) begins(number uint64) {
	for now := time.Now(); uint64(len(s.begun)) <= number; {
		s.begun = append(s.begun, now)
	}
}

// HeadAt is the highest number that a block of this chain can have had at a time, whatever was
// reorganised before or since.
func (s *Sim) HeadAt(t time.Time) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	later, _ := slices.BinarySearchFunc(s.begun, t, func(begun, t time.Time) int {
		if begun.After(t) {
			return 1
		}

		return -1
	})

	return uint64(max(later, 1) - 1)
}

// head is the number of the newest block.
func (s *Sim) head() uint64 { return s.eth.BlockChain().CurrentBlock().Number.Uint64() }

// SetInterval makes a block at that pace from now on; zero ends that.
func (s *Sim) SetInterval(pace time.Duration) {
	select {
	case s.pace <- pace:
	case <-s.stop:
	}
}

func (s *Sim) mineAtInterval() {
	var ticks <-chan time.Time
	ticker := time.NewTicker(time.Hour)
	defer ticker.Stop()
	for {
		select {
		case <-s.stop:
			return
		case pace := <-s.pace:
			if ticks = nil; pace > 0 {
				ticker.Reset(pace)
				ticks = ticker.C
			}
		case <-ticks:
			_ = s.Mine(context.Background(), 1) // what went wrong once is tried again at the next tick
		}
	}
}

// AdvanceTime makes a block whose time is d after its parent's. Transactions that wait are mined
// before. Later blocks go on from there, which is in the future; there is no way back.
func (s *Sim) AdvanceTime(ctx context.Context, d time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.whileRefused(ctx, func() error {
		if err := s.mine(ctx, 1); err != nil {
			return err
		}

		s.begins(s.head() + 1)

		defer s.sealed()

		return s.beacon.AdjustTime(d)
	})
	if err != nil {
		return fmt.Errorf("advance the chain's time by %s: %w", d, err)
	}

	return nil
}

// Reorg replaces the newest depth blocks by depth+1 others, so that the head moves on. While that goes on, the head may
// be seen at the fork. What becomes of the transactions is up to fate: with Keep, all are mined in the first of the new
// blocks, as far as they fit.
func (s *Sim) Reorg(ctx context.Context, depth int, fate Fate) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	blocks, err := s.fork(ctx, depth)
	if err != nil {
		return err
	}

	if fate == Keep {
		if err := s.resend(ctx, slices.Concat(blocks...)); err != nil {
			return err
		}
	}

	return s.mine(ctx, depth+1)
}

// Rebuild is a reorganisation that keeps the transactions and where they are, and moves their logs.
type Rebuild struct {
	// Depth is how many blocks are replaced, by one more.
	Depth int
	// Shift is how many logs of a stranger come first in each of the new blocks. What an earlier Rebuild has put there is
	// left out: zero moves the logs back to where they were.
	Shift int
	// Random, if not nil, makes Shift the most that there may be, changes the order of the transactions of different
	// accounts, moves some to the next block, and leaves some out.
	Random *rand.Rand
}

// Rebuild carries it out. The hashes of the transactions stay the same, so {tx_hash}:{log_index}
// names another log than before wherever a transaction emits several.
func (s *Sim) Rebuild(ctx context.Context, b Rebuild) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	blocks, err := s.fork(ctx, b.Depth)
	if err != nil {
		return err
	}

	gone := map[common.Address]bool{}
	for i, raw := range blocks {
		shift := b.Shift
		if b.Random != nil {
			shift = b.Random.IntN(b.Shift + 1)
			now, later := b.choose(raw, gone)
			if raw = now; i+1 < len(blocks) {
				blocks[i+1] = append(later, blocks[i+1]...)
			}
		}

		if err := s.emit(ctx, shift); err != nil {
			return err
		}

		if err := s.resend(ctx, raw); err != nil {
			return err
		}

		if err := s.mine(ctx, 1); err != nil {
			return err
		}
	}

	return s.mine(ctx, 1)
}

// choose changes the order of the accounts, moves what two of sixteen of them send to the next
// block from some transaction on, and leaves out what one of sixteen sends from then on.
func (b Rebuild) choose(raw []hexutil.Bytes, gone map[common.Address]bool) (now, later []hexutil.Bytes) {
	accounts := map[common.Address]int{}
	var lists [][]hexutil.Bytes
	for _, r := range raw {
		from := sender(r)
		if gone[from] {
			continue
		}

		i, ok := accounts[from]
		if !ok {
			i = len(lists)
			accounts[from], lists = i, append(lists, nil)
		}

		lists[i] = append(lists[i], r)
	}

	b.Random.Shuffle(len(lists), func(i, j int) { lists[i], lists[j] = lists[j], lists[i] })
	for _, list := range lists {
		switch b.Random.IntN(16) {
		case 0:
			gone[sender(list[0])] = true
			now = append(now, list[:b.Random.IntN(len(list))]...)
		case 1, 2:
			n := b.Random.IntN(len(list))
			now, later = append(now, list[:n]...), append(later, list[n:]...)
		default:
			now = append(now, list...)
		}
	}

	return now, later
}

// sender of a signed transaction; nobody, of what is none.
func sender(raw hexutil.Bytes) common.Address {
	var tx types.Transaction
	if tx.UnmarshalBinary(raw) != nil {
		return common.Address{}
	}

	from, err := types.Sender(types.LatestSignerForChainID(tx.ChainId()), &tx)
	if err != nil {
		return common.Address{}
	}

	return from
}

// emit sends what emits n logs in the next block, before all else: it offers a higher tip.
func (s *Sim) emit(ctx context.Context, n int) error {
	if n == 0 {
		return nil
	}

	w, err := OpenWallet(ctx, s.Client(), s.stranger)
	if err != nil {
		return err
	}
	// PUSH0 PUSH0 LOG0, as the code of a constructor
	_, err = w.Send(ctx, 0, Call{Gas: 200_000 + 1000*uint64(n), Data: bytes.Repeat([]byte{0x5f, 0x5f, 0xa0}, n),
		Tip: new(big.Int).Mul(gwei, big.NewInt(50))})

	return err
}

// fork makes the block below the newest depth ones the head, and returns the transactions of those
// by block, without the stranger's.
func (s *Sim) fork(ctx context.Context, depth int) ([][]hexutil.Bytes, error) {
	blocks, err := rawTransactions(ctx, s.client, depth)
	if err != nil {
		return nil, err
	}

	for i, raw := range blocks {
		blocks[i] = slices.DeleteFunc(raw, func(r hexutil.Bytes) bool { return sender(r) == s.stranger.Address })
	}

	if err := s.thaw(); err != nil {
		return nil, fmt.Errorf("bring back the blocks that are frozen: %w", err)
	}

	at := s.head() - uint64(depth)
	err = s.whileRefused(ctx, func() error {
		s.beacon.Rollback()
		return s.beacon.Fork(s.eth.BlockChain().GetCanonicalHash(at))
	})
	if err != nil {
		return nil, fmt.Errorf("fork at block %d: %w", at, err)
	}

	s.beacon.Rollback() // what came back from the replaced blocks

	return blocks, nil
}

// refusedTimeout bounds the attempts at what the simulated chain refuses: one takes about a millisecond.
const refusedTimeout = 5 * time.Minute

// whileRefused repeats what the simulated chain refuses for a while, until it succeeds: a fork while a
// transaction waits, which others send at any time, also between do's own emptying of the pool and its
// request; now and then a block behind a fork, while the chain is busy with the one before.
func (s *Sim) whileRefused(ctx context.Context, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, refusedTimeout)
	defer cancel()
	for {
		if err := do(); err == nil || ctx.Err() != nil {
			return err
		}
	}
}

func (s *Sim) resend(ctx context.Context, raw []hexutil.Bytes) error {
	if err := send(ctx, s.client, raw); err != nil {
		return fmt.Errorf("send %d transactions again: %w", len(raw), err)
	}

	return nil
}

// Stop ends the chain and its endpoints.
func (s *Sim) Stop() error {
	close(s.stop)
	s.miner.Wait()
	s.client.Close()

	return s.close()
}
