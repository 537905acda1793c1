package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// The procedures of deploy/runbooks that are not walked elsewhere, their commands and statements,
// on a real fleet. (restore.md: restore_test.go; repartition.md: repartition_test.go; every
// statement of every page also runs in package deploy.)

// stop ends one instance.
func (w *world) stop(id string) {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	require.NoError(w.t, w.fleet[id].Stop(ctx), id)
	delete(w.fleet, id)
}

// operator runs a command with the environment of a service.
func (w *world) operator(env map[string]string, args ...string) (code int, out string) {
	code, out = call(w.t, w.Environ("operator", 0, 2, env), args...)
	w.t.Logf("escrow-relayer %s: exit code %d\n%s", strings.Join(args, " "), code, out)
	return code, out
}

// roll restarts the instances one by one with changed settings, waiting for the fleet to be whole
// in between, while traffic goes on.
func (w *world) roll(env map[string]string) {
	for i, id := range []string{"r0", "r1"} {
		w.stop(id)
		w.blocks(1)
		w.run(id, i, 2, env)
		w.ready(id)
		w.blocks(1)
		code, _ := w.operator(nil, "plan", "wait", "--timeout", "3m")
		require.Zero(w.t, code)
	}
}

// clean audits as the pages say.
func (w *world) clean(env map[string]string, from uint64) {
	require.Eventually(w.t, func() bool {
		code, _ := w.operator(env, "audit", "--from", strconv.FormatUint(from, 10))
		return code == 0
	}, patience, 100*time.Millisecond)
}

func TestProviderChangeRunbook(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	chain := w.Chain
	w.Env["RPC_URLS"] = chain.HTTP()
	w.startTwo(nil)
	w.blocks(4)

	other, err := testchain.StartSim(testchain.Options{Seed: 8, ChainID: 999})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Stop()) })
	list := map[string]string{"RPC_URLS": chain.WS() + "," + chain.HTTP() + "," + other.HTTP()}
	code, out := w.operator(list, "doctor")
	require.Equal(t, 1, code)
	require.Regexp(t, `WRONG\s.*wrong chain: it serves chain 999`, out,
		"step 1 tells of the endpoint that answers for another chain")
	list["RPC_URLS"] = chain.WS() + "," + chain.HTTP()
	code, _ = w.operator(list, "doctor")
	require.Zero(t, code)
	w.roll(list)
	w.audit(false)
	w.clean(list, w.Contracts.Block)
}

func TestDeepReorgRunbook(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.startTwo(nil)
	w.blocks(6)
	w.audit(false)
	before, err := w.Head(t.Context())
	require.NoError(t, err)
	depth := w.Confirmations + 4
	w.reorg(depth, testchain.Drop)
	fork := before - uint64(depth)

	affected := w.runbookSQL("deep-reorg.md", "count(distinct escrow)")
	states := func() (found map[string]int, published int) {
		found = map[string]int{}
		rows, err := w.DB.Query(t.Context(), affected)
		require.NoError(t, err)
		var state, event string
		var n, from, to, escrows int
		_, err = pgx.ForEachRow(rows, []any{&state, &event, &n, &from, &to, &escrows}, func() error {
			require.Greater(t, from, int(fork))
			found[state] += n
			if state == "retracted" && lab.Published(event) {
				published += n
			}

			return nil
		})
		require.NoError(t, err)

		return found, published
	}
	require.Eventually(t, func() bool {
		require.NoError(t, w.Chain.Mine(t.Context(), 1))
		s, published := states()
		return published > 0 && s["orphaned"] == 0
	}, patience, 100*time.Millisecond)
	_, gone := states()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, w.Retracted.Wait(ctx, gone), "each of them had been published")
	taken := map[string]bool{}
	for _, m := range w.Retracted.Messages() {
		taken[m.Attributes[message.AttrEventID]] = true
	}

	require.Len(t, taken, gone)
	for _, m := range w.Received.Messages() {
		delete(taken, m.Attributes[message.AttrEventID])
	}

	require.Empty(t, taken, "a retraction names an event that was published")
	w.clean(nil, fork)
	rows, err := w.DB.Query(t.Context(), w.runbookSQL("deep-reorg.md", "r.approvals"))
	require.NoError(t, err)
	_, err = pgx.CollectRows(rows, pgx.RowToMap)
	require.NoError(t, err)
}

