package main

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
)

// other is the id of the second chain; the first one has that of a lab.
const other = 4242

// twins are two chains that the same processes follow. The accounts, and so all addresses, are the same on both.
type twins struct {
	t        *testing.T
	one, two *world
}

func newTwins(t *testing.T) *twins {
	one := newWorld(t, nil)
	beside, err := one.Beside(t.Context(), testchain.Options{Seed: 7, ChainID: other})
	require.NoError(t, err)
	two := worldOf(t, beside)
	require.Equal(t, one.Contracts.Factory, two.Contracts.Factory)

	return &twins{t: t, one: one, two: two}
}

// run starts a process that follows both chains.
func (w *twins) run(id string, number, total int) *lab.Process {
	p, err := w.one.RunChains(id, number, total, nil, w.two.Lab)
	require.NoError(w.t, err)
	for _, chain := range []*world{w.one, w.two} {
		chain.fleet[id] = p
	}

	return p
}

// answer asks a process, and returns the status and the body.
func (w *twins) answer(p *lab.Process, path string) (status int, text string) {
	r, err := http.Get(p.URL + path)
	if err != nil {
		return 0, err.Error()
	}

	body, err := io.ReadAll(r.Body)
	require.NoError(w.t, cmp.Or(err, r.Body.Close()))

	return r.StatusCode, string(body)
}

func (w *twins) status(p *lab.Process, path string) int {
	status, _ := w.answer(p, path)
	return status
}

// untilStatus waits for an answer, with some words.
func (w *twins) untilStatus(p *lab.Process, path string, want int, words string) string {
	var text string
	require.Eventually(w.t, func() (ok bool) {
		var status int
		status, text = w.answer(p, path)

		return status == want && strings.Contains(text, words)
	}, patience, 20*time.Millisecond, "%s: %d %s", path, want, words)

	return text
}

func readyOf(chain *world) string { return "/readyz/" + chain.Chain.ChainID().String() }

// One process follows two chains: everything of both is published once and in order, on one port.
func TestTwoChainsInOneProcess(t *testing.T) {
	t.Parallel()
	w := newTwins(t)
	p := w.run("r0", 0, 1)
	w.one.ready("r0")
	w.one.blocks(8)
	w.two.blocks(8)
	w.one.audit(false)
	w.two.audit(false)

	text := w.untilStatus(p, "/readyz", http.StatusOK, "")
	var ready struct {
		Ready  bool
		Chains map[string]struct{ Ready bool }
	}
	require.NoError(t, json.Unmarshal([]byte(text), &ready))
	require.True(t, ready.Ready)
	require.Len(t, ready.Chains, 2)
	_, text = w.answer(p, "/metrics")
	for _, chain := range []*world{w.one, w.two} {
		id := chain.Chain.ChainID().String()
		require.Contains(t, text, `relayer_is_leader{chain_id="`+id+`"`)
		for path, shows := range map[string]string{"/": `href="chains/` + id + `/"`,
			"/chains/" + id + "/": "all chains", "/chains/" + id + "/status": `"fleet"`} {
			w.untilStatus(p, path, http.StatusOK, shows)
		}
	}

	require.Equal(t, 1, strings.Count(text, "\nprocess_resident_memory_bytes "))
	factory := strings.ToLower(w.one.Contracts.Factory.Hex())
	require.Eventually(t, func() bool {
		_, text := w.answer(p, "/")
		return strings.Count(text, `data-label="Factories"><span title="`+factory+`">1</span>`) == 2
	}, patience, 100*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, p.Stop(ctx))
}

