package fleet_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testfleet"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

func kinds(problems []fleet.Problem) []string {
	out := []string{}
	for _, p := range problems {
		out = append(out, p.Kind)
	}

	return out
}

func TestWholeFleet(t *testing.T) {
	w := setup(t)
	w.chainRow("a", 0, time.Hour)
	w.live("a", 0, 3, 1005).Lead()
	w.live("b", 1, 3, 1004)
	w.live("c", 2, 3, 1003)
	w.Finds(testfleet.Escrow{Address: "one", Slot: 4, Block: 5},
		testfleet.Escrow{Address: "two", Slot: 4, Block: 5, Status: "released"},
		testfleet.Escrow{Address: "three", Slot: 5, Block: 5, Late: true},
		testfleet.Escrow{Address: "four", Slot: 5, Block: 5, Status: "orphaned"})
	w.Queues(testfleet.Message{Slot: 1})
	w.Queues(testfleet.Message{Slot: 4, Waits: 20 * time.Second})
	// Another chain in the same database must not show.
	w.Of(chain + 1).Queues(testfleet.Message{Slot: 1})

	f, err := fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.Equal(t, []string{fleet.OldOutbox}, kinds(f.Problems))
	require.Equal(t, fleet.Notice, f.Problems[0].Severity)
	require.False(t, fleet.NeedPerson(f.Problems))
	require.True(t, f.Known)
	require.Equal(t, 3, f.Live())
	require.Equal(t, "a", f.Leader.Instance)
	require.True(t, f.Leader.Held)
	require.True(t, f.Leader.Valid)
	require.EqualValues(t, 7, f.Leader.Epoch)
	require.InDelta(t, 3600, f.At.Sub(f.Leader.Since).Seconds(), 30)

	require.Len(t, f.Instances, 3)
	for n, i := range f.Instances {
		require.Equal(t, n, i.Number)
		require.Equal(t, 840, i.Slots)
		require.Zero(t, i.Adopted)
		require.Equal(t, fleet.Serving, i.State)
		require.Equal(t, i.ID == "a", i.Leader)
		require.EqualValues(t, 1005-n, i.Cursor)
		require.Zero(t, i.DeadFor)
	}

	require.Equal(t, 2, f.Find("b").Outbox, "slots 1 and 4 are of partition 1 of 3")
	require.Equal(t, 1, f.Find("c").Late)

	require.Len(t, f.Slots.Each, 2520)
	require.Equal(t, 2520, f.Slots.Served)
	require.Zero(t, f.Slots.Unserved)
	require.Equal(t, fleet.Chain{Head: 1010, NodeHead: 1010, FactoryCursor: 1000, LowestCursor: 1003, Verified: 900,
		Start: 10, Factory: "0x0000000000000000000000000000000000000fac"}, f.Chain)
	require.Equal(t, fleet.Escrows{Active: 2, Released: 1, Orphaned: 1}, f.Escrows)
	require.EqualValues(t, 3, f.Escrows.Registered())
	require.EqualValues(t, 2, f.Outbox.Messages)
	require.False(t, f.Outbox.More)
	require.InDelta(t, 25, f.Outbox.OldestAge.Seconds(), 10)
	require.EqualValues(t, 1, f.Late.Escrows)
}

