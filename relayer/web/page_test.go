package web

import (
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testfleet"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

func TestBuild(t *testing.T) {
	for want, b := range map[string]fleet.Build{
		"v1.4.2 (5f0c1de2ab34, 2026-11-20)": {
			Version: "v1.4.2", Commit: "5f0c1de2ab34f0c1de2ab34f0c1de2ab34f0c1de", Date: "2026-11-20T08:15:30Z",
		},
		"v1.4.2 (5f0c1de2ab34)": {Version: "v1.4.2", Commit: "5f0c1de2ab34f0c1", Date: "unknown"},
		"(devel)":               {Version: "(devel)", Commit: "unknown", Date: "unknown"},
		"v1 (abc)":              {Version: "v1", Commit: "abc", Date: ""},
	} {
		require.Equal(t, want, b.String())
	}
}

func TestPageShowsTheEssentialsWithoutAScript(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.fleet(3)
	w.escrows(20)
	r := get(t, w.server().handler, "/")
	text := body(t, r)
	require.Equal(t, http.StatusOK, r.StatusCode)
	require.Equal(t, "text/html; charset=utf-8", r.Header.Get("Content-Type"))
	for _, want := range []string{
		"<title>● relayer-0 · escrow relayer</title>", "All well", "relayer-0 has led for 4h 11m", "3 of 3 instances alive",
		"relayer-2", `<span class="badge leader">leader</span>`,
		"2,520 of 2,520 slots served, 0 of them adopted; 0 of a dead owner, 0 free.", "7,654,319", "EscrowReleased",
		"https://sepolia.etherscan.io/tx/0x", "https://sepolia.etherscan.io/block/",
		"/?escrow=0x", "wss://***.infura.io", `<noscript><meta http-equiv="refresh"`, `<html lang="en">`,
	} {
		require.Contains(t, text, want)
	}

	require.Regexp(t, `[345]m \d\ds ago</span> 429 Too Many Requests`, text)
	require.NotContains(t, text, "ZgotmplZ", "a template had to throw something away")
}

// However many look, the page is rendered once.
func TestManyViewersCostOneRendering(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.fleet(1)
	s := w.server()
	s.draws = time.Hour
	before := w.source.asked
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() { get(t, s.handler, "/") })
	}

	all.Wait()
	require.Equal(t, 1, w.source.asked-before)
}

// Each factory of the chain has a line and a link of its own; the state tells how much of the pasts is to be read.
func TestPageShowsEachFactory(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.fleet(1)
	w.Exec(`insert into factories (chain_id, id, address, start_block, past_block, until_block)
		values ($1, 2, $2, 7, 17, 117)`, w.Chain, common.HexToAddress("0xfac7000000000000000000000000000000000002").Bytes())
	h := w.server().handler
	require.Contains(t, body(t, get(t, h, "/status")), `"past_blocks": 100`)
	text := body(t, get(t, h, "/"))
	for _, n := range []string{"1", "2"} {
		require.Contains(t, text, "https://sepolia.etherscan.io/address/0xfac700000000000000000000000000000000000"+n+`"`)
	}
}

// Nothing but links leads away from the page, and the policy allows nothing else.
func TestPageAsksNobodyElse(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.fleet(1)
	w.escrows(1)
	r := get(t, w.server().handler, "/?escrow="+addressOf(1))
	text := body(t, r)
	for _, m := range regexp.MustCompile(`(src|action|poster|data|href|url\()\s*=?["'(]?https?://[^"']*`).FindAllString(text, -1) {
		require.True(t, strings.HasPrefix(m, `href="https://sepolia.etherscan.io/`), m)
	}

	require.NotContains(t, text, "@import")
	policy := r.Header.Get("Content-Security-Policy")
	require.NotContains(t, policy, "unsafe")
	for _, element := range []string{"style", "script"} {
		content := regexp.MustCompile(`(?s)<` + element + `>(.*?)</` + element + `>`).FindStringSubmatch(text)
		require.NotNil(t, content)
		require.Contains(t, policy, hashSource(content[1]), "the policy must allow the %s that is in the page", element)
	}

	require.NotRegexp(t, `\sstyle="`, text, "the policy forbids inline styles")
	require.NotRegexp(t, `\son[a-z]+="`, text)
}

