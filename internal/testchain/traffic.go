package testchain

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/ethclient"

	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
)

// Action is something that Traffic does.
type Action string

// What the traffic does.
const (
	Create              Action = "create"               // through the factory, CREATE
	CreateDeterministic Action = "create_deterministic" // through the factory, CREATE2
	CreateLegacy        Action = "create_legacy"        // through the older factory
	Approve             Action = "approve"
	Release             Action = "release"
	Refund              Action = "refund" // possible 30 days after the release time: see Sim.AdvanceTime
	ChangeArbiter       Action = "change_arbiter"
	MakeNoise           Action = "make_noise"     // Approved events of a contract that is no escrow
	CreateSeveral       Action = "create_several" // in one transaction; not in the default mix
	// created, approved and released in one transaction; not in the default mix
	SettleSeveral Action = "settle_several"
)

// DefaultMix weighs the actions so that most escrows are approved and released.
func DefaultMix() map[Action]int {
	return map[Action]int{Create: 4, CreateDeterministic: 2, CreateLegacy: 1, Approve: 14, Release: 2, Refund: 2,
		ChangeArbiter: 2, MakeNoise: 1}
}

// DenseMix has many events in one transaction, of one escrow and of several.
func DenseMix() map[Action]int {
	m := DefaultMix()
	m[CreateSeveral], m[SettleSeveral] = 2, 2
	return m
}

// TrafficConfig says where and what.
type TrafficConfig struct {
	URL        string     // of a node
	Deployment Deployment // zero addresses are not used
	Accounts   []Account  // funded, and used by nobody else
	Seed       uint64     // the same seed on the same chain does the same
	Mix        map[Action]int
	// Open is how many escrows are kept unsettled before none are created any more. Zero: no limit.
	Open int
}

// Traffic uses the contracts as their users would, in an order that a seed decides, and knows from
// receipts what came of it. It is to be used by one goroutine at a time.
type Traffic struct {
	config  TrafficConfig
	node    *ethclient.Client
	wallet  *Wallet
	rand    *rand.Rand
	actions []Action // each as often as it weighs

	escrows []*escrow // not settled
	index   map[common.Address]*escrow
	flying  []flight
	coming  int // escrows that transactions on their way may create
	newest  blockID
	resyncs int
}

// TrafficStats is where Traffic stands.
type TrafficStats struct {
	Waiting int // transactions without a receipt, now
	Open    int // escrows not settled, now
	Resyncs int // times that the chain had changed
}

type blockID struct {
	number uint64
	hash   common.Hash
}

type escrow struct {
	address             common.Address
	payer, payee, other common.Address // other is the arbiter
	approved            []common.Address
	required            uint8
	releaseTime         uint64 // unix seconds
	busy                bool   // a transaction is on its way
}

type flight struct {
	hash    common.Hash
	escrow  *escrow // that is busy meanwhile
	creates int
}

// refundAfter is the contract's REFUND_AFTER, in seconds.
const refundAfter = 30 * 24 * 3600

// NewTraffic continues with the escrows that are on the chain already.
func NewTraffic(ctx context.Context, c TrafficConfig) (*Traffic, error) {
	if c.Mix == nil {
		c.Mix = DefaultMix()
	}

	if len(c.Accounts) < 3 {
		return nil, fmt.Errorf("start traffic with %d accounts: payer, payee and arbiter need 3", len(c.Accounts))
	}

	t := &Traffic{config: c, rand: rand.New(rand.NewPCG(c.Seed, 0))}
	for _, a := range []Action{Create, CreateDeterministic, CreateLegacy, Approve, Release, Refund, ChangeArbiter,
		MakeNoise, CreateSeveral, SettleSeveral} {
		needs := map[Action]common.Address{
			CreateLegacy: c.Deployment.Legacy, MakeNoise: c.Deployment.Noise, CreateSeveral: c.Deployment.Load,
			SettleSeveral: c.Deployment.Load,
		}
		if contract, special := needs[a]; special && contract == (common.Address{}) {
			continue
		}

		t.actions = append(t.actions, slices.Repeat([]Action{a}, c.Mix[a])...)
	}

	if len(t.actions) == 0 {
		return nil, errors.New("start traffic: the mix has no action that the deployment allows")
	}

	var err error
	if t.node, err = ethclient.DialContext(ctx, c.URL); err != nil {
		return nil, fmt.Errorf("reach the chain: %w", err)
	}

	if t.wallet, err = OpenWallet(ctx, t.node, c.Accounts...); err == nil {
		err = t.resync(ctx)
	}

	if err != nil {
		t.Close()
		return nil, err
	}

	return t, nil
}