// How each instance knows what it publishes is what it last wrote; an endpoint that is set aside needs a person, and
// keeps nobody from publishing.
func TestTrust(t *testing.T) {
	w := setup(t)
	w.chainRow("a", 0, time.Hour)
	w.live("a", 0, 2, 1005).Lead()
	w.live("b", 1, 2, 1005)
	w.Exec(`update relayer_instances set trust = 'believed' where instance_id = 'b'`)
	f, err := fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.Equal(t, []string{fleet.Believed}, kinds(f.Problems))
	require.Empty(t, f.Faults)
	require.Equal(t, []string{"", "believed"}, []string{f.Find("a").Trust, f.Find("b").Trust})

	w.Exec(`insert into endpoint_faults (chain_id, endpoint, kind, evidence, since) values
		($1, 'https://rpc.example.com', 'lie', 'block 7', '2026-11-26 10:00:00Z'), ($1 + 1, 'https://other.example.com', 'lie', '', now())`,
		chain)
	f, err = fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.Equal(t, []string{fleet.SetAside, fleet.Believed}, kinds(f.Problems))
	require.Equal(t, fleet.Warning, f.Problems[0].Severity)
	require.Contains(t, f.Problems[0].Text, ": https://rpc.example.com (lie, 2026-11-26 10:00:00 UTC)")
	require.Equal(t, fleet.Fault{Endpoint: "https://rpc.example.com", Kind: "lie",
		Since: time.Date(2026, 11, 26, 10, 0, 0, 0, time.UTC)}, f.Faults[0])
}

// The target stands still: the newest block that may be processed is old, by the chain's timestamps and the
// database's clock, and the head is not. A head that is as old is another problem, of another cause. The
// instance that knows the newest block counts.
func TestBlocksAreComparedWithTheClock(t *testing.T) {
	w := setup(t)
	w.chainRow("a", 0, time.Hour)
	w.live("a", 0, 2, 1000).Lead()
	w.live("b", 1, 2, 1000)
	ages := func(instance, head, target string) {
		w.Exec(`update relayer_instances set head_time = now() - $2::interval, target_time = now() - $3::interval
			where instance_id = $1`, instance, head, target)
	}
	found := func() map[string]fleet.Severity {
		f, err := fleet.Read(t.Context(), w.DB, chain)
		require.NoError(t, err)
		all := map[string]fleet.Severity{}
		for _, p := range f.Problems {
			if p.Kind == fleet.StillFinality || p.Kind == fleet.StillChain {
				all[p.Kind] = p.Severity
			}
		}

		return all
	}
	stored := func(ago string) { w.Exec(`update cursors set block_time = now() - $1::interval`, ago) }
	stored("6 hours")
	require.Empty(t, found(), "what is not known is not judged")
	ages("a", "12 seconds", "29 minutes")
	require.Empty(t, found())
	ages("a", "12 seconds", "31 minutes")
	require.Equal(t, map[string]fleet.Severity{fleet.StillFinality: fleet.Warning}, found())
	ages("a", "29 minutes", "61 minutes")
	require.Equal(t, map[string]fleet.Severity{fleet.StillFinality: fleet.Critical}, found())
	ages("b", "12 seconds", "14 minutes")
	require.Empty(t, found(), "the other one is ahead")
	for _, id := range []string{"a", "b"} {
		ages(id, "12 seconds", "5 hours")
	}

	require.Equal(t, map[string]fleet.Severity{fleet.StillFinality: fleet.Critical}, found())
	stored("3 seconds")
	f, err := fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.Less(t, f.Chain.TargetAge.Seconds(), 12.0,
		"ages are of the same moment as heights: a block is stored since the heartbeat")
	require.Equal(t, f.Chain.HeadAge, f.Chain.TargetAge)
	stored("6 hours")
	limit := func(instance, text string) {
		w.Exec(`update relayer_instances set settings = jsonb_build_object('other', jsonb_build_object('FINALITY_LIMIT', $2::text))
			where instance_id = $1`, instance, text)
	}
	limit("a", "4h0m0s")
	require.Equal(t, map[string]fleet.Severity{fleet.StillFinality: fleet.Warning}, found(), "the chain takes hours")
	limit("b", "6h0m0s")
	require.Empty(t, found(), "the highest limit counts")
	ages("b", "62 minutes", "62 minutes")
	ages("a", "61 minutes", "61 minutes")
	require.Equal(t, map[string]fleet.Severity{fleet.StillChain: fleet.Critical}, found())
}

