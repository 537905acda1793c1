package chain

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

var (
	topicA, topicB = common.Hash{0xa}, common.Hash{0xb}
	emitter        = common.Address{0xe}
)

// testChain is a chain that several nodes serve.
type testChain struct {
	headers []Header
	logs    map[common.Hash][]types.Log
	sealed  map[common.Hash]*sealed // by hash; nil: the blocks do not hash as Ethereum's do
}

// block is a block as a node gives it, with its transactions or their hashes.
func (c *testChain) block(h Header, whole bool) map[string]any {
	if b := c.sealed[h.Hash]; b != nil {
		return b.json(whole)
	}

	return blockJSON(h)
}

// newChain makes blocks 0..head, with a log of topic A in every one whose number divides by every.
// fork makes its hashes differ.
func newChain(head, every uint64, fork byte) *testChain {
	c := &testChain{logs: map[common.Hash][]types.Log{}}
	for range head + 1 {
		c.grow(every, fork)
	}

	return c
}

func (c *testChain) grow(every uint64, fork byte) {
	n := uint64(len(c.headers))
	h := Header{Number: n, Time: 1_700_000_000 + 12*n, Transactions: 1}
	h.Hash = crypto.Keccak256Hash([]byte{fork}, binary.BigEndian.AppendUint64(nil, n))
	if n > 0 {
		h.Parent = c.headers[n-1].Hash
	}

	if every > 0 && n%every == 0 {
		for i := range uint(2) {
			c.logs[h.Hash] = append(c.logs[h.Hash], types.Log{
				Address: emitter, Topics: []common.Hash{topicA, {1}}, Data: []byte{1, 2, 3}, BlockNumber: n, BlockHash: h.Hash,
				BlockTimestamp: h.Time,
				TxHash:         common.Hash{0x77, byte(n)}, Index: i,
			})
		}

		h.Bloom.Add(emitter[:])
		h.Bloom.Add(topicA[:])
		h.Bloom.Add(common.Hash{1}.Bytes())
	}

	c.headers = append(c.headers, h)
}

// crowd puts so many logs of others into each block, so that the bloom filters allow for nearly anything.
func (c *testChain) crowd(logs int) {
	for i := range c.headers {
		h := &c.headers[i]
		for j := range logs {
			l := types.Log{
				Address: common.Address{0xff, byte(i), byte(j)}, BlockNumber: h.Number, BlockHash: h.Hash, BlockTimestamp: h.Time,
				TxHash: common.Hash{0x99, byte(i)}, Index: uint(100 + j),
			}
			for k := range byte(3) {
				l.Topics = append(l.Topics, common.Hash{0xff, k, byte(i), byte(i >> 8), byte(j)})
				h.Bloom.Add(l.Topics[k].Bytes())
			}

			h.Bloom.Add(l.Address.Bytes())
			c.logs[h.Hash] = append(c.logs[h.Hash], l)
		}
	}
}

// matching are the logs of topic A.
func (c *testChain) matching(from, to uint64) []types.Log {
	return slices.DeleteFunc(c.all(from, to), func(l types.Log) bool { return l.Topics[0] != topicA })
}

// fork returns the chain with the blocks from n replaced, and one more.
func (c *testChain) fork(n, every uint64, mark byte) *testChain {
	f := &testChain{headers: slices.Clone(c.headers[:n]), logs: maps.Clone(c.logs)}
	for range uint64(len(c.headers)) - n + 1 {
		f.grow(every, mark)
	}

	return f
}

func (c *testChain) all(from, to uint64) []types.Log {
	logs := []types.Log{}
	for _, h := range c.headers[from : to+1] {
		logs = append(logs, c.logs[h.Hash]...)
	}

	return logs
}

// testNode serves a chain up to a head, and lies when told to.
type testNode struct {
	t      *testing.T
	server *httptest.Server

	mu        sync.Mutex
	chain     *testChain
	head      uint64
	chainID   uint64
	finalized uint64
	asked     map[string]int
	batches   [][]string                                                 // methods
	lie       func(method string, params []json.RawMessage) (any, error) // nil, nil: the truth
	http      func(w http.ResponseWriter, r *http.Request) bool
	sockets   map[*websocket.Conn]*sync.Mutex
	noBatch   bool
	receipts  bool                                        // it gives those of a block
	limit     func(body []byte, subscribed func()) []byte // answers over WebSocket; nil: serve
}