// Close closes the connection.
func (t *Traffic) Close() { t.node.Close() }

// Stats says where it stands.
func (t *Traffic) Stats() TrafficStats {
	return TrafficStats{Waiting: len(t.flying), Open: len(t.escrows), Resyncs: t.resyncs}
}

// Step looks at what has become of earlier transactions and sends n new ones. It mines nothing. It
// does not mind reorganisations: it notices and reads the chain again.
func (t *Traffic) Step(ctx context.Context, n int) error {
	if err := t.Settle(ctx); err != nil {
		return err
	}

	txs := make([]*types.Transaction, n)
	flights := make([]flight, n)
	for i := range txs {
		kind, account, e, call := t.choose()
		tx, err := t.wallet.sign(account, call)
		if err != nil {
			return err
		}

		creates := 0
		switch kind {
		case Create, CreateDeterministic, CreateLegacy:
			creates = 1
		case CreateSeveral:
			creates = several
		}

		t.coming += creates
		txs[i], flights[i] = tx, flight{tx.Hash(), e, creates}
	}

	if _, err := t.wallet.sendSigned(ctx, txs); err != nil {
		if ctx.Err() != nil {
			return err
		}

		// A reorganisation since Settle makes nonces wrong. Read again, and be content to do less this
		// time; if it was something else, reading fails too, or the next Step does.
		return t.resync(ctx)
	}

	t.flying = append(t.flying, flights...)

	return nil
}

// Settle takes the receipts that have come since. After a last Step and Mine it brings Stats up to date.
func (t *Traffic) Settle(ctx context.Context) error {
	if err := t.wallet.refreshFees(ctx); err != nil {
		return err
	}

	if moved, err := t.moved(ctx); err != nil {
		return err
	} else if moved {
		t.resyncs++
		return t.resync(ctx)
	}

	hashes := make([]common.Hash, len(t.flying))
	for i, f := range t.flying {
		hashes[i] = f.hash
	}

	receipts, err := t.wallet.Receipts(ctx, hashes)
	if err != nil {
		return err
	}

	waiting := t.flying[:0]
	for i, r := range receipts {
		f := t.flying[i]
		if r == nil {
			waiting = append(waiting, f)
			continue
		}

		if f.escrow != nil {
			f.escrow.busy = false
		}

		t.coming -= f.creates
		for _, l := range r.Logs {
			t.apply(l)
		}

		if n := r.BlockNumber.Uint64(); n > t.newest.number {
			t.newest = blockID{n, r.BlockHash}
		}
	}

	t.flying = waiting

	return nil
}

// moved reports whether the newest block that we have a receipt of is still there.
func (t *Traffic) moved(ctx context.Context) (bool, error) {
	var block *struct{ Hash common.Hash }
	if err := t.wallet.rpc.CallContext(ctx, &block, "eth_getBlockByNumber", hexutil.Uint64(t.newest.number),
		false); err != nil {
		return false, fmt.Errorf("read block %d: %w", t.newest.number, err)
	}

	return block == nil || block.Hash != t.newest.hash, nil
}

// resyncAttempts is how often the chain may change while it is being read.
const resyncAttempts = 10