// received requires that each event of some factories was received once.
func (w *world) received(node *ethclient.Client, chainID int64, factories ...common.Address) {
	head, err := w.Head(w.t.Context())
	require.NoError(w.t, err)
	truth, err := testchain.ReadTruth(w.t.Context(), node, w.Contracts.Block, head-uint64(w.Confirmations), factories...)
	require.NoError(w.t, err)
	var a *lab.Audit
	require.Eventually(w.t, func() bool {
		messages := w.Received.Messages()
		var ours []testpubsub.Message
		for _, m := range messages {
			if m.Attributes[message.AttrChainID] == strconv.FormatInt(chainID, 10) {
				ours = append(ours, m)
			}
		}

		a = lab.Compare(truth, ours, nil)

		return a.Received >= a.Emitted
	}, patience, 50*time.Millisecond)
	require.True(w.t, a.Clean(), a.String())
	for _, f := range factories {
		one, err := testchain.ReadTruth(w.t.Context(), node, w.Contracts.Block, head-uint64(w.Confirmations), f)
		require.NoError(w.t, err)
		require.NotEmpty(w.t, one.Escrows, "of %s", f)
	}

	w.t.Log(a)
}

func TestNewFactoryRunbook(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.startTwo(nil)
	w.blocks(4)
	second := map[string]string{"FACTORY_ADDRESS": w.Contracts.Load.Hex()}
	p := w.run("hasty", 0, 2, second)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	code, err := p.Wait(ctx)
	require.NoError(t, err)
	require.NotZero(t, code)
	log, err := os.ReadFile(p.LogFile)
	require.NoError(t, err)
	require.Contains(t, string(log), "leaves out "+w.Contracts.Factory.Hex(),
		"the database follows another factory, which it names")
	delete(w.fleet, "hasty")

	second["DATABASE_URL"] = w.another("v2")
	code, _ = w.operator(second, "migrate")
	require.Zero(t, code)
	code, _ = w.operator(second, "doctor")
	require.Zero(t, code)
	w.run("v2-0", 0, 1, second)
	w.ready("v2-0")
	load, err := testchain.OpenLoad(t.Context(), w.Chain, w.Contracts)
	require.NoError(t, err)
	escrows, err := load.Clone(t.Context(), 3)
	require.NoError(t, err)
	w.blocks(2)
	require.NoError(t, load.Emit(t.Context(), escrows, 1))
	w.blocks(2)
	require.NoError(t, w.Chain.Mine(t.Context(), w.Confirmations))
	w.received(w.Chain.Client(), w.Chain.ChainID().Int64(), w.Contracts.Factory, w.Contracts.Load)
	w.clean(second, w.Contracts.Block)
	w.clean(nil, w.Contracts.Block)
	rows, err := w.DB.Query(t.Context(), w.runbookSQL("new-factory-address.md", "group by status"))
	require.NoError(t, err)
	counts, err := pgx.CollectRows(rows, pgx.RowToMap)
	require.NoError(t, err)
	require.NotEmpty(t, counts)
}

