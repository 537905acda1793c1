package send_test

import (
	"context"
	"math/big"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
	"github.com/fusion-prime/escrow-relayer/relayer/command/sign"
)

func TestApproveIsSentOnceAndAnsweredAtFinality(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	escrow := w.escrow(1, 0)
	w.start(nil)
	c := w.command(command.Approve, escrow, nil)
	id := w.accept(c)

	w.await(id, false, command.Sent)
	a := w.await(id, true, command.Done)

	sent := w.sent()
	require.Len(t, sent, 1)
	require.Equal(t, sent[0].Hex(), a.Transaction)
	r := w.receipt(sent[0])
	require.EqualValues(t, 1, r.Status)
	require.Equal(t, r.BlockNumber.Int64(), a.Block)
	require.Equal(t, r.BlockHash.Hex(), a.BlockHash)
	require.Equal(t, sent[0].Hex()+":0", a.EventID, "its own Approved")
	require.Equal(t, []command.State{command.Done}, w.replies(id))

	// The same command again gets the stored answer, and nothing is sent.
	again := w.take(c)[0]
	require.True(t, again.Known)
	require.Equal(t, a, again.Answer)
	require.Len(t, w.sent(), 1)
	require.Equal(t, 0, w.int(`select count(*) from commands where reserved < fee_paid`))
	require.Equal(t, 1, w.int(`select count(*) from senders s join commands c on c.sender = s.address where s.spent_fees = c.fee_paid`), "what was reserved too much is given back")
}

// The same act asked for again after it succeeded, as another command: it is answered, with the event that did it.
func TestAskedAgainAfterSuccess(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	w.start(nil)
	escrow := w.escrow(2, 0)
	first := w.await(w.accept(w.command(command.Approve, escrow, nil)), true, command.Done)
	again := w.await(w.accept(w.command(command.Approve, escrow, nil)), true, command.Already)
	require.Equal(t, first.EventID, again.EventID)
	require.Equal(t, first.BlockHash, again.BlockHash)
	require.Len(t, w.sent(), 1)
}

// C4: what is mined is not answered before its block is final, though the sender has looked at it: it
// has given nonces to others since.
func TestNotAnsweredBeforeFinality(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	escrows := []common.Address{w.escrow(1, 0), w.escrow(1, 0), w.escrow(1, 0)}
	w.start(nil)
	first := w.accept(w.command(command.Approve, escrows[0], nil))
	w.awaitBroadcast(first)
	w.mine(1)
	require.Eventually(t, func() bool { return int(w.nodes.View().Head) == w.head() }, patience, 10*time.Millisecond)
	for _, e := range escrows[1:] {
		w.await(w.accept(w.command(command.Approve, e, nil)), false, command.Sent)
	}

	require.Len(t, w.sent(), 1, "it is mined, and the others are not")
	require.Equal(t, command.Sent, w.answer(first).State)
	require.Empty(t, w.replies(first))
	w.await(first, true, command.Done)
}

