package ledger_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

func (w *world) findings() []string {
	return w.Column(`select kind || ' ' || block_number || ' ' || events from findings order by id`)
}

// with is an event that has another value for one argument.
func with(e contract.Event, was, is string) contract.Event {
	e.Args = []byte(strings.Replace(string(e.Args), was, is, 1))
	return e
}

// An ABI may give an argument any width. A number that no column of a record holds is left out of the
// record; the event is stored and published whole, and the chain goes on.
func TestANumberWithoutAColumnStopsNothing(t *testing.T) {
	t.Parallel()
	digits := strings.Repeat("9", 79)
	for name, tt := range map[string]struct{ was, is, column string }{
		"approvals": {`"approvalsRequired":"2"`, `"approvalsRequired":"40000"`, "approvals_required"},
		"amount":    {`"amount":"1000"`, `"amount":"` + digits + `"`, "amount"},
		"negative":  {`"releaseDelay":"60"`, `"releaseDelay":"-` + digits + `"`, "release_delay"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			e := with(deployed(1, 1, 1, 11), tt.was, tt.is)
			w.discover(0, deployed(2, 1, 0, 10), e)
			require.Len(t, w.process(0).Log, 2)
			require.Equal(t, []string{string(e.Args)},
				w.Column(`select args::text from processed_events where log_index = 1`))
			require.Equal(t, []string{"none"},
				w.Column(`select coalesce(`+tt.column+`::text, 'none') from escrow_records where deployed_block = 1
					order by last_event_id desc limit 1`))
			require.Equal(t, []string{"2"}, w.Column(`select approvals_required::text from escrow_records
				where last_event_id like '%0a:0'`), "the other escrow")
		})
	}

	t.Run("a settlement, and a leading zero that fits", func(t *testing.T) {
		t.Parallel()
		w := setup(t)
		w.discover(0, with(deployed(1, 1, 0, 11), `"amount":"1000"`, `"amount":"0`+strings.Repeat("9", 78)+`"`))
		w.process(0, with(released(1, 1, 1, 12), `"amount":"1000"`, `"amount":"`+digits+`"`))
		require.Equal(t, []string{"released"}, w.Column(`select status from escrow_registry`))
	})
}

// Two logs of the factory name one new escrow in one block: the first registers it. What the factory
// announces later of a registered escrow is stored and told.
func TestAnEscrowIsAnnouncedMoreThanOnce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	require.Equal(t, 1, w.process(0, deployed(2, 1, 0, 11)).New)
	r := w.process(0, deployed(1, 2, 3, 12), deployed(1, 2, 4, 13))
	require.Equal(t, 2, r.New)
	require.Equal(t, []string{"EscrowDeployed:2"}, ids(r.Log))
	require.Equal(t, []string{"announced_again 2 1"}, w.findings())
	r = w.process(0, deployed(1, 3, 0, 14))
	require.Equal(t, 1, r.New)
	require.Empty(t, slices.Concat(r.Log, r.Pending))
	require.Equal(t, []string{"announced_again 2 1", "announced_again 3 1"}, w.findings())
	n, err := w.led.Replay(t.Context(), ledger.Selection{Escrow: escrow(1)}, nil)
	require.NoError(t, err)
	require.Equal(t, 1, n, "a replay tells of what was told")
	require.Equal(t, []string{"1", "2"}, w.Column(`select discovered_block_number::text from escrow_registry order by 1`))
}

// What the leader or an owner reads again is no second announcement.
func TestWhatIsReadAgainIsNotAnnouncedAgain(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.discover(0, deployed(1, 1, 0, 11))
	w.Exec(`update leadership set next_block = 1, block_hash = null`)
	w.fact = ledger.Position{Next: 1}
	w.discover(0, deployed(1, 1, 0, 11))
	w.process(0)
	w.SetCursor(me, 1, "")
	w.slots = ledger.Position{Next: 1}
	w.process(0)
	require.Empty(t, w.findings())
	require.Equal(t, []string{"EscrowDeployed:0"}, w.outbox())
}

// A string may hold what json cannot give as text. Whoever queries the arguments of all events reads the
// others, and the replacement character in its place; the table has it as it came.
func TestArgumentsWithANullCharacterCanBeQueried(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.discover(0, deployed(1, 1, 0, 11))
	e := event("Approved", 1, 1, 1, 12, `{"approver":"a\u0000\u0000b","path":"c:\\u0000"}`)
	w.process(0, e)
	require.Equal(t, []string{"a\ufffd\ufffdb c:\\u0000"},
		w.Column(`select args->>'approver' || ' ' || (args->>'path') from processed_events where event_type = 'Approved'`))
	require.Equal(t, []string{string(e.Args)}, w.Column(`select args from events where type = 3`))
	require.Len(t, w.Column(`select args->>'approver' from outbox_messages where event_type = 'Approved'`), 1)
}

// A header's time is any number.
func TestABlockWithATimeThatNoColumnHolds(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for _, at := range []uint64{1_700_000_000_000_000_000, 1<<63 + 5, 9_224_318_015_999, 9_224_318_016_000} {
		c := ledger.FactoryCommit{Epoch: w.epoch, From: w.fact, To: w.fact.To(w.fact.Next+1, blockHash(0, w.fact.Next)),
			Time: at}
		_, err := w.led.CommitFactory(t.Context(), c)
		require.NoError(t, err)
		w.fact = c.To
	}
}