func TestNewChainRunbook(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.startTwo(nil)
	w.blocks(3)
	chain, err := testchain.StartSim(testchain.Options{Seed: 9, ChainID: 4242})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, chain.Stop()) })
	contracts, err := testchain.Deploy(t.Context(), chain)
	require.NoError(t, err)
	facts := map[string]string{
		"CHAIN_ID": "4242", "RPC_URLS": chain.HTTP(), "FACTORY_ADDRESS": contracts.Load.Hex(),
		"START_BLOCK": fmt.Sprint(contracts.Block),
	}
	wrong := map[string]string{"CHAIN_ID": "4243", "RPC_URLS": chain.HTTP(), "FACTORY_ADDRESS": contracts.Load.Hex(),
		"START_BLOCK": fmt.Sprint(contracts.Block)}
	code, out := w.operator(wrong, "doctor")
	require.Equal(t, 1, code)
	require.Contains(t, out, "4242")
	code, _ = w.operator(facts, "doctor")
	require.Zero(t, code)
	w.run("other-0", 0, 1, facts)
	w.ready("other-0")
	load, err := testchain.OpenLoad(t.Context(), chain, contracts)
	require.NoError(t, err)
	escrows, err := load.Clone(t.Context(), 3)
	require.NoError(t, err)
	require.NoError(t, load.Emit(t.Context(), escrows, 1))
	require.NoError(t, chain.Mine(t.Context(), w.Confirmations))
	w.blocks(3)
	require.NoError(t, w.Chain.Mine(t.Context(), w.Confirmations))
	w.received(w.Chain.Client(), w.Chain.ChainID().Int64(), w.Contracts.Factory)
	first := w.Lab
	second := *first
	second.Chain, second.Contracts = chain, contracts
	other := &world{Lab: &second, t: t}
	other.received(chain.Client(), 4242, contracts.Load)
	w.clean(facts, contracts.Block)
	w.clean(nil, w.Contracts.Block)
}

func TestSchemaUpgradeRunbook(t *testing.T) {
	t.Parallel()
	w := newWorld(t, ownServer)
	manual := map[string]string{"MIGRATE_ON_START": "false"}
	p := w.run("early", 0, 2, manual)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	code, err := p.Wait(ctx)
	require.NoError(t, err)
	require.Equal(t, 2, code)
	log, err := os.ReadFile(p.LogFile)
	require.NoError(t, err)
	require.Contains(t, string(log), "escrow-relayer migrate")
	delete(w.fleet, "early")

	code, _ = w.operator(nil, "migrate")
	require.Zero(t, code)
	w.startTwo(manual)
	w.blocks(3)
	version := func() (v int64) {
		require.NoError(t, w.DB.QueryRow(t.Context(), w.runbookSQL("schema-upgrade.md", "max(version_id)")).Scan(&v))
		return v
	}
	was := version()

	// The next release's migration, which only adds, while this release runs; then this release starts
	// on it, as on the way back.
	_, err = w.DB.Exec(t.Context(), `alter table escrows add column of_the_next_release text`)
	require.NoError(t, err)
	_, err = w.DB.Exec(t.Context(), `insert into escrow_relayer_versions (version_id, is_applied) values ($1, true)`, was+1)
	require.NoError(t, err)
	_, err = w.DB.Exec(t.Context(),
		`create table if not exists schema_compatibility (version bigint primary key, oldest bigint not null)`)
	require.NoError(t, err)
	_, err = w.DB.Exec(t.Context(), `insert into schema_compatibility values ($1, $2)`, was+1, was)
	require.NoError(t, err)
	w.blocks(2)
	w.roll(manual)
	w.roll(map[string]string{"MIGRATE_ON_START": "true"})
	code, _ = w.operator(nil, "status")
	require.Zero(t, code)
	rows, err := w.DB.Query(t.Context(), w.runbookSQL("schema-upgrade.md", "group by version"))
	require.NoError(t, err)
	versions, err := pgx.CollectRows(rows, pgx.RowToMap)
	require.NoError(t, err)
	require.Len(t, versions, 1)

	// The migration did harm: it is undone by hand.
	w.stopAll()
	undo := regexp.MustCompile(`delete from escrow_relayer_versions where version_id = \d+`).FindString(w.page("schema-upgrade.md"))
	require.NotEmpty(t, undo)
	_, err = w.DB.Exec(t.Context(), `alter table escrows drop column of_the_next_release`)
	require.NoError(t, err)
	_, err = w.DB.Exec(t.Context(), regexp.MustCompile(`\d+$`).ReplaceAllString(undo, strconv.FormatInt(was+1, 10)))
	require.NoError(t, err)
	require.Equal(t, was, version())
	w.startTwo(manual)
	w.blocks(2)
	w.audit(false)
}

func (w *world) page(name string) string {
	text, err := os.ReadFile("../../deploy/runbooks/" + name)
	require.NoError(w.t, err)
	return string(text)
}