// Every kind, one after the other, through a queue that is longer than what may be in flight.
func TestKindsAndQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	w.start(func(c *send.Config) { c.Limits.MaxInFlight = 2 })

	args := &command.CreateArgs{Payee: w.requester.Address, Amount: big.NewInt(5), ReleaseDelay: new(big.Int),
		ApprovalsRequired: 1, Salt: common.Hash{1}}
	create := w.accept(w.command(command.Create, w.createAddress(args), func(c *command.Command) { c.Args = args }))
	// It asks for another one: when the first is there, a second of the same terms would revert, and be held.
	other := *args
	other.Salt = common.Hash{2}
	wrong := w.accept(w.command(command.Create, common.Address{5}, func(c *command.Command) { c.Args = &other }))
	ids := []common.Hash{create}
	for range 5 {
		ids = append(ids, w.accept(w.command(command.Approve, w.escrow(1, 0), nil)))
	}

	for _, id := range ids {
		w.await(id, true, command.Done)
	}

	require.Equal(t, command.CodeWrongEscrow, w.await(wrong, true, command.Refused).Code)

	// The same terms once more, and others, when the command that has created the escrow has left with its claim.
	w.exec(`delete from command_claims where effect = 'create'`)
	again := w.accept(w.command(command.Create, w.createAddress(args), func(c *command.Command) { c.Args = args }))
	require.Equal(t, command.Already, w.await(again, true, command.Already, command.Refused).State)
	sooner := *args
	sooner.ReleaseDelay = big.NewInt(9)
	w.exec(`delete from command_claims where effect = 'create'`)
	differs := w.accept(w.command(command.Create, w.createAddress(args), func(c *command.Command) { c.Args = &sooner }))
	require.Equal(t, command.CodeWrongEscrow, w.await(differs, true, command.Already, command.Refused).Code)

	// A release by anybody: approved by the payer before its time had come.
	late := w.escrow(1, 100_000)
	_, err := w.wallet.Transact(t.Context(), w.node, 0,
		testchain.Call{To: &late, Data: contracts.NewEscrow().PackApprove()})
	require.NoError(t, err)
	w.mine(confirmations)
	w.awaitLook()
	release := w.accept(w.command(command.Release, late, nil))
	w.awaitHeld(release, "the escrow's release time has not come")
	require.Equal(t, 1, w.int(`select count(*) from commands where answered_at is null and next_look > now() + interval '50 minutes'`),
		"it is known when to look again")
	require.NoError(t, w.node.(*testchain.Sim).AdvanceTime(t.Context(), 200_000*time.Second))
	require.Eventually(t, func() bool { // until a block of that time is final, the sender sets its own time again
		w.mine(1)
		w.exec(`update commands set next_look = now() where command_id = $1 and state = 'accepted'`, release.Hex())

		return w.answer(release).State == command.Done
	}, patience, 20*time.Millisecond)
	require.Len(t, w.sent(), 7, "one transaction per command that had an effect")
	found, done := w.audit()
	require.Empty(t, found)
	require.Equal(t, send.Audited{Senders: 1, Nonces: 7, Commands: 7}, done)
}

func TestWhatCannotSucceedCostsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	chain := w.node.ChainID().Int64()
	w.start(nil)

	refund := w.accept(w.command(command.Refund, w.escrow(1, 0), nil))
	refused := w.await(refund, true, command.Refused)
	require.Equal(t, command.CodeUnauthorised, refused.Code, "the sender is the payee")
	require.Equal(t, w.hash(int(refused.Block)).Hex(), refused.BlockHash, "that of which the contract said so")

	approved := w.escrow(2, 0)
	record(t, w.db, chain, approved, "approved", w.sender.Address)
	require.Equal(t, command.Already, w.await(w.accept(w.command(command.Approve, approved, nil)), true,
		command.Already).State)
	settled := w.escrow(1, 0)
	record(t, w.db, chain, settled, "refunded")
	require.Equal(t, command.CodeSettled, w.await(w.accept(w.command(command.Release, settled, nil)), true,
		command.Refused).Code)

	unknown := w.accept(w.command(command.Approve, common.Address{9}, nil))
	w.awaitHeld(unknown, command.CodeUnknownEscrow)
	w.exec(`insert into factories (chain_id, id, address, start_block) values ($1, 2, '\x00000000000000000000000000000000000000fa', 1)`, chain)
	others := w.escrow(1, 0) // of another factory than the command is for
	w.exec(`update escrows set factory = 2 where address = $1`, others.Bytes())
	foreign := w.accept(w.command(command.Approve, others, nil))
	w.awaitHeld(foreign, command.CodeUnknownEscrow)
	poor := w.accept(w.command(command.Approve, w.escrow(1, 0), func(c *command.Command) { c.MaxFee = big.NewInt(1) }))
	require.Eventually(t, func() bool { return w.answer(poor).Code == command.CodeUnderpriced }, patience,
		20*time.Millisecond)

	w.exec(`update commands set cancel_requested = true where command_id = $1`, unknown.Hex())
	w.await(unknown, true, command.Cancelled)
	w.exec(`update commands set cancel_requested = true where command_id = $1`, foreign.Hex())
	w.await(foreign, true, command.Cancelled)
	w.exec(`update commands set expires_at = now() where command_id = $1`, poor.Hex())
	w.await(poor, true, command.Expired)
	require.Empty(t, w.sent())
	require.Equal(t, 0, w.int(`select count(*) from command_attempts`))
	require.Equal(t, 0, w.int(`select count(*) from command_claims`), "what had no effect can be asked for again")
}