func TestPageEscapesWhatOthersNamed(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.fleet(1)
	const hostile = `"><script>alert(1)</script>`
	w.instance(hostile, 0, 1)
	w.source.set(func(i *fleet.Self) {
		i.ID, i.Build = hostile, fleet.Build{Version: hostile, Commit: hostile, Date: hostile}
	})
	w.Stores(testfleet.Event{ID: hostile, Type: hostile, Escrow: hostile, Block: 1, Index: 1, By: hostile})
	text := body(t, get(t, w.server().handler, "/?escrow="+strings.ReplaceAll(hostile, "<", "%3C")))
	require.NotContains(t, text, "<script>alert")
	require.Contains(t, text, "&lt;script&gt;alert")
}

func TestSearch(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.fleet(3)
	w.escrows(3)
	h := w.server().handler
	text := body(t, get(t, h, "/?escrow=%20"+addressOf(3)+"%20"))
	for _, want := range []string{"Served by", "Timeline", "EscrowDeployed", "Approved", "EscrowReleased", "1 of 2",
		"releaseDelay", "3.75 ether"} {
		require.Contains(t, text, want)
	}

	require.Equal(t, http.StatusNotFound, get(t, h, "/?escrow="+addressOf(70)).StatusCode)
	r := get(t, h, "/?escrow=0x12")
	require.Equal(t, http.StatusBadRequest, r.StatusCode)
	require.Contains(t, body(t, r), "Not an address")
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	w := setup(t)
	sessions := w.fleet(3)
	h := w.server().handler
	page := func() string { return body(t, get(t, h, "/")) }
	require.Contains(t, page(), `class="verdict well"`)

	w.kill("relayer-0", sessions[0], 0)
	w.LeaderBeat(0)
	text := page()
	require.Contains(t, text, `class="verdict warning"`, "one of three is left fewer, which is shown at once")
	require.Contains(t, text, "Partition 0 has no live instance: 2 of 3 partitions have one")
	require.Contains(t, text, "2 of 3 instances alive.")
	require.Contains(t, text,
		`href="https://github.com/fusion-prime/escrow-relayer/blob/main/deploy/runbooks/unserved-slots.md#adopted_slots"`)
	w.Left("relayer-0", 0)
	text = page()
	require.Contains(t, text, `class="verdict notice"`, "it stopped cleanly, and may be restarting: no action")
	require.Contains(t, text, "The fleet is settling")
	require.Contains(t, text, "2 of 2 instances alive.")

	w.LeaderBeat(time.Minute)
	text = page()
	require.Contains(t, text, `class="verdict warning"`)
	require.Contains(t, text, "No leader for 1m 00s")
	w.LeaderBeat(3 * time.Minute)
	text = page()
	require.Contains(t, text, `class="verdict critical"`)
	require.Contains(t, text, "No leader for 3m 00s")
	require.Contains(t, text, "No leader; the last was relayer-0")

	sessions[1].Lead()
	require.Contains(t, page(), "A new leader is taking over.")
	w.Exec(`update leadership set instance_id = 'relayer-1', last_heartbeat = now()`)
	w.HandOver("relayer-0", "relayer-1", time.Hour)
	text = page()
	require.Contains(t, text, `class="verdict warning"`)
	require.Contains(t, text, "840 slots have been adopted")
	w.Left("relayer-0", 3*time.Minute)
	require.Contains(t, page(), "840 slots are served by an instance that stands in")

	w.source.set(func(i *fleet.Self) { i.Node = errGone })
	require.Contains(t, page(), "This instance&#39;s node: dial")
}

// The page says how each instance knows what it publishes, and which endpoint is set aside.
func TestTrust(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.fleet(2)
	w.Exec(`update relayer_instances set trust = case instance_id when 'relayer-0' then 'proved' else 'believed' end`)
	text := body(t, get(t, w.server().handler, "/"))
	require.NotContains(t, text, "All well")
	w.Exec(`update relayer_instances set trust = 'proved'`)
	w.source.set(func(i *fleet.Self) { i.Endpoints[1].Up = false })
	require.Contains(t, body(t, get(t, w.server().handler, "/")), "Wss://***.infura.io is out for this instance")
	w.source.set(func(i *fleet.Self) { i.Endpoints[1].Up = true })
	require.Contains(t, body(t, get(t, w.server().handler, "/")), "All well")
	w.Exec(`update relayer_instances set trust = 'believed' where instance_id = 'relayer-1'`)
	require.Contains(t, text, "All is stored and published; look at the endpoints")
	require.Contains(t, text, "The word of one endpoint says which blocks are the chain&#39;s: relayer-1</span>")
	w.Exec(`insert into endpoint_faults (chain_id, endpoint, kind, evidence) values ($1, 'https://rpc.example.com', 'lie', '')`,
		testChain)
	text = body(t, get(t, w.server().handler, "/"))
	require.Contains(t, text, `data-label="Trust">proved</td>`)
	require.Contains(t, text, `class="noted" data-label="Trust">believed</td>`)
	require.Contains(t, text, "asked only while no other works: https://rpc.example.com (lie, ")
	require.Contains(t, text, "node-disagreement.md#endpoint_set_aside")
}