func startNode(t *testing.T, c *testChain) *testNode {
	n := &testNode{t: t, chain: c, head: uint64(len(c.headers) - 1), chainID: 1, asked: map[string]int{},
		sockets: map[*websocket.Conn]*sync.Mutex{}}
	n.server = httptest.NewServer(n)
	t.Cleanup(n.stop)

	return n
}

func (n *testNode) stop() {
	n.disconnect()
	n.server.CloseClientConnections()
	n.server.Close()
}

func (n *testNode) disconnect() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.sockets {
		_ = c.Close()
	}
}

func (n *testNode) set(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
}

func (n *testNode) count(method string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked[method]
}

func (n *testNode) ws() string { return "ws" + strings.TrimPrefix(n.server.URL, "http") }

type testRequest struct {
	ID     json.RawMessage   `json:"id"`
	Method string            `json:"method"`
	Params []json.RawMessage `json:"params"`
}

func (n *testNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	intercept := n.http
	n.mu.Unlock()
	if intercept != nil && intercept(w, r) {
		return
	}

	if websocket.IsWebSocketUpgrade(r) {
		n.socket(w, r)
		return
	}

	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}

	_, _ = w.Write(n.serve(body, nil))
}

func (n *testNode) socket(w http.ResponseWriter, r *http.Request) {
	u := websocket.Upgrader{}
	c, err := u.Upgrade(w, r, nil)
	if err != nil {
		return
	}

	write := &sync.Mutex{}
	subscribed := func() { n.set(func() { n.sockets[c] = write }) }
	n.set(func() { n.sockets[c] = nil })
	var wg sync.WaitGroup
	defer func() {
		n.set(func() { delete(n.sockets, c) })
		_ = c.Close()
		wg.Wait()
	}()
	for {
		_, body, err := c.ReadMessage()
		if err != nil {
			return
		}

		serve := n.serve
		n.set(func() {
			if n.limit != nil {
				serve = n.limit
			}
		})
		wg.Go(func() { // as nodes do, which read on while they work on an answer
			if answer := serve(body, subscribed); answer != nil {
				write.Lock()
				defer write.Unlock()
				_ = c.WriteMessage(websocket.TextMessage, answer)
			}
		})
	}
}

// announce sends the head to all subscribers.
func (n *testNode) announce() {
	n.mu.Lock()
	message := fmt.Appendf(nil,
		`{"jsonrpc":"2.0","method":"eth_subscription","params":{"subscription":"0x1","result":%s}}`,
		marshal(n.chain.block(n.chain.headers[n.head], false)))
	sockets := maps.Clone(n.sockets)
	n.mu.Unlock()
	for c, write := range sockets {
		if write != nil {
			write.Lock()
			_ = c.WriteMessage(websocket.TextMessage, message)
			write.Unlock()
		}
	}
}

func (n *testNode) serve(body []byte, subscribed func()) []byte {
	var batch []testRequest
	single := json.Unmarshal(body, &batch) != nil
	if single {
		batch = make([]testRequest, 1)
		if json.Unmarshal(body, &batch[0]) != nil {
			return []byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error"}}`)
		}
	}

	n.mu.Lock()
	refuse := !single && n.noBatch
	var names []string
	for _, r := range batch {
		names = append(names, r.Method)
	}

	n.batches = append(n.batches, names)
	n.mu.Unlock()
	if refuse {
		return []byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"batch requests are not supported"}}`)
	}

	var answers []string
	for _, r := range batch {
		n.mu.Lock()
		n.asked[r.Method]++
		lie := n.lie
		n.mu.Unlock()
		var result any
		var err error
		if lie != nil {
			result, err = lie(r.Method, r.Params)
		}

		if result == nil && err == nil {
			n.mu.Lock()
			result, err = n.answer(r.Method, r.Params)
			n.mu.Unlock()
		}

		if r.Method == rpc.Subscribe && err == nil {
			subscribed()
		}

		if err != nil {
			answers = append(answers, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":%q}}`, r.ID,
				err.Error()))
		} else {
			answers = append(answers, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, r.ID, marshal(result)))
		}
	}

	if single {
		return []byte(answers[0])
	}

	slices.Reverse(answers) // the order of a batch's answers is free

	return []byte("[" + strings.Join(answers, ",") + "]")
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}

	return b
}