// resync forgets what was sent and reads all escrows from the chain.
func (t *Traffic) resync(ctx context.Context) (err error) {
	for range resyncAttempts {
		if err = t.read(ctx); err == nil || ctx.Err() != nil {
			return err
		}
	}

	return err
}

func (t *Traffic) read(ctx context.Context) error {
	var head hexutil.Uint64
	if err := t.wallet.rpc.CallContext(ctx, &head, "eth_blockNumber"); err != nil {
		return fmt.Errorf("read the head: %w", err)
	}

	from := min(t.config.Deployment.Block, uint64(head))
	truth, err := ReadTruth(ctx, t.node, from, uint64(head), t.config.Deployment.Factory, t.config.Deployment.Legacy)
	if err != nil {
		return err
	}

	if err := errors.Join(t.wallet.Sync(ctx), t.wallet.refreshFees(ctx)); err != nil {
		return err
	}

	t.escrows, t.index, t.newest = nil, map[common.Address]*escrow{}, blockID{truth.To, truth.Hash}
	t.flying, t.coming = nil, 0
	for _, address := range truth.Escrows {
		for _, e := range truth.Events[address] {
			t.apply(e.Log)
		}
	}

	return nil
}

var escrowABI = contracts.NewEscrow()

// apply changes what is known of an escrow by an event.
func (t *Traffic) apply(l *types.Log) {
	name := eventName(l)
	if name == "" || l.Address == t.config.Deployment.Noise {
		return
	}

	if name == "EscrowCreated" {
		created, err := escrowABI.UnpackEscrowCreatedEvent(l)
		if err != nil {
			return
		}

		e := &escrow{address: l.Address, payer: created.Payer, payee: created.Payee, other: created.Arbiter,
			required: created.ApprovalsRequired, releaseTime: created.ReleaseTime.Uint64()}
		t.escrows, t.index[l.Address] = append(t.escrows, e), e

		return
	}

	e := t.index[l.Address]
	if e == nil {
		return
	}

	switch name {
	case "Approved":
		e.approved = append(e.approved, common.BytesToAddress(l.Topics[1][:]))
	case "ArbiterChanged":
		e.other = common.BytesToAddress(l.Topics[2][:])
	case "EscrowReleased", "EscrowRefunded":
		delete(t.index, l.Address)
		i := slices.Index(t.escrows, e)
		last := len(t.escrows) - 1
		t.escrows[i] = t.escrows[last]
		t.escrows = t.escrows[:last]
	}
}

// tries is how many escrows are looked at for one on which an action is possible.
const tries = 16

// choose picks an action, an escrow on which it is possible, and the account that may do it. Where
// there is none, it creates an escrow, or makes noise when there are enough.
func (t *Traffic) choose() (Action, int, *escrow, Call) {
	action := t.actions[t.rand.IntN(len(t.actions))]
	full := t.config.Open > 0 && len(t.escrows)+t.coming >= t.config.Open
	switch action {
	case Create, CreateDeterministic, CreateLegacy, CreateSeveral, SettleSeveral:
		if !full {
			account, call := t.create(action)
			return action, account, nil, call
		}

		action = Approve
	case MakeNoise:
		return t.noise()
	}

	for range min(tries, len(t.escrows)) {
		e := t.escrows[t.rand.IntN(len(t.escrows))]
		if e.busy {
			continue
		}

		if account, data := t.act(action, e); data != nil {
			e.busy = true
			return action, account, e, Call{To: &e.address, Data: data, Gas: 500_000}
		}
	}

	if full && t.config.Deployment.Noise != (common.Address{}) {
		return t.noise()
	}

	account, call := t.create(Create)

	return Create, account, nil, call
}

// several is how many escrows CreateSeveral and SettleSeveral make.
const several = 3