// C6: what was sent and is over time, or is cancelled, is voided by the same nonce, and the chain decides.
func TestVoid(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	w.start(func(c *send.Config) { c.BumpBlocks = 1 })
	one, other := w.escrow(1, 0), w.escrow(1, 0) // before the commands: making an escrow mines, also what is sent already
	expired := w.accept(w.command(command.Approve, one, nil))
	cancelled := w.accept(w.command(command.Approve, other, nil))
	w.await(expired, false, command.Sent)
	w.await(cancelled, false, command.Sent)
	w.exec(`update commands set expires_at = now() where command_id = $1`, expired.Hex())
	w.exec(`update commands set cancel_requested = true where command_id = $1`, cancelled.Hex())
	require.Eventually(t, func() bool {
		return w.int(`select count(*) from command_attempts where purpose = 'void'`) == 2
	}, patience, 20*time.Millisecond)
	require.Equal(t, command.CodeExpired, w.await(expired, true, command.Voided).Code)
	require.Equal(t, command.CodeCancelled, w.await(cancelled, true, command.Voided).Code)
	require.Len(t, w.sent(), 2)
	require.Equal(t, 0, w.int(`select count(*) from command_claims`))
}

// C6 the other way: the call is mined before the void.
func TestDoneLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	w.start(nil)
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.awaitBroadcast(id)
	w.mine(1)
	w.exec(`update commands set expires_at = now() - interval '1 hour' where command_id = $1`, id.Hex())
	w.await(id, true, command.DoneLate)
	require.Equal(t, 1, w.int(`select count(*) from command_claims`), "it had its effect")
}

// C1, C4: a reorganisation deeper than finality takes answers back, says so, and the recorded bytes are sent again.
func TestReopened(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	w.start(nil)
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	first := w.await(id, true, command.Done)
	w.reorg(w.head() - int(first.Block) + 1)
	w.mine(confirmations + 1)
	require.Eventually(t, func() bool { return len(w.replies(id)) >= 2 }, patience, 20*time.Millisecond)
	second := w.await(id, true, command.Done)
	require.Equal(t, []command.State{command.Done, command.Reopened, command.Done}, w.replies(id))
	require.Len(t, w.sent(), 1, "the same nonce")
	require.Equal(t, 1, w.int(`select count(*) from command_attempts where tx_hash = $1 and nonce = 0 and purpose = 'call'`, second.Transaction))
	require.NotEqual(t, first.BlockHash, second.BlockHash)
	require.Equal(t, first.Revision+2, second.Revision)
	require.Equal(t, 1, w.int(`select count(*) from senders s join commands c on c.sender = s.address where s.spent_fees = c.fee_paid`), "what was reserved too much is given back once")
}

// C1: a foreign use of the key halts the sender, and nothing is signed until an operator has looked.
func TestForeignUseHalts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	w.start(nil)
	w.await(w.accept(w.command(command.Approve, w.escrow(1, 0), nil)), true, command.Done)

	w.use()
	w.awaitState("halted")
	require.Equal(t, 1, w.int(`select count(*) from senders
		where reason like '% the key%. Look at the account in an explorer, then run %'`))
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.mine(3)
	require.Equal(t, command.Accepted, w.answer(id).State)
	require.NoError(t, w.adopt(t.Context()))
	w.await(id, true, command.Done)
	require.Len(t, w.sent(), 3)
	found, _ := w.audit()
	require.Equal(t, map[uint64]string{1: send.FindingForeign}, found)
}