func TestUnknownChain(t *testing.T) {
	w := setup(t)
	f, err := fleet.Read(t.Context(), w.DB, 5)
	require.NoError(t, err)
	require.False(t, f.Known)
	require.Equal(t, []string{fleet.UnknownChain}, kinds(f.Problems))
	b, err := json.Marshal(f)
	require.NoError(t, err)
	require.Contains(t, string(b), `"instances":[]`)
}

func TestNobodyAlive(t *testing.T) {
	w := setup(t)
	w.chainRow("a", time.Hour, time.Hour)
	w.lost("a", 0, 1, 1000)
	f, err := fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.Equal(t, []string{fleet.NobodyAlive}, kinds(f.Problems))
	require.Regexp(t, `no instance is connected: .*; 1 instance did not stop, last heard of \d+\w+ ago`, f.Problems[0].Text)
	require.Equal(t, 2520, f.Slots.Dead)
	require.Equal(t, 2520, f.Slots.Unserved)
	require.Equal(t, fleet.Dead, f.Instances[0].State)
	require.False(t, f.Leader.Held)
}

func TestAlivenessFollowsTheSession(t *testing.T) {
	w := setup(t)
	w.chainRow("a", 0, time.Hour)
	a := w.live("a", 0, 2, 1000)
	a.Lead()
	w.live("b", 1, 2, 1000)
	w.Seen("a", 2*time.Second, 20*time.Second)
	a.End()
	f, err := fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.False(t, f.Find("a").Alive)
	require.Equal(t, 1260, f.Slots.Dead)
	require.Equal(t, 1260, f.Slots.Served)
	require.False(t, f.Leader.Held)
	require.Less(t, f.Slots.Each[0].Unserved.Seconds(), 15.0,
		"since it last checked its slots, not since its last heartbeat")
	require.Equal(t, []string{fleet.Redundancy, fleet.NoLeader, fleet.UnservedSlots}, kinds(f.Problems),
		"a takeover takes seconds, and then one is missing")
}

func TestAdoptedFreeAndStandby(t *testing.T) {
	w := setup(t)
	w.chainRow("a", 0, 10*time.Minute)
	w.live("a", 0, 2, 1000).Lead()
	w.lost("b", 1, 2, 1000)
	w.live("standby", 0, 2, 1000)
	w.Own("a", 0, 2, 4, 1, 3) // 0, 2 and 4 went to standby
	w.Own("", 5)
	w.SlotsSince(2*time.Minute, 5)
	w.Died("b", 3*time.Minute)
	w.HandOver("standby", "a", 0)
	w.SlotsSince(20*time.Minute, 3)

	f, err := fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	a := f.Find("a")
	require.Equal(t, 1262, a.Slots)
	require.Equal(t, 2, a.Adopted)
	require.Equal(t, fleet.Standby, f.Find("standby").State)
	require.Equal(t, 2, f.Slots.Adopted)
	require.Equal(t, 1, f.Slots.Free)
	require.Equal(t, 1257, f.Slots.Dead)
	require.True(t, f.Slots.Each[3].Adopted)
	require.False(t, f.Slots.Each[5].Served)
	require.InDelta(t, 120, f.Slots.Each[5].Unserved.Seconds(), 30)
	require.InDelta(t, 180, f.Slots.Each[7].Unserved.Seconds(), 30)
	require.Equal(t, []string{fleet.UnservedSlots, fleet.Redundancy}, kinds(f.Problems),
		"that b is missing says why slots are adopted")
	require.Contains(t, f.Problems[0].Text, "1258 of 2520")
	require.Contains(t, f.Problems[0].Text, "last owned by b")
	require.EqualValues(t, 500, f.Chain.LowestCursor, "the free slot was left at block 500")
}

