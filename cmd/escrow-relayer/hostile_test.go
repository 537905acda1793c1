package main

import (
	"bytes"
	"fmt"
	"math/big"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// liar puts an endpoint in front of the chain's node that can lie. The relayers ask it first, and the node beside it.
func (w *world) liar() *faults.Node {
	liar, err := faults.NewNode(w.Chain.HTTP(), w.Chain.WS(), 1)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, liar.Close()) })
	w.RPC = []string{liar.HTTP(), w.Chain.HTTP()}

	return liar
}

// release is one of an escrow, in the newest block, that never happened.
func (w *world) release(escrow string) types.Log {
	c := w.Chain.Client()
	head, err := c.HeaderByNumber(w.t.Context(), nil)
	require.NoError(w.t, err)
	data := append(common.BigToHash(big.NewInt(1e18)).Bytes(), common.BigToHash(big.NewInt(1_700_000_000)).Bytes()...)

	return types.Log{
		Address: common.HexToAddress(escrow), Data: data, BlockNumber: head.Number.Uint64(), BlockHash: head.Hash(),
		BlockTimestamp: head.Time, TxHash: common.Hash{0xba, 0xd0}, Index: 4000,
		Topics: []common.Hash{crypto.Keccak256Hash([]byte("EscrowReleased(address,uint256,uint256)")), {12: 0xba, 31: 0xd}},
	}
}

// invents mines blocks with traffic, in each of which the liar has releases that never happened, of an escrow of each
// of two partitions: in the block's bloom filter, under its true hash, among its logs and in its receipts.
func (w *world) invents(liar *faults.Node, n int) (lies []*faults.Injected) {
	var escrows []string
	rows, err := w.DB.Query(w.t.Context(), `select min(address) from escrow_registry group by slot % 2`)
	require.NoError(w.t, err)
	for rows.Next() {
		var escrow string
		require.NoError(w.t, rows.Scan(&escrow))
		escrows = append(escrows, escrow)
	}

	require.NoError(w.t, rows.Err())
	require.Len(w.t, escrows, 2)
	for range n {
		w.blocks(1)
		var logs []types.Log
		for _, escrow := range escrows {
			logs = append(logs, w.release(escrow))
		}

		for _, mode := range []faults.Mode{faults.Bits, faults.Receipts} {
			lies = append(lies, liar.Inject(faults.Fault{Mode: mode, Logs: logs}))
		}
	}

	return lies
}

// lies mines blocks with traffic, about which the liar lies in a way.
func lies(mode faults.Mode) func(*world, *faults.Node, int) []*faults.Injected {
	return func(w *world, liar *faults.Node, n int) []*faults.Injected {
		head, err := w.Head(w.t.Context())
		require.NoError(w.t, err)
		lie := liar.Inject(faults.Fault{Mode: mode, N: head + 2})
		w.blocks(n)

		return []*faults.Injected{lie}
	}
}

// waysToLie by name: each mines blocks with traffic, about which the liar lies.
var waysToLie = map[string]func(*world, *faults.Node, int) []*faults.Injected{
	"invented": (*world).invents, "withheld": lies(faults.Withheld), "changed": lies(faults.Changed),
	"blank": lies(faults.Blank), "own": lies(faults.Own), "repeated": lies(faults.Repeated),
	"hidden": lies(faults.Hidden),
}

// deceit is a lie, told during a takeover or a restart of all, beside a number of honest endpoints.
type deceit struct {
	lie     string
	restart bool
	honest  int
}

// deceits that are tried; with the tag long, all. Beside one, the honest endpoint is believed after a minute, which
// relayer/chain tests in a bubble.
var deceits = []deceit{{"invented", false, 2}, {"withheld", true, 2}}

// One endpoint lies while slots change hands, or after a restart, when the process knows nothing of it yet: about
// blocks that were mined while nobody served the slots. Exactly what the chain has is published; where no other
// endpoint is there, once the lie has ended. An endpoint that contradicts itself is set aside by its name, also by the
// next process.
func TestLiesDuringTakeoverAndRestart(t *testing.T) {
	t.Parallel()
	for _, d := range deceits {
		t.Run(fmt.Sprintf("%s, restart %t, beside %d", d.lie, d.restart, d.honest), func(t *testing.T) {
			t.Parallel()
			lieMeanwhile(t, d)
		})
	}
}