// A node that swallows bytes makes its own chain late, and nothing of the other one.
func TestANodeOfOneChainSwallowsBytes(t *testing.T) {
	t.Parallel()
	w := newTwins(t)
	proxy, url, err := faults.ProxyURL(w.two.Chain.HTTP())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	w.two.RPC = []string{url}
	w.one.Env["RPC_TIMEOUT"] = "1s"
	p := w.run("r0", 0, 1)
	w.one.ready("r0")
	w.two.blocks(3)
	w.two.audit(false)

	undo := proxy.Swallow(true)
	w.two.blocks(3)
	w.untilStatus(p, readyOf(w.two), http.StatusServiceUnavailable, `"node"`)
	require.Equal(t, http.StatusServiceUnavailable, w.status(p, "/readyz"))
	for range 5 {
		w.one.blocks(2)
		w.untilStatus(p, readyOf(w.one), http.StatusOK, "")
	}

	w.one.audit(false)
	require.NoError(t, undo())
	w.untilStatus(p, "/readyz", http.StatusOK, "")
	w.two.audit(false)
}

// A chain whose setting turns out to be wrong is not ready and says why. The other goes on, and once the
// cause is gone the chain is followed, by the same process.
func TestAWrongSettingOfOneChainIsFoundLater(t *testing.T) {
	t.Parallel()
	w := newTwins(t)
	proxy, url, err := faults.ProxyURL(w.one.Chain.HTTP()) // which is another chain
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	w.two.RPC = []string{url}
	p := w.run("r0", 0, 1)
	w.untilStatus(p, readyOf(w.one), http.StatusOK, "")
	require.Contains(t, w.untilStatus(p, readyOf(w.two), http.StatusServiceUnavailable, "refused to start"), "CHAIN_ID")
	var said string
	require.Eventually(t, func() bool { // it is reported a moment after /readyz says it
		_, said = call(t, w.two.Environ("operator", 0, 1, nil), "status")
		return strings.Contains(said, "r0 tries to start, and has not yet") &&
			strings.Contains(said, "start: chain: ") &&
			strings.Contains(said, "CHAIN_ID is "+w.two.Chain.ChainID().String())
	}, patience, 100*time.Millisecond)
	require.NotContains(t, said, "check CHAIN_ID and DATABASE_URL")
	w.one.blocks(5)
	w.one.audit(false)
	require.True(t, p.Running())

	proxy.Move(strings.TrimPrefix(w.two.Chain.HTTP(), "http://"))
	cut := proxy.Cut() // those that are open stay where they are
	require.NoError(t, cut())
	w.untilStatus(p, "/readyz", http.StatusOK, "")
	w.two.blocks(5)
	w.two.audit(false)
}

// The leader of one chain loses its session: another one leads that chain, and the other chain keeps its leader.
// Then a whole process is killed, and what is left follows both.
func TestTheLeaderOfOneChainIsLost(t *testing.T) {
	t.Parallel()
	w := newTwins(t)
	w.run("r0", 0, 2)
	w.run("r1", 1, 2)
	w.one.ready("r0", "r1")
	w.one.blocks(3)
	w.two.blocks(3)
	epoch := func(chain *world) (leader string, n int64) {
		require.NoError(t, w.one.DB.QueryRow(t.Context(), `select coalesce(instance_id, ''), epoch from leadership
			where chain_id = $1`, chain.Chain.ChainID().Int64()).Scan(&leader, &n))
		return leader, n
	}
	var leader string
	var was int64
	require.Eventually(t, func() bool { leader, was = epoch(w.one); return leader != "" }, patience,
		20*time.Millisecond)
	var otherLeader string
	var otherWas int64
	require.Eventually(t, func() bool { otherLeader, otherWas = epoch(w.two); return otherLeader != "" }, patience,
		20*time.Millisecond)
	var ended int
	require.NoError(t, w.one.DB.QueryRow(t.Context(), `select count(pg_terminate_backend(l.pid::int))
		from relayer_instances i
		join held_locks() l on l.key = i.lock_key where i.chain_id = $1 and i.instance_id = $2`,
		w.one.Chain.ChainID().Int64(), leader).Scan(&ended))
	require.Equal(t, 1, ended)
	require.Eventually(t, func() bool { now, n := epoch(w.one); return now != "" && n > was }, patience,
		20*time.Millisecond)
	w.one.blocks(3)
	w.two.blocks(3)
	w.one.audit(true)
	w.two.audit(true)
	_, otherNow := epoch(w.two)
	require.Equal(t, otherWas, otherNow, "the other chain keeps its leader")

	w.one.fleet[leader].Kill()
	w.one.blocks(3)
	w.two.blocks(3)
	w.one.audit(true)
	w.two.audit(true)
}