// Somebody else's session holds the leader lock than the row names.
func TestLeaderRowAndLockDisagree(t *testing.T) {
	w := setup(t)
	w.chainRow("a", 0, time.Hour)
	w.live("a", 0, 2, 1000)
	w.live("b", 1, 2, 1000).Lead()
	f, err := fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.True(t, f.Leader.Held)
	require.False(t, f.Leader.Valid)
	require.True(t, f.Find("b").Leader)
}

func TestProblems(t *testing.T) {
	w := setup(t)
	w.chainRow("a", 3*time.Minute, time.Hour)
	w.live("a", 0, 2, 1000).Lead()
	w.live("b", 1, 3, 9000)
	w.Own("a", 3, 5)
	w.HandOver("", "a", time.Hour)
	w.Exec(`update relayer_instances set last_heartbeat = now() - interval '6 minutes',
		started_at = now() - interval '2 hours'`)
	w.Exec(`insert into instance_health values ($1, 'a', now() - interval '6 minutes', now() - interval '7 minutes', 'node: gone')`, chain)
	w.Exec(`update cursors set block_time = '2026-11-24 12:20:00Z' where instance_id = 'b'`)
	w.Exec(`update leadership set block_time = '2026-11-24 12:00:01Z'`) // some blocks, 19:59 of the chain
	f, err := fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.NotContains(t, kinds(f.Problems), fleet.FactoryBehind)
	w.Exec(`update leadership set block_time = '2026-11-24 12:00:00Z'`)
	w.Queues(testfleet.Message{Slot: 1, Waits: 6 * time.Minute})
	w.Finds(testfleet.Escrow{Address: "one", Slot: 5, Block: 5, Late: true, Found: 11 * time.Minute})
	w.Exec(`update relayer_instances set settings = jsonb_build_object('stream', jsonb_build_object(
		'ORDERING_KEY', case when instance_id = 'a' then 'slot' else 'escrow' end))`)
	f, err = fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.Equal(t, []string{
		fleet.HungLeader, fleet.OldOutbox, fleet.Standing, fleet.StaleHeartbeat, fleet.FactoryBehind, fleet.StaleHeartbeat,
		fleet.LateEscrows, fleet.AdoptedSlots, fleet.MixedTotals, fleet.MixedSettings,
	}, kinds(f.Problems))
	for _, p := range f.Problems {
		require.NotEmpty(t, p.Text)
		require.NotEmpty(t, p.Remedy)
	}
}

func TestLongDeadAreForgotten(t *testing.T) {
	w := setup(t)
	w.chainRow("a", 0, time.Hour)
	w.live("a", 0, 1, 1000).Lead()
	for _, id := range []string{"old", "older"} {
		w.Gone(id, 0, 1, false, 25*time.Hour)
	}

	w.Own("older", 9)
	f, err := fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.Nil(t, f.Find("old"))
	require.NotNil(t, f.Find("older"), "it owns a slot")
}

// Of the log waits what is behind the place up to which its slot is sent.
func TestLogIsCountedBySlot(t *testing.T) {
	w := setup(t)
	w.chainRow("a", 0, time.Hour)
	w.live("a", 0, 2, 1005).Lead()
	w.live("b", 1, 2, 1005)
	for slot, sent := range map[int16]int32{0: 1, 3: 0, 4: -1, 2519: 1} {
		first := 10 * int32(slot)
		w.Exec(`update slot_ownership set sent_block = 50, sent_index = $3 where chain_id = $1 and slot = $2`, chain, slot,
			first+sent)
		for index := first; index < first+2; index++ {
			w.Stores(testfleet.Event{ID: fmt.Sprint("e", index), Type: "Approved", Escrow: "e", Slot: slot, Block: 50,
				Index: index})
		}
	}

	w.Exec(`update events set apart = false`)
	f, err := fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.Equal(t, 2, f.Find("a").Outbox, "both of slot 4")
	require.Equal(t, 1, f.Find("b").Outbox, "one of slot 3")
	require.EqualValues(t, 3, f.Outbox.Messages)
}

