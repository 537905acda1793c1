//go:build browser

package web

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/testfleet"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// These tests look at the status page in the Chromium of this machine. With SCREENSHOTS=dir they
// leave pictures of it there.

// tab is one tab of a Chromium of its own.
type tab struct {
	t   *testing.T
	ctx context.Context
}

func open(t *testing.T) tab {
	t.Helper()
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("no-sandbox", true), // which root cannot have
		chromedp.Flag("disable-gpu", true), chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true))
	// for all scenes, on a busy machine
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)

	return tab{t, ctx}
}

func (b tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Do(b.ctx, actions...))
}

// visit goes to a page and waits until it is live.
func (b tab) visit(url string) {
	b.t.Helper()
	b.do(chromedp.Navigate(url), chromedp.WaitVisible(chromedp.CSS("#live.on")))
}

// look sets the size of the window and the colours that the person prefers.
func (b tab) look(width int64, scheme string) {
	b.t.Helper()
	b.do(chromedp.EmulateViewport(width, 900))
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	require.NoError(b.t, err)
}

func eval[T any](b tab, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	require.NoError(b.t, err, expression)

	return v
}

// until waits for the page to make an expression true.
func (b tab) until(expression string) {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		ok, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](expression))
		return err == nil && ok
	}, 10*time.Minute, 20*time.Millisecond, expression)
}

// watch collects what the page complains of and what it requests; the function returned ends that and returns both.
func (b tab) watch() func() (complaints, requests []string) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.ctx)
	console, sent := chromedp.Console(ctx), chromedp.Events(ctx, network.RequestWillBeSent)
	done := make(chan struct{}, 2)
	var complaints, requests []string
	go func() {
		defer func() { done <- struct{}{} }()
		for m, err := range console {
			if err != nil {
				return
			}

			complaints = append(complaints, m.String())
		}
	}()
	go func() {
		defer func() { done <- struct{}{} }()
		for e, err := range sent {
			if err != nil {
				return
			}

			requests = append(requests, e.Request.URL)
		}
	}()

	return func() ([]string, []string) {
		cancel()
		<-done
		<-done

		return complaints, requests
	}
}