func lieMeanwhile(t *testing.T, d deceit) {
	w := newWorld(t, func(o *lab.Options) { o.Confirmations = 3 })
	liar := w.liar()
	w.RPC = append(w.RPC, w.Chain.WS())[:d.honest+1]
	w.run("r0", 0, 2, nil)
	w.run("r1", 1, 2, nil)
	w.ready("r0", "r1")
	w.until("both share", func(f *fleet.Fleet) bool { return slotsOf("r0", 1260)(f) && slotsOf("r1", 1260)(f) })
	w.blocks(8)
	w.audit(false)

	w.fleet["r1"].Kill()
	if d.restart {
		w.fleet["r0"].Kill()
		w.until("nobody lives", func(f *fleet.Fleet) bool { return f.Live() == 0 })
	}

	told := waysToLie[d.lie](w, liar, 6)
	hits := func() (n int) {
		for _, l := range told {
			n += l.Hits()
		}

		return n
	}
	if d.restart {
		w.run("r0", 0, 2, nil)
	}

	if d.honest == 0 {
		require.Eventually(t, func() bool { return hits() > 0 }, patience, 20*time.Millisecond, "the lie is told")
		for _, l := range told {
			l.Remove()
		}
	}

	w.ready("r0")
	w.until("r0 serves all", slotsOf("r0", 2520))
	// What does not hash to what it claims is a lie. Another branch may be one, and a block that is not there may not
	// have come: they are outvoted.
	if d.lie != "hidden" && d.lie != "own" && d.honest > 0 {
		// While it is paused, as on a busy machine, the others are asked: it is lied on.
		w.namesLiar(liar, func() { told = append(told, waysToLie[d.lie](w, liar, 1)...) })
	}

	w.audit(true)
	require.Positive(t, hits(), "the lie was told")
}

// One endpoint of three forges a whole escrow that is approved and due: EscrowDeployed by the factory, EscrowCreated
// and Approved, in the block's bloom filter, among its logs and in its receipts. The keeper releases the true escrow of
// the same block alone: nothing of the forged one is stored or published. The liar is named.
func TestForgedDeployment(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *lab.Options) { o.Confirmations = 3 })
	liar := w.liar()
	w.RPC = append(w.RPC, w.Chain.WS()) // the liar is out soon, and two agree
	keeper, payer := w.Chain.Accounts()[0], w.Chain.Accounts()[1]
	env, err := w.CommandFiles([]lab.Sender{{Account: keeper, Name: "keeper", MaxFee: "100000000000000000",
		DayFees: "1000000000000000000"}}, []lab.Requester{{Name: "payer", Address: payer.Address,
		Allow: []lab.Grant{{Sender: keeper.Address, Kinds: []string{"approve"}, MaxValue: "1", MaxFee: "1"}}}})
	require.NoError(t, err)
	_, err = w.OpenCommands()
	require.NoError(t, err)
	env["KEEPER_SENDER"], env["KEEPER_MIN_AMOUNT"] = keeper.Address.Hex(), "1"
	env["KEEPER_MAX_FEE"], env["KEEPER_DAY_FEES"] = "100000000000000000", "1000000000000000000"
	w.run("r0", 0, 1, env)
	w.ready("r0")

	wallet, err := testchain.OpenWallet(t.Context(), w.Chain.Client(), payer)
	require.NoError(t, err)
	forged := common.Address{0xba, 0xd0}
	escrows := 0
	for named := false; !named; escrows++ { // each block is read on two endpoints, which may be the others
		require.Less(t, escrows, 30, "the liar is asked")
		w.forges(liar, wallet, forged)
		w.audit(false)
		f, err := fleet.Read(t.Context(), w.DB, w.Chain.ChainID().Int64())
		require.NoError(t, err)
		named = len(f.Faults) > 0
	}

	w.namesLiar(liar, func() {})
	require.NoError(t, w.Chain.(*testchain.Sim).AdvanceTime(t.Context(), 200*time.Second))
	require.NoError(t, w.Chain.Mine(t.Context(), w.Confirmations))
	due, err := w.Head(t.Context())
	require.NoError(t, err)
	mined := func(query string, want int) func() bool {
		return func() bool {
			require.NoError(t, w.Chain.Mine(t.Context(), 1))
			return w.count(query) >= want
		}
	}
	require.Eventually(t, mined(`select verified_block from leadership`, int(due)), patience, 200*time.Millisecond)
	w.stop("r0") // the keeper looks once a minute, and when it starts
	w.run("r0", 0, 1, env)
	require.Eventually(t, mined(`select count(*) from commands where state = 'done'`, escrows), patience,
		200*time.Millisecond)
	require.Equal(t, escrows, w.count(`select count(distinct r.address) from commands c
		join escrow_registry r on lower(r.address) = lower(c.escrow)`))
	require.Equal(t, escrows, w.count(`select count(*) from commands`))
	require.Equal(t, escrows, w.count(`select count(*) from escrow_registry`))
	require.Zero(t, w.count(`select count(*) from events where log_index >= 4000`))
	for _, m := range w.Received.Messages() {
		require.NotContains(t, strings.ToLower(string(m.Data)), strings.ToLower(forged.Hex()))
	}
}

