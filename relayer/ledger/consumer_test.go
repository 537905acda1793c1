package ledger_test

import (
	"cmp"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// Whatever the chain does, a consumer that keeps a set by event_id ends with the chain's events, in the chain's
// order, and gets nothing twice but what a crash or a deep reorganisation repeats. The chain is random: transactions
// of one to four logs, deployments of two escrows at once, approvals that release, reorganisations up to six deep
// that drop, repeat, reorder and shift transactions, back and forth. The leader and the owner lag behind each other,
// and the owner misses events; claims lower its cursor. The publisher sends some of what it may, does not hear of
// some of it, crashes, stops cleanly, and gives rows to keys that fail; escrows are replayed.
func TestConsumersEndWithTheChain(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			s := newStory(t, seed)
			for range 150 {
				s.step()
			}

			s.finish()
			s.judge()
			t.Log(s.tally())
		})
	}
}

// story is a chain, the ledger that follows it, and what was sent. It belongs to one goroutine.
type story struct {
	*world
	rnd   *rand.Rand
	chain []block // by number; the first is never reorganised
	born  int     // blocks made, for their hashes
	txs   int
	old   [][]block // branches that were left, for going back to

	book map[common.Address]bool // escrows that the owner looks for
	top  int64                   // the next block of the highest cursor ever, since the last rollback
	pub  publisher
	sent []sent

	missed map[common.Address]bool // events of these were left out by a first reading: they come late

	rolled, claimed                    int // times
	revived, replayed, moved, repaired int // events
}

type block struct {
	hash common.Hash
	txs  []transaction
}

// transaction is what its logs say; where they are the block says.
type transaction struct {
	hash  common.Hash
	noise int // logs of others before its own
	logs  []contract.Event
}

// sent is a message, of either topic.
type sent struct {
	id, content string
	stream      stream
	retraction  bool
}

// stream is what has an order: the events of an escrow on a topic.
type stream struct {
	escrow common.Address
	other  bool // OTHER_EVENTS_TOPIC_ID
}

func streamOf(e *contract.Event) stream {
	return stream{e.Escrow, !slices.Contains(contract.DefaultEvents, e.Name)}
}

func newStory(t *testing.T, seed uint64) *story {
	s := &story{world: setup(t), rnd: rand.New(rand.NewPCG(seed, 8)), book: map[common.Address]bool{},
		missed: map[common.Address]bool{}}
	if seed%2 == 1 { // everything is published
		s.led = ledger.New(ledger.Config{DB: s.DB, ChainID: chain, InstanceID: me, EventNames: names,
			Publishes: func(string) bool { return true }})
	}

	s.pub = publisher{box: outbox.Box{DB: s.DB, ChainID: chain, Owner: me, BySlot: seed%4 > 1},
		acked: map[contract.Place]logged{}, sure: map[string]bool{}}
	s.chain = []block{{}, s.newBlock(nil)}

	return s
}

func (s *story) head() int64 { return int64(len(s.chain)) - 1 }

func (s *story) newBlock(txs []transaction) block {
	s.born++
	return block{common.BigToHash(big.NewInt(int64(0xb10c<<32 + s.born))), txs}
}

// events are the logs of a block, decoded.
func (s *story) events(number int64) (all []contract.Event) {
	index := uint(0)
	for _, tx := range s.chain[number].txs {
		index += uint(tx.noise)
		for _, e := range tx.logs {
			e.BlockNumber, e.BlockHash, e.BlockTime, e.TxHash, e.LogIndex = uint64(number), s.chain[number].hash,
				uint64(1000+number), tx.hash, index
			if e.Name == "EscrowReleased" { // it says when: in another block it is another event
				e.Args = fmt.Appendf(nil, `{"payee":"%s","amount":"1000","timestamp":"%d"}`, account(0xbb), 1000+number)
			}

			all = append(all, e)
			index++
		}
	}

	return all
}