// scenes are fleets to look at.
var scenes = map[string]func(*world) (query string){
	"one":    func(w *world) string { w.fleet(1); return "" },
	"three":  func(w *world) string { w.fleet(3); w.escrows(200); return "" },
	"thirty": func(w *world) string { w.fleet(30); w.escrows(200); return "" },
	"search": func(w *world) string { w.fleet(3); w.escrows(200); return "?escrow=" + addressOf(42) },
	"one word": func(w *world) string {
		w.fleet(3)
		w.Exec(`update relayer_instances set trust = 'believed'`)
		return ""
	},
	"one left": func(w *world) string {
		s := w.fleet(3)
		w.escrows(90)
		for _, id := range []string{"relayer-1", "relayer-2"} {
			w.kill(id, s[map[string]int{"relayer-1": 1, "relayer-2": 2}[id]], 40*time.Second)
			w.HandOver(id, "relayer-0", 0)
		}

		return ""
	},
	"three stopped": func(w *world) string {
		for n, s := range w.fleet(3) {
			w.kill(fmt.Sprintf("relayer-%d", n), s, time.Minute)
		}

		w.LeftWhenItDied()
		w.Exec(`update slot_ownership set owner = null, since = now() - interval '1 minute', next_block = $1`, testHead-6)
		w.LeaderBeat(62 * time.Second)

		return ""
	},
	"pubsub 20s":  func(w *world) string { return w.frozenPubSub(20 * time.Second) },
	"pubsub 60s":  func(w *world) string { return w.frozenPubSub(time.Minute) },
	"pubsub 6min": func(w *world) string { return w.frozenPubSub(6 * time.Minute) },
	"start wrong": func(w *world) string {
		w.fleet(3)
		w.Exec(`update leadership set start_block = $1`, testHead+500_000)
		return ""
	},
	"commands": func(w *world) string {
		sessions := w.fleet(3)
		w.escrows(12)
		w.commands(sessions[0])

		return ""
	},
	"node down": func(w *world) string {
		w.fleet(3)
		w.source.set(func(i *fleet.Self) {
			i.Node = errors.New("no RPC endpoint is available: rpc0: connection refused: check RPC_URLS and the nodes behind them")
			i.Endpoints[0].Up, i.Endpoints[0].LastError = false, "connection refused"
		})

		return ""
	},
	"database down": func(w *world) string {
		w.fleet(3)
		w.escrows(90)
		w.then = w.databaseBehindProxy()

		return ""
	},
	"database down at the start": func(w *world) string {
		w.databaseBehindProxy()()
		w.source.set(func(i *fleet.Self) {
			*i = fleet.Self{ID: i.ID, Build: i.Build, Started: i.Started, Partition: i.Partition,
				Session: errors.New("not part of the fleet: joining")}
		})

		return ""
	},
	// The leader died a minute ago; another instance died earlier and was half adopted; a standby;
	// free slots; messages that wait.
	"leaderless": func(w *world) string {
		s := w.fleet(4)
		second := testfleet.Preferred(1, 4)
		third := testfleet.Preferred(2, 4)
		w.instance("relayer-1b", 1, 4)
		w.Own("relayer-1", second...)
		w.escrows(90)
		w.kill("relayer-0", s[0], 48*time.Second)
		w.kill("relayer-2", s[2], 3*time.Minute)
		w.Own("relayer-1", third[:208]...)
		w.Own("relayer-3", third[208:418]...)
		w.Own("", 100, 101, 102, 103, 104, 105, 700, 701, 702, 703)
		w.LeaderBeat(57 * time.Second)
		w.Exec(`insert into outbox_messages (chain_id, slot, escrow, event_id, event_type, created_at)
			select chain_id, slot, escrow, event_id, event_type, now() - interval '70 seconds' from processed_events
				where slot % 4 = 0`)
		w.source.set(func(i *fleet.Self) {
			i.ID, i.Leader, i.Partition.Number, i.Partition.Total = "relayer-3", false, 3, 4
			i.Node = errors.New("no endpoint has answered for 31s")
		})

		return ""
	},
}

// levels is what the page says of each scene: nothing sooner and nothing worse than is true.
var levels = map[string]string{
	"one": "well", "three": "well", "thirty": "well", "search": "well", "one word": "notice",
	"one left": "warning", "three stopped": "critical", "leaderless": "critical",
	"pubsub 20s": "notice", "pubsub 60s": "warning", "pubsub 6min": "critical",
	"start wrong": "critical", "commands": "critical", "node down": "critical",
	"database down": "critical", "database down at the start": "critical",
}

// frozenPubSub is a fleet whose oldest message waits for so long.
func (w *world) frozenPubSub(age time.Duration) string {
	w.fleet(3)
	w.escrows(90)
	w.QueuesStored(40, age)
	w.source.set(func(i *fleet.Self) {
		i.PublishError, i.PublishErrorAt = errors.New("rpc error: code = Unavailable desc = connection timed out"),
			time.Now().Add(-4*time.Second)
	})

	return ""
}

// databaseBehindProxy lets the server read the database through a proxy; what it returns cuts that,
// as a database is that refuses connections.
func (w *world) databaseBehindProxy() (cut func()) {
	proxy, url, err := faults.ProxyURL(w.URL)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = proxy.Close() })
	db := testpg.Open(w.t, url)
	w.cfg.DB, w.cfg.Fleet = db, &reads{db: db}

	return func() {
		proxy.Cut()
		w.source.set(func(i *fleet.Self) {
			i.Session = errors.New("the database session is lost")
			i.Database = database.Explain(db.Ping(w.t.Context()))
		})
	}
}

// sceneLasts is how old a scene may be: what it shows has ages, which change the verdict.
const sceneLasts = 2 * time.Second