func TestDeepOutboxIsCountedSoFar(t *testing.T) {
	w := setup(t)
	w.Exec(`insert into outbox_messages (chain_id, slot, escrow, event_id, event_type)
		select $1, s % 2520, 'e', s::text, 'Approved' from generate_series(1, 20001) s`, chain)
	f, err := fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.True(t, f.Outbox.More)
	require.EqualValues(t, 20000, f.Outbox.Messages)
}

func TestReaderCountsTheRegistryNowAndThen(t *testing.T) {
	w := setup(t)
	add := func(address string) {
		w.Finds(testfleet.Escrow{Address: address, Slot: 1, Block: 1, Late: true})
	}
	add("one")
	r := fleet.NewReader(w.DB, chain)
	read := func(counted time.Duration) fleet.Fleet {
		next, err := r.Once(t.Context(), counted)
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), next.At, time.Minute)

		return next.Fleet
	}
	require.EqualValues(t, 1, read(time.Hour).Escrows.Active)
	add("two")
	f := read(0)
	require.EqualValues(t, 1, f.Escrows.Active)
	require.EqualValues(t, 2, f.Late.Escrows, "the rest is always fresh")
	require.EqualValues(t, 2, read(time.Hour).Escrows.Active)
}

func TestAgesAreSecondsInJSON(t *testing.T) {
	t.Parallel()
	b, err := json.Marshal(fleet.Outbox{OldestAge: fleet.Age(1500 * time.Millisecond)})
	require.NoError(t, err)
	require.JSONEq(t, `{"messages":0,"more":false,"oldest_age_seconds":1.5}`, string(b))
	var back fleet.Outbox
	require.NoError(t, json.Unmarshal(b, &back))
	require.Equal(t, fleet.Age(1500*time.Millisecond), back.OldestAge)
}

func TestAgesAreShortForPeople(t *testing.T) {
	t.Parallel()
	for want, age := range map[string]time.Duration{
		"0s": 0, "59s": 59999 * time.Millisecond, "3m 09s": 189 * time.Second, "59m": time.Hour - 1, "4h 05m": 4*time.Hour +
			5*time.Minute, "3d 4h": 76 * time.Hour,
	} {
		require.Equal(t, want, fleet.Age(age).String())
	}
}

// What died is missed at once; what stopped cleanly is given the time of a restart, and then leaves
// the list; nobody misses what was replaced.
func TestWhoShouldBeThere(t *testing.T) {
	w := setup(t)
	w.chainRow("a", 0, time.Hour)
	w.live("a", 0, 3, 1000).Lead()
	w.live("b", 1, 3, 1000)
	w.lost("died", 2, 3, 1000)
	w.Own("a", testfleet.Preferred(2, 3)...)
	w.Died("died", time.Second)
	w.Gone("before the resize", 3, 5, false, 2*time.Hour)
	w.Gone("a's predecessor", 0, 3, false, 2*time.Hour)
	w.Gone("stopped", 1, 3, true, time.Minute)
	w.Gone("stopped long ago", 1, 3, true, 16*time.Minute)

	read := func() fleet.Fleet {
		f, err := fleet.Read(t.Context(), w.DB, chain)
		require.NoError(t, err)
		return f
	}
	f := read()
	require.Equal(t, 2, f.Live())
	require.Equal(t, 3, f.Expected())
	for id, want := range map[string]fleet.State{
		"died": fleet.Dead, "before the resize": fleet.Replaced, "a's predecessor": fleet.Replaced, "stopped": fleet.Stopped,
	} {
		require.Equal(t, want, f.Find(id).State, id)
	}

	require.Nil(t, f.Find("stopped long ago"))
	require.Equal(t, []string{fleet.Redundancy}, kinds(f.Problems))
	require.Contains(t, f.Problems[0].Text,
		"partition 2 has no live instance: 2 of 3 partitions have one, and 840 slots are served by an instance that stands in")
	require.Equal(t, fleet.Warning, f.Problems[0].Severity)

	w.LeftWhenItDied("died")
	f = read()
	require.Equal(t, 2, f.Expected())
	require.Equal(t, []string{fleet.Redundancy}, kinds(f.Problems))
	require.Equal(t, fleet.Notice, f.Problems[0].Severity, "it stopped a second ago, and may be restarting")
	w.Left("died", 3*time.Minute)
	f = read()
	require.Equal(t, []string{fleet.Redundancy}, kinds(f.Problems))
	require.Equal(t, fleet.Warning, f.Problems[0].Severity)
}