// deployed are the escrows of a branch.
func (s *story) deployed() (all []int) {
	seen := map[common.Address]bool{}
	for n := range s.chain {
		for _, e := range s.events(int64(n)) {
			seen[e.Escrow] = seen[e.Escrow] || e.Name == contract.Deployed
		}
	}

	for i := range 40 {
		if seen[escrow(i)] {
			all = append(all, i)
		}
	}

	return all
}

func (s *story) newTransaction() transaction {
	s.txs++
	tx := transaction{hash: common.BigToHash(big.NewInt(int64(1000 + s.txs))), noise: s.rnd.IntN(3)}
	there := s.deployed()
	creates := func(who int) []contract.Event {
		return []contract.Event{event("EscrowCreated", who, 0, 0, 0, `{"releaseTime":"5"}`), deployed(who, 0, 0, 0)}
	}
	free := slices.DeleteFunc(slices.Collect(func(yield func(int) bool) {
		for i := range 12 {
			if !yield(i) {
				return
			}
		}
	}), func(i int) bool { return slices.Contains(there, i) })
	switch kind := s.rnd.IntN(6); {
	case (kind == 0 || len(there) == 0) && len(free) > 0:
		tx.logs = creates(free[s.rnd.IntN(len(free))])
	case kind == 1 && len(free) > 1:
		tx.logs = append(creates(free[0]), creates(free[1])...)
	default:
		who := there[s.rnd.IntN(len(there))]
		tx.logs = []contract.Event{event("Approved", who, 0, 0, 0,
			fmt.Sprintf(`{"approver":"%s"}`, account(byte(s.rnd.IntN(3)))))}
		if kind == 2 {
			tx.logs = append(tx.logs, released(who, 0, 0, 0))
		}

		if kind == 3 {
			tx.logs = append(tx.logs, tx.logs[0])
		}
	}

	return tx
}

// mine adds a block of new transactions, and of those that wait and are possible.
func (s *story) mine(waiting []transaction) {
	s.chain = append(s.chain, s.newBlock(nil))
	tip := &s.chain[s.head()]
	for _, tx := range waiting {
		if s.possible(tx) {
			tx.noise = s.rnd.IntN(3)
			tip.txs = append(tip.txs, tx)
		}
	}

	for range s.rnd.IntN(3) {
		tip.txs = append(tip.txs, s.newTransaction())
	}
}

// possible reports whether a transaction can be mined now: its escrows are there, or are not if it
// deploys them, and it was not mined yet.
func (s *story) possible(tx transaction) bool {
	for _, b := range s.chain {
		if slices.ContainsFunc(b.txs, func(other transaction) bool { return other.hash == tx.hash }) {
			return false
		}
	}

	there := map[common.Address]bool{}
	for _, i := range s.deployed() {
		there[escrow(i)] = true
	}

	creates := tx.logs[0].Name == "EscrowCreated"
	for _, e := range tx.logs {
		if there[e.Escrow] == creates {
			return false
		}
	}

	return true
}

// reorganise takes blocks away and mines others in their place, or goes back to a branch that was
// left. Who has processed one of them rolls back.
func (s *story) reorganise() {
	if s.head() < 3 {
		return
	}

	fork := max(1, s.head()-int64(1+s.rnd.IntN(6)))
	gone := slices.Clone(s.chain[fork+1:])
	length := s.head()
	left := slices.Clone(s.chain)
	if back := s.backTo(fork); back != nil && s.rnd.IntN(2) == 0 {
		s.chain = back
	} else {
		var waiting []transaction
		for _, b := range gone {
			waiting = append(waiting, b.txs...)
		}

		switch s.rnd.IntN(3) {
		case 0:
			s.rnd.Shuffle(len(waiting), func(i, j int) { waiting[i], waiting[j] = waiting[j], waiting[i] })
		case 1:
			waiting = slices.DeleteFunc(waiting, func(transaction) bool { return s.rnd.IntN(3) == 0 })
		}

		s.chain = s.chain[: fork+1 : fork+1]
		for s.head() <= length {
			n := min(len(waiting), s.rnd.IntN(4))
			s.mine(waiting[:n])
			waiting = waiting[n:]
		}
	}

	s.old = append(s.old, left)

	if s.top-1 <= fork {
		return
	}

	stale := ledger.Position{Next: s.top, Hash: left[s.top-1].hash}
	r, err := s.led.Rollback(s.t.Context(), stale, ledger.Position{Next: fork + 1, Hash: s.chain[fork].hash})
	require.NoError(s.t, err)
	require.True(s.t, r.Done)
	s.rolled++
	s.top = fork + 1
	s.reload()
	s.loadBook()
	s.rewound(fork)
}

