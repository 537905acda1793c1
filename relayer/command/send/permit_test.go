package send_test

import (
	"crypto/ecdsa"
	"encoding/json"
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
)

// forge stores a command as intake would, without asking anybody.
func (w *world) forge(key *ecdsa.PrivateKey, requester string, kind command.Kind, escrow common.Address) common.Hash {
	w.t.Helper()
	c := w.command(kind, escrow, nil).Command
	signed, err := c.Sign(key)
	require.NoError(w.t, err)
	w.insert(signed, c.ID(), requester)

	return c.ID()
}

// insert stores a command as a row of this chain and its sender, under an id.
func (w *world) insert(c *command.Signed, id common.Hash, requester string) {
	w.t.Helper()
	message, err := json.Marshal(c)
	require.NoError(w.t, err)
	w.exec(`insert into commands (chain_id, command_id, sender, kind, escrow, effect, requester, message, max_fee,
			expires_at, state)
		values ($1, $2, $3, $4, $5, 'settle', $6, $7, $8, $9, 'accepted')`, w.node.ChainID().Int64(), id.Hex(),
		text(w.sender.Address), string(c.Kind), text(c.Escrow), requester, message, c.MaxFee.String(),
		time.Unix(int64(c.ExpiresAt), 0))
}

func addressOf(key *ecdsa.PrivateKey) string { return text(crypto.PubkeyToAddress(key.PublicKey)) }

// C8: what a row says is signed only if the requester has signed that, and the policy allows it: whoever
// can write to the database has nothing done that nobody asked for.
func TestAlteredRowsAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	other := w.escrow(1, 0)
	args := &command.CreateArgs{Payee: w.requester.Address, Amount: big.NewInt(5), ReleaseDelay: new(big.Int),
		ApprovalsRequired: 1, Salt: common.Hash{1}}
	type request struct {
		kind   command.Kind
		change string // of the row
		code   string
	}
	wrong := map[string]request{
		"another escrow": {command.Approve, `escrow = '` + text(other) + `'`, command.CodeSignature},
		"another kind":   {command.Approve, `kind = 'release'`, command.CodeSignature},
		"another fee":    {command.Approve, `max_fee = max_fee * 10`, command.CodeSignature},
		"a later expiry": {command.Approve, `expires_at = expires_at + interval '1 second'`, command.CodeSignature},
		"another signer": {command.Approve, `requester = '` + text(other) + `'`, command.CodeSignature},
		"nobody's":       {command.Approve, `requester = 'keeper'`, command.CodeNotAllowed},
		"a lesser value": {command.Create, `value = 0`, command.CodeSignature},
		"another message": {command.Create,
			`value = 9, message = replace(message::text, '"amount":"5"', '"amount":"9"')::json`, command.CodeSignature},
		"no message": {command.Approve, `message = '{}'`, command.CodeMalformed},
	}
	ids := map[string]common.Hash{}
	for name, r := range wrong {
		var c *command.Signed
		if r.kind == command.Create {
			mine := *args
			mine.Salt = common.BytesToHash([]byte(name))
			c = w.command(r.kind, w.createAddress(&mine), func(c *command.Command) { c.Args = &mine })
		} else {
			c = w.command(r.kind, w.escrow(1, 0), nil)
		}

		ids[name] = w.accept(c)
		w.exec(`update commands set `+r.change+` where command_id = $1`, ids[name].Hex())
	}

	key := testKey(t)
	for name, requester := range map[string]string{"forged": text(w.requester.Address), "a stranger's": addressOf(key)} {
		ids[name] = w.forge(key, requester, command.Approve, w.escrow(1, 0))
		wrong[name] = request{code: map[string]string{"forged": command.CodeSignature,
			"a stranger's": command.CodeNotAllowed}[name]}
	}

	good := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.start(nil)
	w.await(good, true, command.Done)
	for name, id := range ids {
		a := w.await(id, true, command.Refused, command.Done)
		require.Equal(t, command.Refused, a.State, name)
		require.Equal(t, wrong[name].code, a.Code, "%s: %s", name, a.Detail)
		require.NotEmpty(t, a.Detail, name)
	}

	require.Len(t, w.sent(), 1)
	require.Equal(t, 1, w.int(`select count(distinct command_id) from command_attempts`))
	require.Equal(t, 1, w.int(`select count(*) from command_claims`), "what was refused can be asked for again")
}

func testKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := crypto.GenerateKey()
	require.NoError(t, err)

	return key
}