// forges creates an escrow and approves it. In the block of the approval the liar has the same of an address that
// nobody has deployed.
func (w *world) forges(liar *faults.Node, wallet *testchain.Wallet, forged common.Address) {
	payer := w.Chain.Accounts()[1].Address
	created, err := wallet.Transact(w.t.Context(), w.Chain, 0, testchain.Call{To: &w.Contracts.Factory,
		Data:  contracts.NewEscrowFactory().PackCreateEscrow(payer, big.NewInt(100), 1, common.Address{}),
		Value: big.NewInt(7)})
	require.NoError(w.t, err)
	announced := created[0].Logs[len(created[0].Logs)-1]
	escrow := common.BytesToAddress(announced.Topics[1][:])
	approved, err := wallet.Transact(w.t.Context(), w.Chain, 0, testchain.Call{To: &escrow,
		Data: contracts.NewEscrow().PackApprove()})
	require.NoError(w.t, err)
	at := approved[0]
	var logs []types.Log
	for i, l := range append(created[0].Logs, at.Logs...) {
		l := *l
		l.Topics = slices.Clone(l.Topics)
		if l.Address == escrow {
			l.Address = forged
		} else {
			l.Topics[1] = common.BytesToHash(forged[:])
		}

		l.BlockNumber, l.BlockHash, l.TxHash, l.Index = at.BlockNumber.Uint64(), at.BlockHash, common.Hash{0xba}, uint(4000+i)
		logs = append(logs, l)
	}

	require.Len(w.t, logs, 3)
	for _, mode := range []faults.Mode{faults.Bits, faults.Receipts} {
		liar.Inject(faults.Fault{Mode: mode, Logs: logs})
	}
}

// An endpoint that is the only one, and changes what it says from the first second after a restart, withholds the
// receipts that would show it. The chain's blocks proved themselves once, in another process: nothing is published that
// nothing proves, and the instance says what is wrong. When the endpoint proves what it says again, all is well.
func TestProofOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	liar := w.liar()
	w.RPC = []string{liar.HTTP()}
	w.run("r0", 0, 1, nil)
	w.ready("r0")
	w.blocks(6)
	w.audit(false)
	require.Eventually(t, func() bool {
		return w.count(`select cardinality(proves) from leadership`) == 3
	}, patience, 20*time.Millisecond)

	w.fleet["r0"].Kill()
	head, err := w.Head(t.Context())
	require.NoError(t, err)
	lie := liar.Inject(faults.Fault{Mode: faults.Changed, N: head + 1})
	lies := []*faults.Injected{lie}
	for _, method := range []string{"eth_getBlockReceipts", "eth_getTransactionReceipt"} {
		lies = append(lies, liar.Inject(faults.Fault{Mode: faults.Without, Words: method}))
	}

	w.blocks(6)
	require.NoError(t, w.Chain.Mine(t.Context(), w.Confirmations))
	w.run("r0", 0, 1, nil)
	require.Eventually(t, func() bool {
		log, err := os.ReadFile(w.fleet["r0"].LogFile)
		return err == nil && bytes.Contains(log, []byte("PROOF=none"))
	}, patience, 20*time.Millisecond)
	require.Positive(t, lie.Hits())
	require.Zero(t, w.count(fmt.Sprintf(`select count(*) from events where block_number > %d`, head)))
	for _, l := range lies {
		l.Remove()
	}

	w.audit(true)
}