// backTo returns a branch that was left, that has the fork, and something else behind it.
func (s *story) backTo(fork int64) []block {
	for _, b := range s.old {
		if int64(len(b)) > s.head() && b[fork].hash == s.chain[fork].hash && b[fork+1].hash != s.chain[fork+1].hash {
			return slices.Clone(b)
		}
	}

	return nil
}

func (s *story) loadBook() {
	s.book = map[common.Address]bool{}
	require.NoError(s.t, registry.Load(s.t.Context(), s.DB, chain, allSlots(), s.slots.Next, 0,
		func(l registry.Loaded) { s.book[l.Address] = l.Block < s.slots.Next }))
}

func allSlots() []int16 {
	all := make([]int16, 2520)
	for i := range all {
		all[i] = int16(i)
	}

	return all
}

// lead commits the next block of the factory watch.
func (s *story) lead() {
	if s.fact.Next > s.head() {
		return
	}

	c := ledger.FactoryCommit{Epoch: s.epoch, From: s.fact, To: s.fact.To(s.fact.Next+1, s.chain[s.fact.Next].hash)}
	for _, e := range s.events(s.fact.Next) {
		if e.Name == contract.Deployed {
			c.Events = append(c.Events, e)
		}
	}

	_, err := s.led.CommitFactory(s.t.Context(), c)
	require.NoError(s.t, err)
	s.fact, s.top = c.To, max(s.top, c.To.Next)
}

// own commits the next block of the slot watch. Late escrows are caught up first; those that the block deploys join.
// Sometimes it does not see one of these, and the leader makes it late.
func (s *story) own() {
	for _, l := range s.late() {
		var missed []contract.Event
		for n := l.Next(); n < s.slots.Next; n++ {
			missed = append(missed, s.of(n, func(e *contract.Event) bool {
				first := int64(e.BlockNumber) == l.Block && int32(e.LogIndex) == l.LogIndex
				return e.Escrow == l.Address && (e.Name != contract.Deployed || first)
			})...)
		}

		s.commit(ledger.SlotCommit{From: s.slots, To: s.slots, Events: missed,
			Progress: []registry.Progress{{Address: l.Address, Monitored: s.slots.Next - 1, CaughtUp: true}}})
		s.book[l.Address] = true
	}

	if s.slots.Next > s.head() {
		return
	}

	c := ledger.SlotCommit{From: s.slots, To: s.slots.To(s.slots.Next+1, s.chain[s.slots.Next].hash)}
	joining := map[common.Address]bool{}
	if s.rnd.IntN(4) > 0 || s.fact.Next > s.slots.Next {
		deployed := s.of(s.slots.Next, func(e *contract.Event) bool { return e.Name == contract.Deployed })
		known, err := s.led.Known(s.t.Context(), deployed)
		require.NoError(s.t, err)
		for i := range deployed {
			r, is := known[deployed[i].Escrow]
			joining[deployed[i].Escrow] = !is || r.At == deployed[i].Place()
		}
	}

	c.Events = s.of(s.slots.Next, func(e *contract.Event) bool {
		joins, deploys := joining[e.Escrow]
		if e.Name == contract.Deployed {
			return deploys
		}

		if !joins && !s.book[e.Escrow] {
			return false
		}

		left := s.rnd.IntN(20) == 0
		s.missed[e.Escrow] = s.missed[e.Escrow] || left

		return !left
	})
	s.commit(c)
	for a, joins := range joining {
		s.book[a] = s.book[a] || joins
	}

	s.slots, s.top = c.To, max(s.top, c.To.Next)
}