// act returns no data when the action is not possible on the escrow.
func (t *Traffic) act(action Action, e *escrow) (account int, data []byte) {
	switch action {
	case Approve:
		parties := []common.Address{e.payer, e.payee, e.other}
		t.rand.Shuffle(len(parties), func(i, j int) { parties[i], parties[j] = parties[j], parties[i] })
		for _, p := range parties {
			if i := t.account(p); i >= 0 && !slices.Contains(e.approved, p) {
				return i, escrowABI.PackApprove()
			}
		}
	case Release:
		if len(e.approved) >= int(e.required) && t.wallet.time >= e.releaseTime {
			return t.rand.IntN(len(t.config.Accounts)), escrowABI.PackRelease()
		}
	case Refund:
		if i := t.account(e.payer); i >= 0 && t.wallet.time >= e.releaseTime+refundAfter {
			return i, escrowABI.PackRefund()
		}
	case ChangeArbiter:
		if i := t.account(e.payer); i >= 0 {
			return i, escrowABI.PackChangeArbiter(t.config.Accounts[t.rand.IntN(len(t.config.Accounts))].Address)
		}
	}

	return 0, nil
}

// account returns whose address it is, or -1.
func (t *Traffic) account(address common.Address) int {
	return slices.IndexFunc(t.config.Accounts, func(a Account) bool { return a.Address == address })
}

func (t *Traffic) create(action Action) (int, Call) {
	people := t.rand.Perm(len(t.config.Accounts))[:3]
	payee, arbiter := t.config.Accounts[people[1]].Address, t.config.Accounts[people[2]].Address
	if t.rand.IntN(5) == 0 {
		arbiter = common.Address{}
	}

	approvals := uint8(1 + t.rand.IntN(2)) // three are never reached without an arbiter
	// Wei, from nothing to more than fits into 64 bits.
	amount := new(big.Int).Lsh(big.NewInt(int64(t.rand.IntN(1000))), uint(t.rand.IntN(60)))
	delay := new(big.Int)
	switch t.rand.IntN(10) {
	case 0:
		delay.SetInt64(int64(1 + t.rand.IntN(10))) // seconds: approvals may be complete before
	case 1:
		delay.SetInt64(24 * 3600)
	}

	call := Call{Value: amount}
	switch action {
	case CreateLegacy:
		call.To, call.Data = &t.config.Deployment.Legacy,
			contracts.NewLegacyEscrowFactory().PackCreateEscrow(payee, delay, approvals)
	case CreateSeveral:
		call.To, call.Gas = &t.config.Deployment.Load, several*gasCreate+100_000
		call.Data = loadABI.PackCreate(t.config.Deployment.Factory, big.NewInt(several), payee, delay, approvals, arbiter)
	case SettleSeveral:
		call.To, call.Gas = &t.config.Deployment.Load, several*(gasCreate+gasApprove)+100_000
		call.Data = loadABI.PackSettle(t.config.Deployment.Factory, big.NewInt(several), payee, arbiter)
	case CreateDeterministic:
		var salt [32]byte
		for i := range salt {
			salt[i] = byte(t.rand.Uint32())
		}

		call.To, call.Data = &t.config.Deployment.Factory,
			contracts.NewEscrowFactory().PackCreateEscrowDeterministic(payee, delay, approvals, arbiter, salt)
	default:
		call.To, call.Data = &t.config.Deployment.Factory,
			contracts.NewEscrowFactory().PackCreateEscrow(payee, delay, approvals, arbiter)
	}

	return people[0], call
}

func (t *Traffic) noise() (Action, int, *escrow, Call) {
	noise, n := contracts.NewNoise(), big.NewInt(int64(1+t.rand.IntN(5)))
	data := noise.PackApproved(n)
	if t.rand.IntN(2) == 0 {
		data = noise.PackApprovedUnindexed(n)
	}

	return MakeNoise, t.rand.IntN(len(t.config.Accounts)), nil,
		Call{To: &t.config.Deployment.Noise, Data: data, Gas: 200_000}
}