// deploy/runbooks/new-chain.md, in the processes that are there: a chain is added by a rolling restart with another
// file, and taken out; first while its messages wait, which doctor tells.
func TestNewChainInTheProcessesRunbook(t *testing.T) {
	t.Parallel()
	w := newTwins(t)
	id := w.two.Chain.ChainID().String()
	file, err := w.one.WriteChains("operator", 0, w.two.Lab)
	require.NoError(t, err)
	operator := func(args ...string) (int, string) {
		code, out := call(t, w.one.EnvironChains("operator", 0, 2, nil, ""), append(args, "--config", file)...)
		t.Logf("escrow-relayer %s: exit code %d\n%s", strings.Join(args, " "), code, out)

		return code, out
	}
	roll := func(between func(), others ...*lab.Lab) {
		for i, name := range []string{"r0", "r1"} {
			if w.one.fleet[name] != nil {
				w.one.stop(name)
			}

			w.one.blocks(1)
			p, err := w.one.RunChains(name, i, 2, nil, others...)
			require.NoError(t, err)
			w.one.fleet[name] = p
			w.one.ready(name)
			between()
		}
	}
	waiting := func() int { return w.one.count(`select count(*) from waiting where chain_id = ` + id) }
	roll(func() {})
	w.one.blocks(2)
	w.two.blocks(3) // before anybody follows it

	// 2. Test it. 3. The instances one after the other.
	code, _ := operator("config", "check")
	require.Zero(t, code)
	code, _ = operator("doctor", "--chain", id)
	require.Zero(t, code)
	roll(func() {
		for _, chain := range []string{id, w.one.Chain.ChainID().String()} {
			code, _ := operator("plan", "wait", "--chain", chain, "--timeout", "3m")
			require.Zero(t, code, "the first instance serves all of the new chain")
		}
	}, w.two.Lab)

	// 4. The alerts of each chain. 6. The audit.
	code, out := call(t, nil, "plan", "alerts", "--chain-id", "1337", "--chain-id", id)
	require.Zero(t, code)
	require.Contains(t, out, `chain_id="`+id+`"`)
	w.two.blocks(2)
	w.two.audit(false)
	require.Eventually(t, func() bool {
		code, _ := operator("audit", "--chain", id, "--from", strconv.FormatUint(w.two.Contracts.Block, 10))
		return code == 0
	}, patience, 100*time.Millisecond)

	// Taken out too early: Pub/Sub takes nothing of it.
	require.Eventually(t, func() bool { return waiting() == 0 }, patience, 20*time.Millisecond)
	away := w.one.PubSub.Inject(testpubsub.Fault{Topic: testpubsub.TopicName(lab.Project, lab.Topic+"-"+id),
		Code: codes.Unavailable})
	w.two.blocks(2)
	require.NoError(t, w.two.Chain.Mine(t.Context(), w.two.Confirmations))
	require.Eventually(t, func() bool { return waiting() > 0 }, patience, 20*time.Millisecond)
	_, out = operator("status", "--chain", id)
	require.Regexp(t, `outbox +[1-9]`, out)
	roll(func() {})
	require.Positive(t, waiting())
	file, err = w.one.WriteChains("operator", 0)
	require.NoError(t, err)
	code, out = operator("doctor")
	require.Equal(t, 1, code)
	require.Contains(t, out, "messages of chain "+id+" wait")

	// The remedy: an instance with it again, until nothing waits.
	away.Remove()
	roll(func() {}, w.two.Lab)
	w.two.audit(true)
	require.Eventually(t, func() bool { return waiting() == 0 }, patience, 20*time.Millisecond)
	roll(func() {})
	code, _ = operator("doctor")
	require.Zero(t, code)
	w.one.audit(false)
}