// of are some events of a block, as they are published: each EscrowDeployed first.
func (s *story) of(number int64, ours func(*contract.Event) bool) (events []contract.Event) {
	for _, e := range s.events(number) {
		if ours(&e) {
			events = append(events, e)
		}
	}

	slices.SortStableFunc(events, func(a, b contract.Event) int {
		switch {
		case (a.Name == contract.Deployed) == (b.Name == contract.Deployed):
			return 0
		case a.Name == contract.Deployed:
			return -1
		default:
			return 1
		}
	})

	return events
}

func (s *story) commit(c ledger.SlotCommit) {
	c.Epoch = s.epoch
	r, err := s.led.CommitSlots(s.t.Context(), c)
	require.NoError(s.t, err)
	s.revived += r.Revived
}

func (s *story) send(p *outbox.Pending) {
	e := &p.Event
	require.NotEqual(s.t, common.Address{}, e.Factory, "%s of %s", e.Name, e.Escrow)
	require.False(s.t, s.pub.sure[e.ID()] && message.Kind(p.Kind) == message.Original, "%s of %s is sent again",
		e.Name, e.Escrow)
	s.sent = append(s.sent, sent{e.ID(), content(e), streamOf(e), message.Kind(p.Kind) == message.Retraction})
}

// content is what an event says, apart from the block that it is in.
func content(e *contract.Event) string {
	return fmt.Sprintf("%s %s of %s in %s at %d: %s", e.Name, e.Emitter, e.Escrow, e.TxHash, e.LogIndex, e.Args)
}

// replay has an escrow published once more, maybe one that its owner has yet to announce.
func (s *story) replay() {
	n, err := s.led.Replay(s.t.Context(), ledger.Selection{Escrow: escrow(s.rnd.IntN(12))}, nil)
	require.NoError(s.t, err)
	s.replayed += n
}

func (s *story) step() {
	switch n := s.rnd.IntN(30); {
	case n < 5:
		s.mine(nil)
	case n < 10:
		for range 1 + s.rnd.IntN(6) {
			s.lead()
		}
	case n < 15:
		for range 1 + s.rnd.IntN(6) {
			s.own()
		}
	case n < 20:
		s.publish(false)
	case n < 23:
		s.reorganise()
	case n < 24:
		s.replay()
	case n < 25:
		s.crash()
	case n < 26:
		s.stopCleanly()
	case n < 28:
		s.claim()
	case n < 29:
		s.settle(false)
	default:
		s.verify()
	}
}

// finish lets everybody come to the end.
func (s *story) finish() {
	for range 12 {
		s.mine(nil)
	}

	for range len(s.chain) {
		s.lead()
	}

	for range len(s.chain) {
		s.own()
	}

	s.verify()
	for range 2 { // what was acknowledged lets its retraction go
		s.publish(true)
		s.commit(ledger.SlotCommit{From: s.slots, To: s.slots})
	}

	s.publish(true)

	require.Empty(s.t, s.Column(`select event_id || ' ' || kind from outbox_messages`))
	require.Empty(s.t, s.Column(`select event_id from processed_events where state = 'orphaned'`))
}

// tally says what the story had in it.
func (s *story) tally() string {
	retractions, extended := 0, 0
	for _, m := range s.sent {
		if m.retraction {
			retractions++
		} else if strings.Count(m.id, ":") == 2 {
			extended++
		}
	}

	return fmt.Sprintf("%d blocks, %d rolled back, %d messages, %d of them retractions, %d under an extended id, %d events revived, %d replayed, "+
		"%d moved, %d repaired, %d claims", s.born, s.rolled, len(s.sent), retractions, extended, s.revived,
		s.replayed, s.moved,
		s.repaired, s.claimed)
}