func TestScenesInABrowser(t *testing.T) {
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		dir = t.TempDir()
	}

	require.NoError(t, os.MkdirAll(dir, 0o755))
	b := open(t)
	for name, scene := range scenes {
		t.Run(name, func(t *testing.T) {
			b.t = t
			var url, query string
			var set time.Time
			begin := func() {
				b.do(chromedp.Navigate("about:blank")) // the page of the last scene asks no more
				w := setup(t)
				query = scene(w)
				s := w.serve(func(s *Server) { backfill(s, time.Now()) })
				url, set = s.url, time.Now()
				if w.then != nil {
					b.look(1440, "light")
					b.visit(url)
					w.then()
					b.until(`document.querySelector("#verdict .critical") !== null`)
				}
			}
			for _, width := range []int64{1440, 768, 390} {
				for _, scheme := range []string{"light", "dark"} {
					if time.Since(set) > sceneLasts {
						begin()
					}

					b.look(width, scheme)
					stop := b.watch()
					b.visit(url + "/" + query)
					require.LessOrEqual(t, eval[int64](b, "document.documentElement.scrollWidth"), width,
						"the page is wider than the window")
					require.Equal(t, "verdict "+levels[name],
						eval[string](b, `document.querySelector("#verdict > div").className`))
					require.Empty(t, eval[[]string](b, helpless), "%d %s: nothing says what to do", width, scheme)
					require.Empty(t, eval[[]string](b, unreadable), "%d %s: contrast", width, scheme)
					require.Empty(t, eval[[]string](b, unnamed), "%d %s: for assistive technology", width, scheme)
					png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
					require.NoError(t, err)
					require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%d-%s.png", name, width, scheme)), png, 0o644))
					complaints, requests := stop()
					require.Empty(t, complaints)
					for _, asked := range requests {
						require.True(t, strings.HasPrefix(asked, url+"/") || strings.HasPrefix(asked, "data:"), "asks %s", asked)
					}
				}
			}

			b.do(chromedp.Navigate("about:blank"))
		})
	}
}

func TestOverviewInABrowser(t *testing.T) {
	f, err := NewFront(FrontConfig{Chains: []int64{1, 2}, Mask: mask})
	require.NoError(t, err)
	f.Mount(chainConfig(t, 1, &instanceStub{i: fleet.Self{ID: "relayer-0"}}))
	f.Ended(2, fmt.Errorf("start: %s", strings.Repeat("the node of the chain does not answer ", 10)))
	s := httptest.NewServer(f.Handler())
	t.Cleanup(s.Close)
	b := open(t)
	for _, width := range []int64{1440, 768, 390} {
		b.look(width, "light")
		b.do(chromedp.Navigate(s.URL), chromedp.WaitVisible(chromedp.CSS("tr.critical")))
		require.LessOrEqual(t, eval[int64](b, "document.documentElement.scrollWidth"), width)
		require.Empty(t, eval[[]string](b, unreadable), width)
		require.Empty(t, eval[[]string](b, unnamed), width)
	}
}

// helpless lists problems that name neither a first step nor a runbook.
const helpless = `[...document.querySelectorAll("#verdict li")].filter((li) =>
	!li.querySelector(".remedy, a.runbook")).map((li) => li.textContent.trim())`

// unreadable lists texts with less than the contrast of WCAG 2.2 AA, 4.5 to 1.
const unreadable = `(() => {
	const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
	const rgba = (color) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
	const luminance = ([r, g, b]) => { const f = (v) => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; return .2126 * f(r) + .7152 * f(g) + .0722 * f(b); };
	const behind = (el) => { for (; el; el = el.parentElement) { const c = rgba(getComputedStyle(el).backgroundColor); if (c[3] === 255) return c; } return [255, 255, 255]; };
	const out = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	for (let n; (n = walker.nextNode());) {
		const el = n.parentElement;
		if (!n.data.trim() || /^(SCRIPT|STYLE|NOSCRIPT)$/.test(el.tagName) || !el.getClientRects().length || el.closest(".skip")) continue;
		const a = luminance(rgba(getComputedStyle(el).color)), b = luminance(behind(el));
		const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
		if (contrast < 4.5) out.push(n.data.trim().slice(0, 40) + " " + contrast.toFixed(2));
	}
	return out;
})()`

