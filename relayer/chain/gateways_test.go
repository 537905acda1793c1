package chain_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain"
)

// machine is one of several behind a gateway's URL. It answers null for a block that it does not
// have, and an empty list for that block's logs, as many nodes do.
type machine struct {
	head   uint64 // its newest block
	oldest uint64 // the oldest that it keeps
	blind  bool   // its headers have bloom filters without any bits
	stray  uint64 // from this block on its blocks are of a branch that the chain has left; zero: none are
}

func (m machine) has(block uint64) bool { return m.oldest <= block && block <= m.head }

// gateway is one URL in front of machines that are not equal. Each block of its chain has one log of
// the wanted topic, and logs of others that fill its bloom filter.
type gateway struct {
	machines []machine
	// route is called once per request, with the methods of its items and how often its first item has been asked for
	// before, and says which machine answers which item, from zero. How requests for several blocks, and for the head,
	// come to lie between each other is up to the clock: who counts all of them says nothing of one of them.
	route func(asked int, methods []string) (machine func(item int) int)
	final uint64
	bloom func(block uint64) types.Bloom // nil: the real one
	nulls bool                           // no logs are null, not an empty list
	alone bool                           // it takes no batches

	requests atomic.Int64
	asked    sync.Map // how often each item has been asked for: an *atomic.Int64
}

var wantedTopic = common.Hash{0xa}

func wanted() *chain.Filter { return &chain.Filter{Topics: []common.Hash{wantedTopic}} }

func blockHash(n uint64) common.Hash {
	return crypto.Keccak256Hash(binary.BigEndian.AppendUint64(nil, n))
}

// hash of a block, as the machine has it.
func (m machine) hash(n uint64) common.Hash {
	if m.stray == 0 || n < m.stray {
		return blockHash(n)
	}

	return crypto.Keccak256Hash(binary.BigEndian.AppendUint64([]byte("stray"), n))
}

// logsIn are all logs of a block, the wanted one first.
func logsIn(n uint64) []*types.Log {
	var logs []*types.Log
	for i := range uint(120) {
		l := &types.Log{Address: common.Address{0xe, byte(i)}, Topics: []common.Hash{wantedTopic}, BlockNumber: n,
			BlockHash: blockHash(n), BlockTimestamp: 1_700_000_000 + n, TxHash: common.Hash{0x77, byte(i)}, Index: i}
		if i > 0 {
			l.Topics = []common.Hash{crypto.Keccak256Hash([]byte{byte(i), byte(n), 0}),
				crypto.Keccak256Hash([]byte{byte(i), byte(n), 1})}
		}

		logs = append(logs, l)
	}

	return logs
}

func (g *gateway) header(n uint64, m machine) any {
	if !m.has(n) {
		return nil
	}

	var bloom types.Bloom
	switch {
	case m.blind:
	case g.bloom != nil:
		bloom = g.bloom(n)
	default:
		bloom = types.CreateBloom(&types.Receipt{Logs: logsIn(n)})
	}

	h := map[string]any{"number": hexutil.Uint64(n), "hash": m.hash(n), "timestamp": hexutil.Uint64(1_700_000_000 + n),
		"parentHash": common.Hash{}, "logsBloom": bloom, "gasUsed": hexutil.Uint64(1_000_000),
		"transactions": []common.Hash{{0x77}}}
	if n > 0 {
		h["parentHash"] = m.hash(n - 1)
	}

	return h
}

func (g *gateway) byHash(raw json.RawMessage, m machine) uint64 {
	var hash common.Hash
	_ = json.Unmarshal(raw, &hash)
	for n := range g.machines[0].head + 1 {
		if m.hash(n) == hash {
			return n
		}
	}

	return 1 << 60
}