// C8, C1: what a requester has signed for another chain or sender, or for a factory that is not followed, is not
// signed here, nor is it signed again under another id.
func TestSignedForSomethingElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	ids := map[string]common.Hash{}
	for field, change := range map[string]func(*command.Command){
		"chain":   func(c *command.Command) { c.ChainID++ },
		"factory": func(c *command.Command) { c.Factory = common.Address{1} },
		"sender":  func(c *command.Command) { c.Sender = common.Address{1} },
		"id":      nil,
	} {
		c := w.command(command.Approve, w.escrow(1, 0), change)
		ids[field] = c.ID()
		if field == "id" {
			ids[field] = common.Hash{9}
		}

		w.insert(c, ids[field], text(w.requester.Address))
	}

	w.start(nil)
	for field, id := range ids {
		a := w.await(id, true, command.Refused, command.Done)
		if field == "factory" {
			require.Equal(t, command.CodeForeign, a.Code)
			require.Contains(t, a.Detail, common.Address{1}.Hex())

			continue
		}

		require.Equal(t, command.CodeSignature, a.Code, field)
		require.Contains(t, a.Detail, "the stored "+field+" is not that of the message")
	}

	require.Empty(t, w.sent())
}

// C8: the policy that counts is the one at the time of signing: whoever was taken out of it asks for nothing more.
func TestPolicyIsAskedBeforeSigning(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	id := w.accept(w.command(command.Approve, w.escrow(1, 0), nil))
	w.allow(`{"requesters":[{"address":"` + addressOf(testKey(t)) + `","allow":[{"sender":"` + w.sender.Address.Hex() +
		`","kinds":["approve"],"max_fee":"1000000000000000000"}]}]}`)
	stop := w.start(nil)
	require.Equal(t, command.CodeNotAllowed, w.await(id, true, command.Refused, command.Done).Code)
	stop()

	id = w.forge(w.requester.Key, text(w.requester.Address), command.Approve, w.escrow(1, 0))
	w.start(func(c *send.Config) { c.Policy = nil })
	require.Equal(t, command.CodeNotAllowed, w.await(id, true, command.Refused, command.Done).Code)
	require.Empty(t, w.sent())
}

// C8: a row that is changed after its call was signed is not what a replacement follows.
func TestAlteredAfterTheFirstAttempt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	deaf := &deafChain{Nodes: w.nodes}
	escrow, other := w.escrow(1, 0), w.escrow(1, 0)
	w.start(func(c *send.Config) { c.Chain, c.BumpBlocks = deaf, 1 })
	id := w.accept(w.command(command.Approve, escrow, nil))
	w.await(id, true, command.Sent)
	w.exec(`update commands set escrow = $1`, text(other))
	require.Eventually(t, func() bool {
		w.mine(1)
		return w.int(`select count(*) from command_attempts where purpose = 'void'`) > 0
	}, patience, 20*time.Millisecond)
	deaf.hears.Store(true)
	require.Equal(t, command.CodeSignature, w.await(id, true, command.Voided, command.Done).Code)

	rows, err := w.db.Query(t.Context(), `select raw from command_attempts where purpose = 'call'`)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var raw []byte
		require.NoError(t, rows.Scan(&raw))
		var tx types.Transaction
		require.NoError(t, tx.UnmarshalBinary(raw))
		require.Equal(t, escrow, *tx.To())
	}

	require.NoError(t, rows.Err())
}

// Nobody signs a keeper's commands. Of rows that say they are, only releases are signed, without
// value and within the keeper's fee, where there is a keeper.
func TestForgedKeeper(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startSim(t))
	// forge stores what costs as much as the keeper may pay, or more.
	forge := func(kind command.Kind, fee int64) common.Hash {
		c := w.command(kind, w.escrow(1, 0), func(c *command.Command) { c.MaxFee = big.NewInt(fee) })
		w.insert(c, c.ID(), send.KeeperName)

		return c.ID()
	}
	refused := func(id common.Hash, why string) {
		a := w.await(id, true, command.Refused, command.Done)
		require.Equal(t, command.CodeNotAllowed, a.Code, why)
		require.Contains(t, a.Detail, why)
	}

	release := forge(command.Release, 1e16)
	stop := w.start(nil)
	refused(release, "no keeper")
	stop()

	approve, dear := forge(command.Approve, 1e16), forge(command.Release, 1e16+1)
	w.start(func(c *send.Config) {
		c.Keeper = &send.Keeper{MinAmount: big.NewInt(7), MaxFee: big.NewInt(1e16), DayFees: big.NewInt(1e17)}
	})
	refused(approve, "only releases")
	refused(dear, "pays at most")
	require.Empty(t, w.sent())
}