// A database that was restored to an earlier time gives out no nonce that the chain knows already.
func TestRestoredDatabaseHalts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	stop := w.start(nil)
	escrow := w.escrow(1, 0)
	c := w.command(command.Approve, escrow, nil)
	w.awaitBroadcast(w.accept(c))
	stop()
	// As it was before the command was sent.
	w.exec(`delete from command_attempts`)
	w.exec(`update commands set state = 'accepted', nonce = null, sent_at = null`)
	w.exec(`update senders set next_nonce = 0, spent_fees = 0`)
	w.start(nil)
	require.Eventually(t, func() bool { return w.int(`select count(*) from senders where state = 'halted'`) == 1 },
		patience, 20*time.Millisecond)
	require.Equal(t, 0, w.int(`select count(*) from command_attempts`))

	w.mine(1)
	require.NoError(t, w.adopt(t.Context()))
	w.mine(confirmations)
	w.awaitLook()
	record(t, w.db, w.node.ChainID().Int64(), escrow, "released", w.sender.Address) // the watches have seen it
	w.await(c.ID(), true, command.Already)
	require.Len(t, w.sent(), 1, "once")
}

// C9, C2: who has lost the epoch can neither assign nor record, and so nothing of it goes out.
func TestTakeoverFences(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	held, release := make(chan struct{}), make(chan struct{})
	slow := &slowSigner{Signer: sign.NewLocal(w.sender.Key), held: held, release: release}
	cfg := w.config()
	cfg.Signer, cfg.SignWithin = slow, patience
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go func() { ended <- send.Run(ctx, cfg, make(chan struct{})) }()

	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	<-held // it has assigned a nonce, and is about to sign
	w.start(func(c *send.Config) { c.InstanceID = "b" })
	w.await(id, false, command.Sent)
	close(release)
	select {
	case err := <-ended:
		require.ErrorIs(t, err, send.ErrFenced)
	case <-time.After(patience):
		t.Fatal("who has lost the epoch works on")
	}

	w.await(id, true, command.Done)
	require.Len(t, w.sent(), 1)
	require.Equal(t, 0, w.int(`select count(*) from command_attempts a join senders s on a.epoch <> s.epoch`),
		"nothing is recorded of who was about to sign")
}

type slowSigner struct {
	evm.Signer
	once          sync.Once
	held, release chan struct{}
}

func (s *slowSigner) Sign(ctx context.Context, payload []byte) ([65]byte, error) {
	s.once.Do(func() {
		close(s.held)
		select {
		case <-s.release:
		case <-ctx.Done():
		}
	})

	return s.Signer.Sign(ctx, payload)
}

// C7: the day's budget is a wall, and what waits for it is sent when there is some again.
func TestBudget(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	w.start(func(c *send.Config) { c.Limits.DayValue = big.NewInt(9) })
	create := func(salt byte) common.Hash {
		args := &command.CreateArgs{Payee: w.requester.Address, Amount: big.NewInt(5), ReleaseDelay: new(big.Int),
			ApprovalsRequired: 1, Salt: common.Hash{salt}}
		return w.accept(w.command(command.Create, w.createAddress(args), func(c *command.Command) { c.Args = args }))
	}
	first := create(1)
	w.await(first, true, command.Done)
	second := create(2)
	w.awaitHeld(second, command.CodeBudget)
	require.Len(t, w.sent(), 1)
	w.exec(`update senders set spend_day = spend_day - 1`)
	w.exec(`update commands set next_look = now() where command_id = $1`, second.Hex())
	w.await(second, true, command.Done)
}