// A failover of the database, or a node that is gone for a moment, is no emergency of each instance: the page
// judges both by the one table of limits, as the alerts do.
func TestWhatLastsIsWorse(t *testing.T) {
	t.Parallel()
	for what, fail := range map[string]func(*fleet.Self, time.Time){
		"database": func(i *fleet.Self, since time.Time) { i.Database, i.DatabaseSince = errGone, since },
		"session":  func(i *fleet.Self, since time.Time) { i.Session, i.SessionSince = errGone, since },
		"node":     func(i *fleet.Self, since time.Time) { i.Node, i.NodeSince = errGone, since },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.fleet(1)
			h := w.server().handler
			for level, age := range map[string]time.Duration{"notice": 0, "warning": time.Minute, "critical": 3 * time.Minute} {
				w.source.set(func(i *fleet.Self) { fail(i, time.Now().Add(-age)) })
				require.Contains(t, body(t, get(t, h, "/")), `class="verdict `+level+`"`)
			}
		})
	}
}

// Why messages wait stands beside that they wait, and is as urgent.
func TestWhyMessagesWait(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.fleet(3)
	w.escrows(9)
	waitFor := func(age time.Duration) {
		w.Publish()
		w.QueuesStored(4, age)
	}
	waitFor(20 * time.Second)
	w.source.set(func(i *fleet.Self) { i.PublishError, i.PublishErrorAt = errGone, time.Now() })
	h := w.server().handler
	text := body(t, get(t, h, "/"))
	require.Equal(t, 1, strings.Count(text, `<li class="notice">`), text)
	require.Contains(t, text, "the last error of publishing, ")
	waitFor(6 * time.Minute)
	text = body(t, get(t, h, "/"))
	require.Equal(t, 1, strings.Count(text, `<li class="critical">`), text)
	require.NotContains(t, text, "<b>Note</b>")
}

func TestAllHaveStopped(t *testing.T) {
	t.Parallel()
	w := setup(t)
	sessions := w.fleet(1)
	w.kill("relayer-0", sessions[0], time.Minute)
	w.LeftWhenItDied()
	text := body(t, get(t, w.server().handler, "/"))
	require.Contains(t, text, "No instance is alive.")
	require.NotContains(t, text, "0 of 0")
}

func TestPageOfAnInstanceThatHasJustStarted(t *testing.T) {
	t.Parallel()
	s, source := bare(t, broken(t))
	source.set(func(i *fleet.Self) { *i = fleet.Self{} })
	text := body(t, get(t, s.handler, "/"))
	require.Contains(t, text, "The database does not answer: act now")
	require.Contains(t, text, "No instance is known.")
	require.Contains(t, text, "not read yet")
	require.NotContains(t, text, "None is stored yet.", "nobody has looked")
	require.Regexp(t, `Escrows registered</dt><dd[^>]*>–</dd>`, text)
	require.Regexp(t, `<b>–</b> <span>messages in the fleet`, text)
	require.NotContains(t, text, secret)

	w := setup(t) // a database that knows nothing of the chain
	text = body(t, get(t, w.server().handler, "/"))
	require.Contains(t, text, "No instance has ever run for chain")
}

func TestPageKeepsTheLastFleetWhileTheDatabaseIsGone(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.fleet(3)
	now := time.Now()
	w.front.Now = func() time.Time { return now }
	w.cfg.Fleet = &reads{db: w.DB, now: w.front.Now}
	s := w.server()
	require.Contains(t, body(t, get(t, s.handler, "/")), "All well")
	w.DB.Close()
	now = now.Add(time.Minute)
	text := body(t, get(t, s.handler, "/"))
	require.Contains(t, text, "The fleet is shown as it was 1m 00s ago")
	require.Contains(t, text, "relayer-2")
	require.Regexp(t, `As of \d\d:\d\d:\d\d UTC: relayer-0 has led for`, text)
	w.source.set(func(i *fleet.Self) { i.Database, i.Session = errGone, errGone })
	text = body(t, get(t, s.handler, "/"))
	require.NotContains(t, text, "This instance&#39;s database: ", "one cause is told once")
	require.Contains(t, text, "This instance&#39;s database session: ")
	require.Contains(t, text, "it rejoins once this has ended")
	answer := read[status](t, s.handler, "/status")
	require.NotEmpty(t, answer.FleetError)
	require.Len(t, answer.Fleet.Instances, 3)
}
