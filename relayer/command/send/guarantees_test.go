package send_test

import (
	"context"
	"errors"
	"math/big"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
	"github.com/fusion-prime/escrow-relayer/relayer/command/sign"
)

// strictChain asks the database about everything that leaves the process, at the moment when it does.
type strictChain struct {
	*deafChain
	w          *world
	broadcasts atomic.Int64
	unrecorded atomic.Int64
}

func (c *strictChain) Broadcast(ctx context.Context, raws [][]byte) []error {
	for _, raw := range raws {
		c.broadcasts.Add(1)
		var known bool
		if err := c.w.db.QueryRow(ctx, `select exists (select from command_attempts where raw = $1)`,
			raw).Scan(&known); err != nil || !known {
			c.unrecorded.Add(1)
		}
	}

	return c.deafChain.Broadcast(ctx, raws)
}

// C2: what leaves the process is in the database, first attempts, replacements and voids; and while
// the database refuses to store attempts, drops them or stores others, nothing leaves at all.
func TestNothingUnrecordedLeaves(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	chain := &strictChain{deafChain: &deafChain{Nodes: w.nodes}, w: w}
	does := func(what string) {
		w.exec(`create or replace function refuse() returns trigger language plpgsql as $$ begin ` + what + ` end $$`)
	}
	does(`raise exception 'refused';`)
	w.exec(`create trigger refuse before insert on command_attempts for each row execute function refuse()`)
	signer := &countingSigner{Signer: sign.NewLocal(w.sender.Key)}
	w.start(func(c *send.Config) { c.Chain, c.Signer, c.BumpBlocks = chain, signer, 1 })
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	for _, what := range []string{`raise exception 'refused';`, `return null;`, `new.raw := '\x00'; return new;`} {
		does(what)
		before := signer.signed.Load()
		require.Eventually(t, func() bool { return signer.signed.Load() >= before+3 || chain.broadcasts.Load() > 0 },
			patience, 10*time.Millisecond)
		require.Zero(t, chain.broadcasts.Load(), what)
	}

	w.exec(`drop trigger refuse on command_attempts`)
	attempts := func(purpose string) int {
		return w.int(`select count(*) from command_attempts where purpose = $1`, purpose)
	}
	require.Eventually(t, func() bool { w.mine(1); return attempts("call") >= 2 }, patience, 50*time.Millisecond)
	w.exec(`update commands set cancel_requested = true`)

	// C3: after a void there is no call at this nonce any more. It is the void that is replaced.
	require.Eventually(t, func() bool { w.mine(1); return attempts("void") >= 2 }, patience, 50*time.Millisecond)
	require.Equal(t, 0, w.int(`select count(*)
		from command_attempts a join command_attempts b using (chain_id, sender, nonce)
		where a.purpose = 'call' and b.purpose = 'void' and a.attempt > b.attempt`))
	chain.hears.Store(true)
	w.await(id, true, command.Voided)
	require.Zero(t, chain.unrecorded.Load())
	require.Greater(t, chain.broadcasts.Load(), int64(3))
	require.Len(t, w.sent(), 1)
}

// hookedSigner calls before with the number of each signature, just before it makes it.
type hookedSigner struct {
	evm.Signer
	signed atomic.Int64
	before func(ctx context.Context, n int64)
}

func (s *hookedSigner) Sign(ctx context.Context, payload []byte) ([65]byte, error) {
	s.before(ctx, s.signed.Add(1))
	return s.Signer.Sign(ctx, payload)
}

// C3: a call that is signed while its nonce gets a void is not stored, so it never leaves.
func TestNoCallAfterAVoid(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	signer := &hookedSigner{Signer: sign.NewLocal(w.sender.Key), before: func(ctx context.Context, n int64) {
		if n == 2 { // the replacement of the first call
			_, _ = w.db.Exec(ctx, `update command_attempts set purpose = 'void'`) // is asserted below
		}
	}}
	w.start(func(c *send.Config) { c.Chain, c.Signer, c.BumpBlocks = &deafChain{Nodes: w.nodes}, signer, 1 })
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.await(id, true, command.Sent)
	attempts := func() int { return w.int(`select count(*) from command_attempts`) }
	require.Eventually(t, func() bool { w.mine(1); return attempts() >= 2 }, patience, 50*time.Millisecond)
	require.Equal(t, attempts(), w.int(`select count(*) from command_attempts where purpose = 'void'`))
}

