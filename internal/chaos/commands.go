package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"strconv"
	"sync"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
)

// Amounts in wei. With a base fee of 1 gwei at first, a command may cost about a third of its limit.
const (
	commandMaxFee = 3_000_000_000_000_000
	tightDayFees  = 12_000_000_000_000_000
	tightDayValue = 3000
)

// trafficAccounts are the first accounts of a chain: those of the events' traffic. Senders come next.
const trafficAccounts = 9

// way is the commands' part of a run: who may ask, who acts, what was asked for, and what is known
// of it beside the database.
type way struct {
	run        *run
	plan       *Commands
	senders    []testchain.Account
	requesters []testchain.Account // everything; approve only, for little; unknown to the policy
	wallet     *testchain.Wallet   // of whoever creates and approves escrows, and fills blocks; under run.mining
	makers     []testchain.Account
	pubsub     *lab.Commands
	// endowed is the block from before which no reorganisation takes anything: what the senders' keys did
	// before the relayers had them. Nobody would do it again, and what has a later nonce would never be mined.
	endowed int

	replacing sync.RWMutex // held while a database is replaced, until lost is known; before mu

	mu         sync.Mutex
	random     *rand.Rand
	escrows    []held
	asked      []*ask
	foreign    map[common.Hash]foreignUse // transactions with a sender's key that are not the relayer's
	lost       *books                     // what databases knew that were replaced; nil: none was
	halted     map[common.Address]string  // senders that an operator had to look at, and why
	unrecorded []string                   // bytes that reached a node and were in no database
	trap       *sendTrap                  // armed; nil: none
	pending    sync.WaitGroup
}

// held is an escrow that commands may be about.
type held struct {
	address common.Address
	parties []common.Address // senders that may approve
	payer   common.Address
}

// prepare makes keys, files, topics and the environment of the relayers. No relayer runs yet.
func prepare(ctx context.Context, r *run) (w *way, err error) {
	p := r.plan.Commands
	all := r.chain.Accounts()
	w = &way{
		run: r, plan: p, senders: all[trafficAccounts : trafficAccounts+p.Senders],
		makers:     all[trafficAccounts+p.Senders : trafficAccounts+p.Senders+2],
		requesters: testchain.Accounts(r.plan.Seed^0x7e9, 3), random: rand.New(rand.NewPCG(r.plan.Seed, 0xa5c)),
		foreign: map[common.Hash]foreignUse{}, halted: map[common.Address]string{},
	}
	if w.wallet, err = testchain.OpenWallet(ctx, r.chain.Client(), w.makers...); err != nil {
		return nil, err
	}

	if w.pubsub, err = r.lab.OpenCommands(); err != nil {
		return nil, err
	}

	env, err := w.files()
	if err != nil {
		return nil, err
	}

	maps.Copy(r.lab.Env, env)

	if err := w.endow(ctx); err != nil {
		return nil, err
	}

	for _, n := range r.nodes.front {
		n.OnSend(w.onSend)
	}

	return w, nil
}

// files writes keystores, the senders file and the policy, and returns the relayers' environment.
func (w *way) files() (map[string]string, error) {
	maxFee, fees, value := strconv.FormatInt(commandMaxFee, 10), "1000000000000000000", "1000000000"
	if w.plan.Tight {
		fees, value = strconv.FormatInt(tightDayFees, 10), strconv.Itoa(tightDayValue)
	}

	var senders []lab.Sender
	all := lab.Requester{Name: "all", Address: w.requesters[0].Address}
	few := lab.Requester{Name: "few", Address: w.requesters[1].Address}
	for i, a := range w.senders {
		senders = append(senders, lab.Sender{Account: a, Name: "s" + strconv.Itoa(i), MaxFee: maxFee, DayFees: fees,
			DayValue: value, MaxInFlight: w.plan.InFlight})
		all.Allow = append(all.Allow, lab.Grant{Sender: a.Address, MaxValue: "1000000", MaxFee: maxFee,
			Kinds: []string{"approve", "release", "refund", "create"}})
		few.Allow = append(few.Allow, lab.Grant{Sender: a.Address, Kinds: []string{"approve"},
			MaxFee: strconv.FormatInt(commandMaxFee/2, 10)})
	}

	env, err := w.run.lab.CommandFiles(senders, []lab.Requester{all, few})
	if err != nil {
		return nil, err
	}

	env["COMMANDS_SUBSCRIPTION_ID"] = w.pubsub.Subscription
	if w.plan.Past > 0 {
		env["RETENTION"] = "1h"
	}

	if w.plan.Keeper {
		env["KEEPER_SENDER"], env["KEEPER_MIN_AMOUNT"] = w.senders[0].Address.Hex(), "1"
		env["KEEPER_MAX_FEE"], env["KEEPER_DAY_FEES"] = maxFee, fees
	}

	return env, nil
}

