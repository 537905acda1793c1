package watch_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

// advances counts, in the database, how often each watch moves its cursor.
const advances = `
	create table advances (watch text, came timestamptz, until bigint);
	create function note_advance() returns trigger language plpgsql as $$
		begin insert into advances values (tg_table_name, clock_timestamp(), new.next_block); return null; end $$;
	create trigger note_advance after update on cursors for each row
		when (new.next_block > old.next_block) execute function note_advance();
	create trigger note_advance after update on leadership for each row
		when (new.next_block > old.next_block) execute function note_advance()`

// A chain with fast blocks: while nothing happens, each watch commits every two seconds. What
// happens is stored at once, and so are the blocks before it, and the last quiet ones with time.
func TestQuietBlocksDoNotCostATransactionEach(t *testing.T) {
	t.Parallel()
	for _, mode := range []watch.FilterMode{watch.FilterTopics, watch.FilterAddresses} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.create(3)
			w.mine(1 + confirmations)
			w.run(mode, true)
			truth := w.expect(w.head() - confirmations)

			_, err := w.DB.Exec(t.Context(), advances)
			require.NoError(t, err)
			begun := time.Now()
			const blocks = 60
			target := w.head() - confirmations + blocks
			w.sim.SetInterval(100 * time.Millisecond)
			require.Eventually(t, func() bool { return w.src.View().Target >= target }, patience, time.Millisecond)
			w.sim.SetInterval(0)

			// The simulated chain calls each 32nd block final at once: what is left below two of them does not wait.
			most := 2 + int(time.Since(begun)/watch.QuietPause) + 2*confirmations
			seldom := func(table string) {
				commits := w.Column(`select came || ' up to ' || until from advances where watch = '` + table + `' order by came`)
				require.LessOrEqual(t, len(commits), most, "since %s, of %d blocks: %v", begun, blocks, commits)
			}
			seldom("cursors")
			if mode == watch.FilterTopics { // by addresses the leader does not see what others wait for
				seldom("leadership")
			}

			w.approve(1, truth.Escrows[0])
			w.create(1)
			w.mine(1 + confirmations)
			w.expect(w.head() - confirmations)

			w.mine(2)
			require.Eventually(t, func() bool {
				slots, err := w.led.SlotPosition(t.Context(), 1)
				require.NoError(t, err)
				factory, err := w.led.FactoryPosition(t.Context(), 1)
				require.NoError(t, err)

				return min(slots.Next, factory.Next) == int64(w.head())-confirmations+1
			}, patience, 5*time.Millisecond, "without another block")
		})
	}
}

var logsOfBlock = regexp.MustCompile(`"eth_getLogs","params":\[\{"blockHash":"(0x[0-9a-f]{64})"`)

// asked is a node that counts how often it is asked for the logs of each block.
func asked(t *testing.T, node string) (address string, most func() (blocks, requests int)) {
	to, err := url.Parse(node)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	var mu sync.Mutex
	counts := map[string]int{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client has gone
		}

		mu.Lock()
		for _, m := range logsOfBlock.FindAllSubmatch(body, -1) {
			counts[string(m[1])]++
		}

		mu.Unlock()
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)

	return s.URL, func() (blocks, requests int) {
		mu.Lock()
		defer mu.Unlock()
		for _, n := range counts {
			requests = max(requests, n)
		}

		return len(counts), requests
	}
}

// Blocks that wait are read again and again, by both watches: their headers exclude logs, and nothing is asked.
func TestQuietBlocksAreReadAgainFromMemory(t *testing.T) {
	t.Parallel()
	w := setup(t)
	address, most := asked(t, w.sim.HTTP())
	w.src = openSource(t, address)
	w.create(1)
	w.mine(1 + confirmations)
	w.run(watch.FilterTopics, true)
	w.expect(w.head() - confirmations)
	for range 20 {
		w.mine(1)
		target := w.head() - confirmations
		require.Eventually(t, func() bool { return w.src.View().Target >= target }, patience, time.Millisecond)
	}

	require.Eventually(t, func() bool {
		at, err := w.led.SlotPosition(t.Context(), 1)
		require.NoError(t, err)
		return at.Next > int64(w.head())-confirmations
	}, patience, 5*time.Millisecond)
	blocks, requests := most()
	require.Zero(t, blocks)
	require.Zero(t, requests)
}