// A live instance that does not check its slots holds its lock, and is not alive.
func TestHung(t *testing.T) {
	w := setup(t)
	w.chainRow("a", 0, time.Hour)
	w.live("a", 0, 1, 1000).Lead()
	w.Seen("a", 21*time.Second, 25*time.Second)
	f, err := fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.Equal(t, fleet.Hung, f.Find("a").State)
	require.Zero(t, f.Live())
	require.InDelta(t, 21, f.Find("a").DeadFor.Seconds(), 10, "it lived when it last wrote anything")
}

func TestStartBlockInTheFuture(t *testing.T) {
	w := setup(t)
	w.chainRow("a", 0, time.Hour)
	w.live("a", 0, 1, 99_000).Lead()
	w.Exec(`update leadership set start_block = 99000, next_block = 99000`)
	f, err := fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.Equal(t, []string{fleet.FutureStart}, kinds(f.Problems))
	require.Contains(t, f.Problems[0].Text, "START_BLOCK 99000 is 97990 blocks above the head 1010")
	require.EqualValues(t, 1010, f.Chain.Head)
}

// A heartbeat is up to 30 s old: what was processed since is there.
func TestHeadIsNeverBelowACursor(t *testing.T) {
	w := setup(t)
	w.chainRow("a", 0, time.Hour)
	w.live("a", 0, 1, 1020).Lead()
	f, err := fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.EqualValues(t, 1019, f.Chain.Head)
	require.EqualValues(t, 1019, f.Find("a").Head)
}

// A finding is told while it is open, or for an hour.
func TestFindingsAreTold(t *testing.T) {
	w := setup(t)
	w.chainRow("a", 0, time.Hour)
	w.live("a", 0, 1, 1000).Lead()
	for kind, ago := range map[string]string{"undecodable_event": "2 days", "deep_reorg": "59 minutes",
		"missing_event": "61 minutes"} {
		w.Exec(`insert into findings (chain_id, kind, block_number, events, found_at)
			values ($1, $2, 7, 3, now() - $3::interval)`, chain, kind, ago)
	}

	f, err := fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.Equal(t, []string{fleet.DeepReorg, fleet.UnknownEvents}, kinds(f.Problems))
	require.Contains(t, f.Problems[0].Text, "3 stored events were retracted: a reorganisation below FINALITY, since ")
	require.Equal(t, "Events were published wrongly, or not: act now", fleet.Headline(f.Problems))
	for _, p := range f.Problems {
		require.Equal(t, fleet.Critical, p.Severity)
	}

	w.Exec(`update relayer_instances set settings = '{"stream": {"FINALITY": "latest"}}'`)
	f, err = fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.Equal(t, []string{fleet.UnknownEvents}, kinds(f.Problems), "who chose FINALITY=latest expects reorganisations")
}

// Two versions are a rollout, and after an hour one that stopped half way.
func TestMixedVersions(t *testing.T) {
	w := setup(t)
	w.chainRow("a", 0, time.Hour)
	w.live("a", 0, 2, 1000).Lead()
	w.live("b", 1, 2, 1000)
	w.Exec(`update relayer_instances set started_at = now() - interval '61 minutes', version = instance_id`)
	f, err := fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.Equal(t, []string{fleet.MixedVersions}, kinds(f.Problems))
	w.Exec(`update relayer_instances set started_at = now() where instance_id = 'b'`)
	f, err = fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.Empty(t, f.Problems)
}