// A pool that forgets gets the recorded bytes again; one that wants more gets a replacement, up to
// the cap and no further.
func TestReplacementUpToTheCap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	deaf := &deafChain{Nodes: w.nodes}
	w.start(func(c *send.Config) { c.Chain, c.BumpBlocks, c.Limits.MaxFee = deaf, 1, big.NewInt(2e15) })
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.await(id, true, command.Sent)
	require.Eventually(t, func() bool {
		w.mine(1)
		return w.answer(id).Code == command.CodeUnderpriced
	}, patience, 50*time.Millisecond)
	require.Greater(t, w.int(`select count(*) from command_attempts`), 2)
	require.Equal(t, 0, w.int(`select count(*) from command_attempts where gas * fee_cap > 2000000000000000`))
	require.Equal(t, 0, w.int(`select count(*) from command_attempts a join command_attempts b using (nonce) where b.attempt = a.attempt + 1 and (b.fee_cap < a.fee_cap * 1.1 or b.tip_cap < a.tip_cap * 1.1)`))
	deaf.hears.Store(true)
	w.await(id, true, command.Done)
	require.Len(t, w.sent(), 1)
}

// deafChain swallows broadcasts and says that it has them.
type deafChain struct {
	*evm.Nodes
	hears atomic.Bool
}

func (c *deafChain) Broadcast(ctx context.Context, raws [][]byte) []error {
	if c.hears.Load() {
		return c.Nodes.Broadcast(ctx, raws)
	}

	return make([]error, len(raws))
}

func TestKeeper(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	approve := func(e common.Address) {
		_, err := w.wallet.Transact(t.Context(), w.node, 0, testchain.Call{To: &e, Data: contracts.NewEscrow().PackApprove()})
		require.NoError(t, err)
		w.mine(confirmations)
		require.Eventually(t, func() bool {
			return w.int(`select approvals from escrow_records where escrow_key = $1`, e[:]) == 1
		}, patience, 10*time.Millisecond)
	}
	due, waiting, small, other := w.escrow(1, 100), w.escrow(1, 100), w.escrow(1, 100), w.escrow(2, 0)
	approve(due)
	approve(small)
	w.exec(`update events set args = regexp_replace(args, '"amount":"\d+"', '"amount":"1"') where escrow = $1`, small[:])
	require.Eventually(t, func() bool {
		return w.int(`select next_block from leadership`) == w.head()-confirmations+1
	}, patience, 10*time.Millisecond)
	w.verified(1000)
	w.exec(`update leadership set block_time = to_timestamp(1)`)
	// long past by the database's clock, and not by the chain's
	w.exec(`update events set args = regexp_replace(args, '"releaseTime":"\d+"', '"releaseTime":"1000"')`)
	w.start(func(c *send.Config) {
		c.Keeper = &send.Keeper{MinAmount: big.NewInt(7), MaxFee: big.NewInt(1e16), DayFees: big.NewInt(1e17),
			Every: 10 * time.Millisecond}
		c.LookEvery = 50 * time.Millisecond
	})
	approval := w.accept(w.command(command.Approve, other, nil))
	w.await(approval, false, command.Sent) // the keeper has looked before
	require.NoError(t, w.node.(*testchain.Sim).AdvanceTime(t.Context(), 200*time.Second))
	w.verified(0)
	w.await(approval, true, command.Done)
	for range 3 { // what is due is seen, and is not verified
		w.mine(1)
		w.awaitLook()
	}

	require.Zero(t, w.int(`select count(*) from commands where requester = 'keeper'`))
	w.verified(1000)
	require.Eventually(t, func() bool {
		w.mine(1)
		return w.int(`select count(*) from commands where state = 'done' and requester = 'keeper' and kind = 'release' and escrow = $1`, text(due)) == 1
	}, patience, 50*time.Millisecond)
	require.Equal(t, 1, w.int(`select count(*) from commands where requester = 'keeper'`),
		"neither what is not approved nor what is too small: %s %s", waiting, small)
}