// gapChain counts what is broadcast at a nonce below which there is one for which nothing is recorded.
type gapChain struct {
	*evm.Nodes
	w    *world
	gaps atomic.Int64
}

func (c *gapChain) Broadcast(ctx context.Context, raws [][]byte) []error {
	for _, raw := range raws {
		var tx types.Transaction
		var below uint64
		err := tx.UnmarshalBinary(raw)
		if err == nil {
			err = c.w.db.QueryRow(ctx, `select count(distinct nonce) from command_attempts where nonce < $1`,
				int64(tx.Nonce())).Scan(&below)
		}

		if err != nil || below < tx.Nonce() {
			c.gaps.Add(1)
		}
	}

	return c.Nodes.Broadcast(ctx, raws)
}

// C1: nothing leaves above a nonce for which nothing is signed. A pool keeps such a transaction for later
// and does not count it: over a restored database nobody would know of it. Here the first of two commands
// expires while it is signed: what was signed is thrown away, and its nonce is the second one's.
func TestNothingLeavesAboveAGap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	chain := &gapChain{Nodes: w.nodes, w: w}
	first := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	second := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.awaitTarget() // both are seen at once, and get their nonces together
	held, release := make(chan struct{}), make(chan struct{})
	w.start(func(c *send.Config) {
		c.Chain, c.SignWithin = chain, patience
		c.Signer = &slowSigner{Signer: sign.NewLocal(w.sender.Key), held: held, release: release}
	})
	<-held
	w.exec(`update commands set expires_at = now() where command_id = $1`, first.Hex())
	close(release)
	w.await(second, true, command.Done)
	w.await(first, true, command.Expired)
	require.Equal(t, 1, w.int(`select count(*) from commands where nonce = 0 and command_id = $1`, second.Hex()))
	require.Zero(t, chain.gaps.Load())
	require.Len(t, w.sent(), 1)
}

// A signer that does not answer holds a round up for one signature, not for each of those that wait.
func TestASilentSignerIsAskedOncePerRound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	var ids []common.Hash
	for range 3 {
		ids = append(ids, w.accept(w.command(command.Approve, w.escrow(1, 0), nil)))
	}

	w.awaitTarget()
	signer := &failingSigner{Signer: sign.NewLocal(w.sender.Key)}
	var log *said
	w.start(func(c *send.Config) { c.Signer, log = signer, listen(c, "signing failed, the command waits") })
	require.Eventually(t, func() bool { return signer.failed.Load() >= 4 }, patience, 10*time.Millisecond)
	require.EqualValues(t, 1, log.count.Load(), "once a minute")
	require.Equal(t, 3, w.int(`select count(*) from commands where state = 'accepted' and code = 'signer' and nonce is null`))
	require.LessOrEqual(t, int(signer.failed.Load()), w.int(`select max(holds) from commands`)+1, "once in each round")

	signer.mended.Store(true)
	for _, id := range ids {
		require.Equal(t, command.Done, w.await(id, true, command.Done).State)
	}

	require.Len(t, w.sent(), 3)
}

// failingSigner has no signature until it is mended, and counts how often it was asked for one.
type failingSigner struct {
	evm.Signer
	failed atomic.Int64
	mended atomic.Bool
}

func (s *failingSigner) Sign(ctx context.Context, payload []byte) ([65]byte, error) {
	if s.mended.Load() {
		return s.Signer.Sign(ctx, payload)
	}

	s.failed.Add(1)

	return [65]byte{}, errors.New("no signature now")
}

type countingSigner struct {
	evm.Signer
	signed atomic.Int64
}

func (s *countingSigner) Sign(ctx context.Context, payload []byte) ([65]byte, error) {
	s.signed.Add(1)
	return s.Signer.Sign(ctx, payload)
}