// What an instance alone knows: its blocks are one endpoint's word though there are two, and are not read again.
func TestWhatAnInstanceAloneKnows(t *testing.T) {
	t.Parallel()
	now := time.Now()
	seen := &fleet.Reading{Fleet: fleet.Fleet{Chain: fleet.Chain{Verified: 1}}, At: now}
	s := fleet.Sight{Read: seen, Now: now, Self: &fleet.Self{
		Trust: "believed", Final: 1002, Endpoints: []fleet.Endpoint{{Up: true}, {Up: true}}}}
	require.Equal(t, []string{fleet.Believed, fleet.Unverified}, kinds(s.Judge()), "1,001 blocks of 12 s")
	s.Self.Final, s.Self.Endpoints = 1001, s.Self.Endpoints[:1]
	require.Empty(t, s.Judge())
}

// Each kind of problem has its page, and the page has the section.
func TestRunbooksOfProblems(t *testing.T) {
	t.Parallel()
	for kind, about := range fleet.Kinds {
		page, section, _ := strings.Cut(path.Base(about.Page), "#")
		text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "runbooks", page))
		require.NoError(t, err, kind)
		if section != "" {
			require.Contains(t, strings.ToLower(string(text)), "\n## "+section+"\n", "%s: %s", kind, about.Page)
		}
	}
}

// An instance that has its session and writes nothing is no reason to start another one; a database that is
// read-only for everybody is named at once.
func TestADatabaseThatTakesNothing(t *testing.T) {
	w := setup(t)
	w.chainRow("a", 0, time.Hour)
	w.live("a", 0, 1, 1000).Lead()
	w.Seen("a", 40*time.Second, 40*time.Second)
	f, err := fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.Equal(t, []string{fleet.DatabaseRefuses}, kinds(f.Problems))
	require.Contains(t, f.Problems[0].Text, "1 instance connected, and none writes: the database refuses")
	require.NotContains(t, f.Problems[0].Remedy, "start an instance")

	w.Exec(`do $$ begin execute 'alter database ' || quote_ident(current_database()) || ' set default_transaction_read_only = on'; end $$`)
	w.DB.Reset()
	f, err = fleet.Read(t.Context(), w.DB, chain)
	require.NoError(t, err)
	require.True(t, f.ReadOnly)
	require.Equal(t, []string{fleet.ReadOnly}, kinds(f.Problems))
}

// No instance has nodes that let it go on: nothing is read any more, whatever else is well. It is said at once,
// and by how long it has been so; one instance that can go on means that the fleet copes.
func TestNoNodeAnywhere(t *testing.T) {
	w := setup(t)
	w.chainRow("a", 0, time.Hour)
	w.live("a", 0, 2, 1005).Lead()
	w.live("b", 1, 2, 1004)
	stuck := func(id, ago string) {
		w.Exec(`update relayer_instances set able_since = null, stuck_since = now() - $2::interval where instance_id = $1`, id, ago)
	}
	judged := func() []fleet.Problem {
		f, err := fleet.Read(t.Context(), w.DB, chain)
		require.NoError(t, err)

		return f.Problems
	}
	stuck("a", "10 minutes")
	require.Empty(t, judged())
	for ago, want := range map[string]struct {
		severity fleet.Severity
		headline string
	}{
		"3 seconds":  {fleet.Notice, "Nothing new is stored: this may end within seconds"},
		"40 seconds": {fleet.Warning, "Nothing new is stored: act today"},
		"3 minutes":  {fleet.Critical, "Nothing new is stored: act now"},
	} {
		stuck("b", ago)
		problems := judged()
		require.Equal(t, []string{fleet.NoNode}, kinds(problems))
		require.Equal(t, want.severity, problems[0].Severity)
		require.Equal(t, want.headline, fleet.Headline(problems))
	}
}