// judge is the oracle.
func (s *story) judge() {
	var want, published []string
	order := map[stream][]string{} // what consumers have to keep
	for n := range s.chain {
		for _, e := range s.events(int64(n)) {
			c := content(&e)
			want = append(want, c)
			if s.told(e.Name) {
				published = append(published, c)
				of := streamOf(&e)
				if order[of] = append(order[of], c); e.Name == contract.Deployed {
					order[of] = append([]string{c}, order[of][:len(order[of])-1]...)
				}
			}
		}
	}

	stored, err := s.led.Stored(s.t.Context(), 0, 1<<40)
	require.NoError(s.t, err)
	var got []string
	for i := range stored {
		got = append(got, content(&stored[i]))
	}

	require.Equal(s.t, want, got, "stored")
	s.identities()

	for round := range 4 {
		kept, sequence := s.consume(s.interleave(round))
		slices.Sort(kept)
		slices.Sort(published)
		require.Equal(s.t, published, kept, "interleaving %d", round)
		for e, events := range sequence {
			if s.missed[e.escrow] {
				continue
			}

			require.Equal(s.t, order[e], events, "the order of %s", e.escrow)
		}
	}
}

func (s *story) told(name string) bool {
	return publishes(name) || s.t.Name()[len(s.t.Name())-1]%2 == 1
}

// identities: an id has one content, a retraction comes behind its event and once, and nothing is published behind it.
func (s *story) identities() {
	contents, dead := map[string]string{}, map[string]bool{}
	for _, m := range s.sent {
		known, ok := contents[m.id]
		require.True(s.t, ok || !m.retraction, "%s is retracted before it was published", m.id)
		require.True(s.t, !ok || known == m.content, "%s is %s, and was %s", m.id, m.content, known)
		require.False(s.t, dead[m.id] && !m.retraction, "%s is published behind its retraction", m.id)
		contents[m.id], dead[m.id] = m.content, dead[m.id] || m.retraction
	}
}

// interleave merges the two topics, each in its order: as they were sent, retractions first,
// retractions last, at random.
func (s *story) interleave(round int) []sent {
	if round == 0 {
		return s.sent
	}

	type keyed struct {
		sent
		key float64
	}
	var all []keyed
	at := [2]float64{}
	for _, m := range s.sent {
		topic := 0
		if m.retraction {
			topic = 1
		}

		switch round {
		case 1:
			at[0], at[1] = 1, 0
		case 2:
			at[0], at[1] = 0, 1
		default:
			at[topic] += s.rnd.Float64()
		}

		all = append(all, keyed{m, at[topic]})
	}

	slices.SortStableFunc(all, func(a, b keyed) int { return cmp.Compare(a.key, b.key) })
	merged := make([]sent, len(all))
	for i := range all {
		merged[i] = all[i].sent
	}

	return merged
}

// consume is a consumer with tombstones. It returns what it keeps, and that of each stream in the order in which it
// came.
func (s *story) consume(messages []sent) (kept []string, sequence map[stream][]string) {
	tombs, have := map[string]bool{}, map[string]sent{}
	var order []string
	for _, m := range messages {
		switch {
		case m.retraction:
			tombs[m.id] = true
			delete(have, m.id)
		case !tombs[m.id]:
			if _, ok := have[m.id]; !ok {
				have[m.id] = m
				order = append(order, m.id)
			}
		}
	}

	sequence = map[stream][]string{}
	for _, id := range order {
		if m, ok := have[id]; ok {
			kept = append(kept, m.content)
			sequence[m.stream] = append(sequence[m.stream], m.content)
		}
	}

	return kept, sequence
}
