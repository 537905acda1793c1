package send_test

import (
	"context"
	"fmt"
	"maps"
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/command/sign"
)

// probeEvery is so long that a busy machine loses no session.
const probeEvery = 20 * time.Second

// instance runs an owner of some senders with a session of its own. stop is a graceful one; lost
// ends the session first, as a crash does.
func (w *world) instance(id string, senders []testchain.Account) (stop, lost func()) {
	w.t.Helper()
	session, err := election.Open(w.t.Context(), election.SessionConfig{Conn: w.db.Config().ConnConfig.Copy(),
		ChainID: w.node.ChainID().Int64(), InstanceID: id, Channels: []string{send.Channel, send.ReleaseChannel},
		ProbeEvery: probeEvery})
	require.NoError(w.t, err)
	live := w.run(func(ctx context.Context) error { _ = session.Run(ctx); return nil })
	var configs []send.Config
	for i, a := range senders {
		cfg := w.config()
		cfg.Name, cfg.InstanceID, cfg.Signer = fmt.Sprintf("s%d", i), id, sign.NewLocal(a.Key)
		configs = append(configs, cfg)
	}

	// When the session is lost, so is the right to own anything: then Own returns an error.
	work := w.run(func(ctx context.Context) error {
		_ = send.Own(ctx, session, configs)
		return nil
	})

	return func() { work(); live() }, func() { live(); work() }
}

// owners counts the senders of each instance whose lock is held.
func (w *world) owners() map[string]int {
	w.t.Helper()
	rows, err := w.db.Query(w.t.Context(), `
		select s.instance_id, count(*) from senders s
		 where exists (select from pg_locks k
		        where k.locktype = 'advisory' and k.objsubid = 1 and k.granted and k.mode = 'ExclusiveLock'
		          and (k.classid::bigint << 32 | k.objid::bigint) = s.lock_key
		          and k.database = (select oid from pg_database where datname = current_database()))
		 group by 1`)
	require.NoError(w.t, err)
	defer rows.Close()
	owners := map[string]int{}
	for rows.Next() {
		var id string
		var n int
		require.NoError(w.t, rows.Scan(&id, &n))
		owners[id] = n
	}

	require.NoError(w.t, rows.Err())

	return owners
}

// C9: senders go to the instances that have their keys when an owner stops or is lost, while commands are under
// way, and stay with the owner that they have; each command has one transaction, its sender's attempts are of one
// owner at a time.
func TestSendersFindAnOwner(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	senders := testchain.Accounts(1234, 4)
	policy := `{"requesters":[{"address":"` + w.requester.Address.Hex() + `","allow":[`
	var calls []testchain.Call
	for i, a := range senders {
		if i > 0 {
			policy += ","
		}

		policy += `{"sender":"` + a.Address.Hex() + `","kinds":["approve"],"max_fee":"1000000000000000000"}`
		calls = append(calls, testchain.Call{To: &a.Address, Value: big.NewInt(1e18), Gas: 21000})
	}

	_, err := w.wallet.Transact(t.Context(), w.node, 0, calls...)
	require.NoError(t, err)
	w.allow(policy + `]}]}`)

	var ids []common.Hash
	// ask gives each sender one more thing to do.
	ask := func() {
		for _, a := range senders {
			receipts, err := w.wallet.Transact(t.Context(), w.node, 0, testchain.Call{To: &w.contracts.Factory,
				Data:  contracts.NewEscrowFactory().PackCreateEscrow(a.Address, new(big.Int), 2, common.Address{}),
				Value: big.NewInt(7)})
			require.NoError(t, err)
			escrow := common.BytesToAddress(receipts[0].Logs[len(receipts[0].Logs)-1].Topics[1][:])
			w.mine(confirmations)
			w.awaitEscrow(escrow)
			by := func(c *command.Command) { c.Sender = a.Address }
			ids = append(ids, w.accept(w.command(command.Approve, escrow, by)))
		}
	}
	// become waits until the senders have these owners.
	become := func(want map[string]int) {
		t.Helper()
		var last map[string]int
		require.Eventually(t, func() bool {
			w.mine(1)
			last = w.owners()
			return maps.Equal(last, want)
		}, patience, 50*time.Millisecond, "%v", &last)
	}

	stopA, _ := w.instance("a", senders)
	ask()
	become(map[string]int{"a": 4})
	_, loseB := w.instance("b", senders)
	ask()
	stopA()
	become(map[string]int{"b": 4})
	stopC, _ := w.instance("c", senders[:1]) // has one key alone
	ask()
	become(map[string]int{"b": 4})
	loseB()
	become(map[string]int{"c": 1})
	stopD, _ := w.instance("d", senders)
	ask()
	become(map[string]int{"c": 1, "d": 3})
	stopC()
	ask()
	become(map[string]int{"d": 4})
	for _, id := range ids {
		w.await(id, true, command.Done)
	}

	require.Equal(t, len(ids), w.int(`select count(*) from command_attempts where purpose = 'call' and attempt = 1`))
	require.Equal(t, 0, w.int(`
		select count(*) from command_attempts a join command_attempts b on a.chain_id = b.chain_id and a.sender = b.sender
		 where a.signed_at < b.signed_at and a.epoch > b.epoch`), "what was signed later is of a later owner")
	found, done := w.audit()
	require.Empty(t, found)
	require.Equal(t, send.Audited{Senders: 4, Nonces: len(ids), Commands: len(ids)}, done)
	stopD()
}

// Whoever listens as a real instance does hears of a command that came in, of a cancellation, of an
// operator's word, and of a sender that was given back: nothing waits for the next look.
func TestNotificationsArrive(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	chain := w.node.ChainID().Int64()
	session, err := election.Open(t.Context(), election.SessionConfig{Conn: w.db.Config().ConnConfig.Copy(),
		ChainID: chain, InstanceID: "listener", Channels: []string{send.Channel, send.ReleaseChannel},
		ProbeEvery: probeEvery})
	require.NoError(t, err)
	w.run(func(ctx context.Context) error { _ = session.Run(ctx); return nil })
	hear := func(channel, what string) {
		t.Helper()
		select {
		case <-session.Hint(channel):
		case <-time.After(patience):
			require.Fail(t, "nothing was heard of "+what)
		}
	}
	id := w.accept(w.command(command.Approve, common.Address{9}, nil))
	hear(send.Channel, "a command")
	_, err = send.Cancel(t.Context(), w.db, chain, id)
	require.NoError(t, err)
	hear(send.Channel, "a cancellation")

	stop, _ := w.instance("a", []testchain.Account{w.sender})
	require.Eventually(t, func() bool { return w.owners()["a"] == 1 }, patience, 10*time.Millisecond)
	require.NoError(t, send.Pause(t.Context(), w.db, chain, w.sender.Address, "holiday"))
	hear(send.Channel, "a pause")
	stop()
	hear(send.ReleaseChannel, "a sender that was given back")
}