func blockJSON(h Header) map[string]any {
	return map[string]any{
		"number": hexutil.Uint64(h.Number), "hash": h.Hash, "parentHash": h.Parent, "timestamp": hexutil.Uint64(h.Time),
		"logsBloom":    h.Bloom,
		"transactions": []string{`tricky "]}`}, "extraData": "0x",
	}
}

var null = json.RawMessage("null")

func (n *testNode) answer(method string, params []json.RawMessage) (any, error) {
	switch method {
	case rpc.ChainID:
		return hexutil.Uint64(n.chainID), nil
	case "eth_blockNumber":
		return hexutil.Uint64(n.head), nil
	case rpc.GetCode:
		return "0x00", nil
	case rpc.Subscribe:
		return "0x1", nil
	case rpc.GetByNumber:
		var tag string
		_ = json.Unmarshal(params[0], &tag)
		number := uint64(0)
		switch tag {
		case "latest", "safe":
			number = n.head
		case "finalized":
			number = n.finalized
		default:
			number = hexutil.MustDecodeUint64(tag)
		}

		if number > n.head {
			return null, nil
		}

		return n.chain.block(n.chain.headers[number], string(params[1]) == "true"), nil
	case rpc.GetByHash:
		var hash common.Hash
		_ = json.Unmarshal(params[0], &hash)
		for _, h := range n.chain.headers[:n.head+1] {
			if h.Hash == hash {
				return n.chain.block(h, string(params[1]) == "true"), nil
			}
		}

		return null, nil
	case rpc.GetLogs:
		return n.getLogs(params[0])
	case rpc.GetReceipts:
		if n.receipts {
			return n.getReceipts(params[0]), nil
		}
	}

	return nil, fmt.Errorf("the method %s does not exist", method)
}

// getReceipts answers null for a block that the node does not have.
func (n *testNode) getReceipts(p json.RawMessage) any {
	var hash common.Hash
	_ = json.Unmarshal(p, &hash)
	i := slices.IndexFunc(n.chain.headers[:n.head+1], func(h Header) bool { return h.Hash == hash })
	if i < 0 {
		return null
	}

	if b := n.chain.sealed[hash]; b != nil {
		return b.receipts
	}

	return []any{map[string]any{"blockHash": hash, "logs": append([]types.Log{}, n.chain.logs[hash]...)}}
}

// logQuery is the parameter of eth_getLogs.
type logQuery struct {
	FromBlock, ToBlock hexutil.Uint64
	BlockHash          *common.Hash
	Topics             [][]common.Hash
	Address            []common.Address
}

func parseQuery(t *testing.T, p json.RawMessage) (q logQuery) {
	p = bytes.ReplaceAll(p, []byte(`"latest"`), []byte(`"0xffffffffffffffff"`))
	require.NoError(t, json.Unmarshal(p, &q))
	return q
}

// getLogs answers as the laxest nodes do: what it does not have, it has no logs of.
func (n *testNode) getLogs(p json.RawMessage) (any, error) {
	q := parseQuery(n.t, p)
	logs := []types.Log{}
	for _, h := range n.chain.headers[:n.head+1] {
		if q.BlockHash != nil && h.Hash != *q.BlockHash || q.BlockHash == nil &&
			(h.Number < uint64(q.FromBlock) || h.Number > uint64(q.ToBlock)) {
			continue
		}

		for _, l := range n.chain.logs[h.Hash] {
			if (len(q.Topics) == 0 || slices.Contains(q.Topics[0], l.Topics[0])) &&
				(q.Address == nil || slices.Contains(q.Address, l.Address)) {
				logs = append(logs, l)
			}
		}
	}

	return logs, nil
}