func (g *gateway) answer(m machine, method string, params []json.RawMessage) any {
	switch method {
	case "eth_chainId":
		return "0x1"
	case "eth_getBlockByNumber":
		var tag string
		_ = json.Unmarshal(params[0], &tag)
		switch tag {
		case "latest":
			return g.header(m.head, m)
		case "finalized", "safe":
			return g.header(min(g.final, m.head), m)
		}

		return g.header(hexutil.MustDecodeUint64(tag), m)
	case "eth_getBlockByHash":
		return g.header(g.byHash(params[0], m), m)
	case "eth_getLogs":
		return g.logs(m, params[0])
	case "eth_getBlockReceipts":
		n := g.byHash(params[0], m)
		if !m.has(n) {
			return nil
		}

		return []map[string]any{{"blockHash": m.hash(n), "logs": logsIn(n)}}
	}

	return nil
}

func (g *gateway) logs(m machine, raw json.RawMessage) any {
	var q struct {
		FromBlock, ToBlock hexutil.Uint64
		BlockHash          json.RawMessage
		Topics             [][]common.Hash
		Address            []common.Address
	}
	_ = json.Unmarshal(raw, &q)
	from, to := uint64(q.FromBlock), uint64(q.ToBlock)
	if q.BlockHash != nil {
		from = g.byHash(q.BlockHash, m)
		to = from
	}

	logs := []*types.Log{}
	for n := from; n <= to; n++ {
		if !m.has(n) {
			continue
		}

		all := logsIn(n)
		for _, l := range all {
			l.BlockHash = m.hash(n)
		}

		if len(q.Topics) > 0 {
			all = slices.DeleteFunc(all, func(l *types.Log) bool { return !slices.Contains(q.Topics[0], l.Topics[0]) })
		}

		if q.Address != nil {
			all = slices.DeleteFunc(all, func(l *types.Log) bool { return !slices.Contains(q.Address, l.Address) })
		}

		logs = append(logs, all...)
	}

	if len(logs) == 0 && g.nulls {
		return nil
	}

	return logs
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	type item struct {
		ID     json.RawMessage   `json:"id"`
		Method string            `json:"method"`
		Params []json.RawMessage `json:"params"`
	}
	body, _ := io.ReadAll(r.Body)
	var items []item
	single := json.Unmarshal(body, &items) != nil
	if single {
		items = make([]item, 1)
		_ = json.Unmarshal(body, &items[0])
	}

	if g.alone && !single {
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"batches are not allowed"}}`)
		return
	}

	g.requests.Add(1)
	methods := make([]string, len(items))
	for i, it := range items {
		methods[i] = it.Method
	}

	asked, _ := g.asked.LoadOrStore(fmt.Sprintf("%s%s", items[0].Method, items[0].Params), new(atomic.Int64))
	answers, route := make([]any, len(items)), g.route(int(asked.(*atomic.Int64).Add(1))-1, methods)
	for i, it := range items {
		m := g.machines[route(i)]
		answers[i] = map[string]any{"jsonrpc": "2.0", "id": it.ID, "result": g.answer(m, it.Method, it.Params)}
	}

	var out any = answers
	if single {
		out = answers[0]
	}

	_ = json.NewEncoder(w).Encode(out)
}

// open starts a Source that reads through a gateway, and waits until it knows the head.
func (g *gateway) open(t *testing.T, cfg chain.Config) *chain.Source {
	t.Helper()
	server := httptest.NewServer(g)
	cfg.URLs, cfg.ChainID, cfg.Timeout = []string{server.URL}, 1, time.Minute // on a busy machine, too
	s := chain.New(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		server.Close()
	})
	for {
		changed := s.Changed()
		if s.View().Head == g.machines[0].head {
			return s
		}

		select {
		case <-changed:
		case <-time.After(time.Minute):
			require.FailNow(t, "the head has not become known")
		}
	}
}

// readAll reads blocks from..to as a watch does: on from where a reading ended, until all are read. It returns the
// numbers of the blocks whose log was found, and how many readings it took.
func readAll(t *testing.T, s *chain.Source, from, to uint64) (found []uint64, readings int) {
	t.Helper()
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	var last error
	for ; from <= to; readings++ {
		require.Less(t, readings, 1000, "blocks from %d on are not read, the last reading says: %v", from, last)
		for b, err := range s.Read(t.Context(), from, to, wanted()) {
			if err != nil {
				last = err
				<-pause.C

				break
			}

			for i := range b.Logs {
				found = append(found, b.Logs[i].BlockNumber)
			}

			from = b.To + 1
		}
	}

	return found, readings
}

func numbers(from, to uint64) (list []uint64) {
	for n := from; n <= to; n++ {
		list = append(list, n)
	}

	return list
}

// index of the second machine, or of the first.
func index(second bool) int {
	if second {
		return 1
	}

	return 0
}

// always sends a whole request to one machine.
func always(machine int) func(int) int { return func(int) int { return machine } }

// bySecond sends every second request that asks for logs to the second machine, and all others to the first.
func bySecond() func(int, []string) func(int) int {
	var asked atomic.Int64

	return func(_ int, methods []string) func(int) int {
		if !slices.Contains(methods, "eth_getLogs") {
			return always(0)
		}

		return always(int(asked.Add(1) % 2))
	}
}

// onceBySecond sends the first request that asks for logs to the second machine, and all others to the first.
func onceBySecond() func(int, []string) func(int) int {
	var asked atomic.Bool

	return func(_ int, methods []string) func(int) int {
		return always(index(slices.Contains(methods, "eth_getLogs") && !asked.Swap(true)))
	}
}

// A gateway may hand each item of a batch to another machine. The headers that have come are kept,
// and only the others asked for again: all 32 at once come by luck only. The same is so of the
// batches for a longer way.
func TestHeadersFromSeveralMachinesAddUp(t *testing.T) {
	for name, test := range map[string]struct {
		perItem int
		from    uint64
	}{"each item to another machine": {1, 69}, "each request to another machine": {0, 21}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var batches atomic.Int64
			g := &gateway{machines: []machine{{head: 200}, {head: test.from}}, final: 20}
			g.route = func(_ int, methods []string) func(int) int {
				if len(methods) <= 2 { // the head, the tags, and single blocks
					return always(0)
				}

				batch := int(batches.Add(1))

				return func(item int) int { return (batch + item*test.perItem) % 2 }
			}
			s := g.open(t, chain.Config{Finality: chain.Latest})
			found, readings := readAll(t, s, test.from, test.from+31)
			require.Equal(t, numbers(test.from, test.from+31), found)
			require.Equal(t, 1, readings)
			require.Less(t, batches.Load(), int64(32), "requests for headers: as many as the blocks, and none is kept")
		})
	}
}

// Behind a gateway the answer that a block is not there is one machine's. Another has it: to ask
// again costs one request, to begin the reading anew costs a pause and the blocks behind.
func TestBlockIsAskedForAgainAtOnce(t *testing.T) {
	t.Parallel()
	g := &gateway{machines: []machine{{head: 100}, {head: 80}}, final: 20}
	g.route = func(asked int, _ []string) func(int) int { return always(index(asked == 0)) }
	s := g.open(t, chain.Config{Finality: chain.Latest})
	found, readings := readAll(t, s, 81, 100)
	require.Equal(t, numbers(81, 100), found)
	require.Equal(t, 1, readings)
}

// A machine that is far behind, as after a restart, has thrown nothing away: the others of its URL
// are asked on.
func TestMachineFarBehindLosesNoHistory(t *testing.T) {
	g := &gateway{machines: []machine{{head: 600}, {head: 300}}, final: 590, route: onceBySecond()}
	s := g.open(t, chain.Config{Finality: chain.Confirmations, Confirmations: 3})
	found, _ := readAll(t, s, 301, 350)
	require.Equal(t, numbers(301, 350), found)
}

// A machine without the older blocks gives the logs of the newer part of a range, and has the range's
// last header. That another machine of the URL has the first one says nothing about these logs.
func TestPrunedMachineBehindAGateway(t *testing.T) {
	g := &gateway{machines: []machine{{head: 500}, {head: 500, oldest: 30}}, final: 490, route: onceBySecond()}
	s := g.open(t, chain.Config{Finality: chain.Confirmations, Confirmations: 3})
	found, _ := readAll(t, s, 1, 50) // in one range
	require.Equal(t, numbers(1, 50), found)
}

// Where bloom filters say nothing, the header of a block proves nothing of the logs that came with
// it: a gateway may have asked another machine for it. No block counts as empty that no machine has
// shown to be.
func TestEmptyLogsBehindAGatewayByItem(t *testing.T) {
	empty := func(uint64) types.Bloom { return types.Bloom{} }
	full := func(uint64) types.Bloom { return types.Bloom(bytes.Repeat([]byte{0xff}, types.BloomByteLength)) }
	for name, bloom := range map[string]func(uint64) types.Bloom{
		"empty bloom filters": empty, "full bloom filters": full,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := &gateway{machines: []machine{{head: 100}, {head: 90}}, final: 20, bloom: bloom}
			g.route = func(_ int, methods []string) func(int) int {
				return func(item int) int { return index(methods[item] == "eth_getLogs") }
			}
			noneIsEmpty(t, g)
		})
	}
}

// Receipts show what a machine that is behind does not have logs of, and that a block has none.
func TestReceiptsWhereBloomFiltersSayNothing(t *testing.T) {
	g := &gateway{machines: []machine{{head: 100, blind: true}, {head: 90}}, final: 20}
	g.route = func(_ int, methods []string) func(int) int {
		return func(item int) int { return index(methods[item] == "eth_getLogs") }
	}
	s := g.open(t, chain.Config{Finality: chain.Latest})
	for _, f := range []*chain.Filter{{Topics: []common.Hash{{0xdd}}}, wanted()} {
		next := uint64(95)
		for b, err := range s.Read(t.Context(), 95, 100, f) {
			require.NoError(t, err)
			require.Len(t, b.Logs, index(f.Topics[0] == wantedTopic))
			next = b.To + 1
		}

		require.EqualValues(t, 101, next)
	}
}

// Machines of one URL may run different software. A header without a bloom filter, where others have
// one, does not say that its block has no logs.
func TestOneMachineHasNoBloomFilters(t *testing.T) {
	t.Parallel()
	g := &gateway{machines: []machine{{head: 100, blind: true}, {head: 90}}, final: 20}
	g.route = func(_ int, methods []string) func(int) int {
		first := g.requests.Load() <= 4
		return func(item int) int { return index(first || methods[item] == "eth_getLogs") }
	}
	noneIsEmpty(t, g)
}

// Where a filter names more contracts than a request may, its parts are answered by several machines.
// That one of them had logs proves nothing about the part of another.
func TestPartsOfAFilterFromSeveralMachines(t *testing.T) {
	byItem := func(_ int, methods []string) func(int) int {
		return func(item int) int { return index(methods[item] == "eth_getLogs" && item%2 == 1) }
	}
	for name, test := range map[string]struct {
		route    func(int, []string) func(int) int
		from, to uint64
		alone    bool // without batches
	}{
		"each item to another machine":                {byItem, 95, 100, false},
		"each request to another machine":             {bySecond(), 95, 100, false},
		"each request to another machine, no batches": {bySecond(), 95, 100, true},
		"final, each request to another machine":      {bySecond(), 11, 20, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := &gateway{machines: []machine{{head: 100}, {head: test.from - 1}}, final: 20, route: test.route,
				alone: test.alone}
			s := g.open(t, chain.Config{Finality: chain.Latest, MaxAddresses: 1})
			f := &chain.Filter{Addresses: []common.Address{{0xe, 5}, {0xe, 6}}}
			for b, err := range s.Read(t.Context(), test.from, test.to, f) {
				if err != nil {
					return // it does not say that there are none
				}

				require.Lenf(t, b.Logs, 2*int(b.To-b.From+1), "blocks %d to %d", b.From, b.To)
			}
		})
	}
}

// Some nodes say null where there are no logs (onflow/flow-evm-gateway#695, smartbch/smartbch#67). It
// proves as much as an empty list, and no less.
func TestNoLogsAreNull(t *testing.T) {
	t.Parallel()
	g := &gateway{machines: []machine{{head: 200}}, final: 100, nulls: true}
	g.route = func(int, []string) func(int) int { return always(0) }
	s := g.open(t, chain.Config{Finality: chain.Confirmations, Confirmations: 3})
	for _, f := range []*chain.Filter{{Topics: []common.Hash{{0xdd}}}, wanted()} {
		next, logs := uint64(1), 0
		for b, err := range s.Read(t.Context(), 1, 197, f) {
			require.NoError(t, err)
			next, logs = b.To+1, logs+len(b.Logs)
		}

		require.EqualValues(t, 198, next)
		require.Equal(t, 197*index(f.Topics[0] == wantedTopic), logs)
	}
}

// A machine that is behind may still be on a branch that the chain has left. Its header of a block
// is no reason to take back what was processed: a newer head is known, and leads to another.
func TestBranchOfAMachineThatIsBehind(t *testing.T) {
	g := &gateway{machines: []machine{{head: 120}, {head: 100, stray: 96}}, final: 20}
	var known atomic.Bool
	g.route = func(int, []string) func(int) int { return always(index(known.Load())) }
	s := g.open(t, chain.Config{Finality: chain.Confirmations, Confirmations: 3, PollInterval: 10 * time.Millisecond})
	readAll(t, s, 90, 117)
	known.Store(true) // from now on, the machine that is behind answers, also of the head
	for until := g.requests.Load() + 100; g.requests.Load() < until; {
		header, err := s.Canonical(t.Context(), 98, blockHash(98))
		if err == nil {
			require.Equal(t, blockHash(98), header.Hash)
		}

		for range s.Read(t.Context(), 99, 117, wanted()) { // what is remembered does not help for long
			continue
		}
	}

	known.Store(false)
	header, err := s.Canonical(t.Context(), 98, blockHash(98))
	require.NoError(t, err)
	require.Equal(t, blockHash(98), header.Hash)
}

// noneIsEmpty reads blocks that all have a wanted log, and that the machine which is asked for logs
// does not have. That they cannot be read is right; that they are empty is not.
func noneIsEmpty(t *testing.T, g *gateway) {
	t.Helper()
	s := g.open(t, chain.Config{Finality: chain.Latest})
	for b, err := range s.Read(t.Context(), 95, 100, wanted()) {
		if err != nil {
			return
		}

		require.NotEmptyf(t, b.Logs, "block %d", b.From)
	}
}

// Blocks of a branch that only a machine behind the others has are not read, though it answers a third
// of what is asked, and tells of its head as the newest; nor do they hold up those of the chain.
func TestStaleBranchOfAMachineIsNotRead(t *testing.T) {
	var asked atomic.Int64
	g := &gateway{machines: []machine{{head: 100}, {head: 98, stray: 97}}, final: 20,
		route: func(int, []string) func(int) int {
			return func(int) int { return index(asked.Add(1)%3 == 0) }
		}}
	s := g.open(t, chain.Config{Finality: chain.Confirmations, Confirmations: 3, PollInterval: 5 * time.Millisecond})
	for range 10 {
		news := s.Changed()
		for b, err := range s.Read(t.Context(), 90, 97, wanted()) {
			if err != nil {
				continue
			}

			require.Equal(t, blockHash(b.To), b.Last.Hash, "block %d", b.To)
		}

		readAll(t, s, 95, 97)
		select {
		case <-news:
		case <-time.After(10 * time.Millisecond):
		}
	}
}