// endow creates escrows before the relayers start: some are due for the keeper, and some of the
// senders' own may be refunded. The senders have used nonces, then.
func (w *way) endow(ctx context.Context) error {
	r := w.run
	for range 4 {
		if _, err := w.wallet.Transact(ctx, r.chain, 0, w.create(1, true)...); err != nil {
			return fmt.Errorf("create the first escrows: %w", err)
		}
	}

	if !w.plan.Refunds {
		return nil
	}

	own, err := testchain.OpenWallet(ctx, r.chain.Client(), w.senders...)
	if err != nil {
		return err
	}
	for i, s := range w.senders {
		for n := range 2 {
			salt := common.Hash{31: byte(n), 30: byte(i), 0: 9}
			payee := w.requesters[0].Address
			address := r.lab.Contracts.Escrow(s.Address, payee, 0, 2, common.Address{}, salt)
			data := contracts.NewEscrowFactory().PackCreateEscrowDeterministic(payee, new(big.Int), 2, common.Address{}, salt)
			if _, err := own.Transact(ctx, r.chain, i, testchain.Call{To: &r.lab.Contracts.Factory, Data: data,
				Value: big.NewInt(5)}); err != nil {
				return fmt.Errorf("create an escrow to refund: %w", err)
			}

			w.escrows = append(w.escrows, held{address, []common.Address{s.Address}, s.Address})
		}
	}

	head, err := r.lab.Head(ctx)
	w.endowed = int(head) + 1 // the block that AdvanceTime makes has the newest

	return errors.Join(err, r.chain.AdvanceTime(ctx, refundable))
}

// past is the requester of commands that were answered long ago.
const past = "past"

const insertPast = `
	insert into commands (chain_id, command_id, sender, kind, escrow, effect, requester, message, max_fee, expires_at, received_at, answered_at,
	       state, code, nonce)
	select $1, '0x' || lpad(to_hex(n), 64, '0'), lower($2), 'approve', '0x' || lpad(to_hex(n), 40, '0'), 'settle', $3, '{}', 1,
	       now() - interval '8 days', now() - interval '9 days', now() - interval '9 days',
	       case n % 2 when 1 then 'refused' else 'voided' end, 'conflict', case n % 2 when 0 then 1000000000 + n end
	  from generate_series($4::int, $5::int) n`

// addPast stores the commands that were answered long ago. The relayers run, and the first of them has made the tables.
func (w *way) addPast(ctx context.Context) error {
	const step = 50_000
	for n := 0; n < w.plan.Past; n += step {
		if _, err := w.run.lab.DB.Exec(ctx, insertPast, w.run.chain.ChainID().Int64(),
			w.senders[n/step%len(w.senders)].Address.Hex(), past, n+1, n+step); err != nil {
			return fmt.Errorf("store commands that were answered long ago: %w", err)
		}
	}

	return nil
}

// create makes the calls that create an escrow of the maker's for senders. One that is approved at
// once waits for its release, in due case for whoever comes first.
func (w *way) create(required uint8, approved bool) []testchain.Call {
	w.mu.Lock()
	defer w.mu.Unlock()
	payer, payee := w.makers[0].Address, w.senders[w.random.IntN(len(w.senders))].Address
	arbiter := w.senders[w.random.IntN(len(w.senders))].Address
	var salt common.Hash
	for i := range 4 {
		salt[i] = byte(w.random.Uint32())
	}

	delay := int64(0)
	if approved {
		delay = int64(1 + w.random.IntN(6)) // seconds: it is approved before it is due
	}

	parties := []common.Address{payee}
	if arbiter != payee {
		parties = append(parties, arbiter)
	}

	escrow := w.run.lab.Contracts.Escrow(payer, payee, delay, required, arbiter, salt)
	w.escrows = append(w.escrows, held{escrow, parties, payer})
	data := contracts.NewEscrowFactory().PackCreateEscrowDeterministic(payee, big.NewInt(delay), required, arbiter, salt)
	calls := []testchain.Call{{To: &w.run.lab.Contracts.Factory, Data: data,
		Value: big.NewInt(int64(1 + w.random.IntN(1000)))}}
	if approved {
		calls = append(calls, testchain.Call{To: &escrow, Data: contracts.NewEscrow().PackApprove(), Gas: 300_000})
	}

	return calls
}

// step makes escrows for commands before a block is mined. A reorganisation may undo it, which is no
// error: commands about what is not there are held.
func (w *way) step(ctx context.Context) {
	w.mu.Lock()
	n, required, approved := w.random.IntN(3), uint8(1+w.random.IntN(2)), w.random.IntN(4) == 0
	w.mu.Unlock()
	if n == 0 || w.wallet.Sync(ctx) != nil {
		return
	}

	if approved {
		required = 1
	}

	for range n {
		_, _ = w.wallet.Send(ctx, 0, w.create(required, approved)...)
	}
}

// fill sends transactions that leave no room in the next block and do nothing.
func (w *way) fill(ctx context.Context) {
	if w.wallet.Sync(ctx) != nil {
		return
	}

	loop := testchain.Call{Data: []byte{0x5b, 0x5f, 0x56}, Gas: 14_400_000} // JUMPDEST PUSH0 JUMP
	_, _ = w.wallet.Send(ctx, 1, loop, loop)
}

// pick returns one of n, by the seed.
func (w *way) pick(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.random.IntN(n)
}