// C9: an instance whose session may be over sends nothing, also what it has recorded.
func TestNothingLeavesWithoutTheSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	chain := &strictChain{deafChain: &deafChain{Nodes: w.nodes}, w: w}
	chain.hears.Store(true)
	var valid atomic.Bool
	w.start(func(c *send.Config) { c.Chain, c.Valid = chain, valid.Load })
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	require.Eventually(t, func() bool { return w.int(`select count(*) from command_attempts`) == 1 }, patience,
		10*time.Millisecond)
	w.mine(4)
	w.awaitLook()
	require.Zero(t, chain.broadcasts.Load())
	valid.Store(true)
	w.await(id, true, command.Done)
}

// C6: a command that expires while it is signed gets no nonce, and what was signed is thrown away.
func TestExpiredWhileItIsSigned(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	held, release := make(chan struct{}), make(chan struct{})
	w.start(func(c *send.Config) {
		c.Signer = &slowSigner{Signer: sign.NewLocal(w.sender.Key), held: held, release: release}
		c.SignWithin = patience
	})
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	<-held
	w.exec(`update commands set expires_at = now()`)
	close(release)
	require.Equal(t, command.CodeExpired, w.await(id, true, command.Expired).Code)
	require.Equal(t, 0, w.int(`select count(*) from command_attempts`))
	require.Empty(t, w.sent())
}

// lateChain lets something happen, once, when a command was tried with success and has no nonce yet.
type lateChain struct {
	*evm.Nodes
	happen   func(context.Context) error
	happened atomic.Bool
}

func (c *lateChain) Simulate(ctx context.Context, target evm.Block, calls []evm.Call) ([]evm.Simulation, error) {
	tried, err := c.Nodes.Simulate(ctx, target, calls)
	if err == nil && tried[0].Reverts == nil && c.happened.CompareAndSwap(false, true) {
		err = c.happen(ctx)
	}

	return tried, err
}

// C6: a command that expires, or is cancelled, after it was tried and before it gets a nonce, gets none: it
// costs nothing.
func TestNoNonceAfterExpiry(t *testing.T) {
	t.Parallel()
	for change, want := range map[string]command.State{"expires_at = now()": command.Expired,
		"cancel_requested = true": command.Cancelled} {
		t.Run(string(want), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, startSim(t))
			id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
			w.start(func(c *send.Config) {
				c.Chain = &lateChain{Nodes: w.nodes, happen: func(ctx context.Context) error {
					_, err := w.db.Exec(ctx, `update commands set `+change)
					return err
				}}
			})
			require.Equal(t, want, w.await(id, true, want, command.Voided, command.Done).State)
			require.Equal(t, 0, w.int(`select count(*) from commands where nonce is not null`))
			require.Empty(t, w.sent())
		})
	}
}

// C7: after the database's clock was set back across midnight, too, what a command does not pay of its reservation goes
// back to the sums that it was reserved from.
func TestWhatIsNotPaidGoesBackAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	first, second := w.escrow(1, 0), w.escrow(1, 0)
	w.start(nil)
	w.await(w.accept(w.command(command.Approve, first, nil)), true, command.Done)
	w.exec(`update senders set spend_day = spend_day + 1`)
	w.exec(`update commands set reserve_day = reserve_day + 1`)
	w.await(w.accept(w.command(command.Approve, second, nil)), true, command.Done)
	require.Equal(t, 1, w.int(`select count(*) from senders where spent_fees = (select sum(fee_paid) from commands)`))
	require.Equal(t, 2, w.int(`select count(*) from commands c join senders s on c.reserve_day = s.spend_day`))
}

// C7: the day's fees are a wall as its value is, also for a database whose clock was set back across midnight.
func TestDayFees(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	first, second := w.escrow(1, 0), w.escrow(1, 0) // both are final when the second command comes
	w.start(nil)
	w.await(w.accept(w.command(command.Approve, first, nil)), true, command.Done)
	w.exec(`update senders set spent_fees = $1, spend_day = spend_day + 1 where spend_day is not null`,
		new(big.Int).Sub(big.NewInt(1e18), big.NewInt(1000)).String())
	id := w.accept(w.command(command.Approve, second, nil))
	w.awaitHeld(id, command.CodeBudget)
	require.Len(t, w.sent(), 1)
	w.exec(`update senders set spend_day = spend_day - 2`)
	w.exec(`update commands set next_look = now() where command_id = $1`, id.Hex())
	w.await(id, true, command.Done)
}