// namesLiar waits until the endpoint is set aside, and nobody else. more has it lie once more.
func (w *world) namesLiar(liar *faults.Node, more func()) {
	var f fleet.Fleet
	for looks := 0; len(f.Faults) == 0; looks++ {
		require.Less(w.t, looks, 100, "the liar is named")
		more()
		<-time.After(500 * time.Millisecond) // instances tell with their heartbeats
		var err error
		f, err = fleet.Read(w.t.Context(), w.DB, w.Chain.ChainID().Int64())
		require.NoError(w.t, err)
	}

	require.Len(w.t, f.Faults, 1)
	require.Equal(w.t, liar.HTTP(), f.Faults[0].Endpoint)
	require.Equal(w.t, "lie", f.Faults[0].Kind)
}

// audit --prove proves a range by the receipts of its blocks, and reads no logs on an endpoint's word. What was
// tampered with in the database it names.
func TestAuditProves(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	node := w.liar() // which tells the truth here, and counts
	w.run("r0", 0, 1, nil)
	w.ready("r0")
	w.blocks(8)
	require.NoError(t, w.Chain.Mine(t.Context(), 400)) // more than is proved anyway: it would be read by range
	w.audit(false)
	w.until("r0 has processed them", func(f *fleet.Fleet) bool { return f.Chain.LowestCursor > 400 })
	env := w.Environ("cli", 0, 1, map[string]string{"RPC_URLS": node.HTTP()})
	logs, receipts := node.Requests("eth_getLogs"), node.Requests("eth_getBlockReceipts")
	w.fleet["r0"].Kill()
	code, out := call(t, env, "audit", "--prove", "--from", "0")
	require.Zero(t, code, out)
	require.Contains(t, out, "0 missing, 0 extra, 0 differing")
	var blocks int
	require.NoError(t, w.DB.QueryRow(t.Context(), `select count(distinct block_number) from events`).Scan(&blocks))
	require.GreaterOrEqual(t, node.Requests("eth_getBlockReceipts")-receipts, blocks)
	require.Zero(t, node.Requests("eth_getLogs")-logs)

	var changed, added string
	require.NoError(t, w.DB.QueryRow(t.Context(), `update events set args = '{"approver":"nobody"}'
		where (block_number, log_index) = (select block_number, log_index from events where type = 3 limit 1)
		returning event_id(tx_hash, log_index, occurrence)`).Scan(&changed))
	require.NoError(t, w.DB.QueryRow(t.Context(), `insert into events
		select (jsonb_populate_record(e, '{"log_index": 4000}')).* from events e order by block_number desc limit 1
		returning event_id(tx_hash, log_index, occurrence)`).Scan(&added))
	code, out = call(t, env, "audit", "--prove", "--from", "0")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "differing "+changed)
	require.Contains(t, out, "differing "+added)
	require.Regexp(t, added+" .* the receipts of block 0x[0-9a-f]{64} prove that it is not there", out)
	require.Contains(t, out, "0 missing, 0 extra, 2 differing")
}

// Large logs one behind the other make the audit's ranges smaller: they are no fault of the node's.
func TestAuditOfLargeLogs(t *testing.T) {
	t.Parallel()
	// The node takes long for such receipts on a busy machine.
	w := newWorld(t, func(o *lab.Options) { o.Env["LOG_FILTER"], o.Env["RPC_TIMEOUT"] = "topics", "1m" })
	w.run("r0", 0, 1, nil)
	w.ready("r0")
	wallet, err := testchain.OpenWallet(t.Context(), w.Chain.Client(), w.Chain.Accounts()[1])
	require.NoError(t, err)
	// PUSH32 the topic of Approved, PUSH3 600,000 bytes of data, PUSH0, LOG1: more than one part in 16 of an answer.
	approved := crypto.Keccak256([]byte("Approved(address)"))
	emit := testchain.Call{Data: slices.Concat([]byte{0x7f}, approved, common.FromHex("620927c05fa1")), Gas: 9_000_000}
	_, err = wallet.Transact(t.Context(), w.Chain, 0, emit, emit, emit)
	require.NoError(t, err)
	w.blocks(5)
	w.audit(false)

	code, out := w.operator(nil, "audit", "--from", "0")
	require.Zero(t, code, out)
	require.Contains(t, out, "0 missing, 0 extra")
	require.NotContains(t, out, "oversized")
}