// unnamed lists what has no name for those who do not see it, ids that are not unique, and headings that skip a level.
const unnamed = `(() => {
	const out = [], ids = {};
	for (const el of document.querySelectorAll("[id]")) { if (ids[el.id]) out.push("id twice: " + el.id); ids[el.id] = true; }
	for (const el of document.querySelectorAll("svg:not([aria-hidden]), [role=img], [role=slider]")) if (!el.getAttribute("aria-label")) out.push("no label: " + el.outerHTML.slice(0, 80));
	for (const el of document.querySelectorAll("input, select, textarea")) if (!el.labels.length) out.push("no label: " + el.outerHTML.slice(0, 80));
	for (const el of document.querySelectorAll("a, button")) if (!el.textContent.trim() && !el.getAttribute("aria-label")) out.push("no name: " + el.outerHTML.slice(0, 80));
	for (const el of document.querySelectorAll("[aria-labelledby], [aria-describedby]")) for (const id of (el.getAttribute("aria-labelledby") || el.getAttribute("aria-describedby")).split(" ")) if (!document.getElementById(id)) out.push("names nothing: " + id);
	for (const el of document.querySelectorAll("table")) if (!el.querySelector("th")) out.push("a table without headers");
	let level = 0;
	for (const el of document.querySelectorAll("h1, h2, h3, h4")) { const l = +el.tagName[1]; if (l > level + 1) out.push("skips a level: " + el.textContent); level = l; }
	if (document.querySelectorAll("h1").length !== 1 || document.querySelectorAll("main").length !== 1) out.push("one h1 and one main");
	return out;
})()`

func TestPageIsLiveInABrowser(t *testing.T) {
	w := setup(t)
	sessions := w.fleet(3)
	s := w.serve()
	b := open(t)
	b.look(1440, "light")
	stop := b.watch()
	b.visit(s.url)
	text := func(selector string) string {
		return eval[string](b, fmt.Sprintf("document.querySelector(%q).textContent.trim()", selector))
	}

	// Somebody types while the page changes.
	b.do(chromedp.SendKeys(chromedp.CSS("#escrow"), "0xabc"))
	w.kill("relayer-0", sessions[0], 0)
	b.until(`document.querySelector("#verdict .warning") !== null`) // one of three is missing, at once
	w.LeftWhenItDied("relayer-0")
	b.until(`document.querySelector("#verdict .warning") === null && document.querySelector("#verdict .notice") !== null`)
	sessions[1].Lead()
	w.HandOver("relayer-0", "relayer-1", 0)
	w.Exec(`update leadership set instance_id = 'relayer-1', since = now(), last_heartbeat = now()`)
	b.until(`document.querySelector("#verdict").textContent.includes("relayer-1 has led for")`)
	require.Contains(t, text("#fleet .note"), "840 of them adopted")
	require.True(t, eval[bool](b, `document.activeElement.id === "escrow" && document.activeElement.value === "0xabc"`),
		"what was typed must stay")
	require.Equal(t, "◐ relayer-0 · escrow relayer", eval[string](b, "document.title"))

	complaints, _ := stop()
	require.Empty(t, complaints)
	require.NoError(t, s.stop())
	b.until(`document.querySelector("#live.lost") !== null`)
	require.Contains(t, text("#live"), "connection lost, as of")
}

func TestPageWithoutScriptsInABrowser(t *testing.T) {
	w := setup(t)
	w.fleet(3)
	w.escrows(9)
	s := w.serve()
	b := open(t)
	b.look(390, "light")
	_, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled,
		emulation.SetScriptExecutionDisabledParams{Value: true})
	require.NoError(t, err)
	b.do(chromedp.Navigate(s.url), chromedp.WaitVisible(chromedp.CSS("#verdict .well")),
		chromedp.WaitVisible(chromedp.CSS("#fleet tbody tr:nth-child(3)")),
		chromedp.WaitVisible(chromedp.CSS("#figures .line")))
	b.do(chromedp.SendKeys(chromedp.CSS("#escrow"), addressOf(3)+"\r"),
		chromedp.WaitVisible(chromedp.CSS("#result .story li:nth-child(3)")))
	b.do(chromedp.Click(chromedp.CSS("h1 a")), chromedp.WaitNotPresent(chromedp.CSS("#result")))
}
