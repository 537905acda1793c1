package faults

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
)

// chain is a simulated one of 20 blocks with logs, and a Node in front.
func chain(t *testing.T) (*testchain.Sim, *Node) {
	sim, d := testchain.NewContracts(t, testchain.Options{Seed: 3})
	traffic, err := testchain.NewTraffic(t.Context(),
		testchain.TrafficConfig{URL: sim.HTTP(), Deployment: d, Accounts: sim.Accounts()[1:], Seed: 3})
	require.NoError(t, err)
	defer traffic.Close()
	for range 16 {
		require.NoError(t, traffic.Step(t.Context(), 6))
		require.NoError(t, sim.Mine(t.Context(), 1))
	}

	n, err := NewNode(sim.HTTP(), sim.WS(), 3)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })

	return sim, n
}

type reply struct {
	status int
	retry  string
	body   string
}

func (r *reply) result(t *testing.T) json.RawMessage {
	t.Helper()
	var a response
	require.NoError(t, json.Unmarshal([]byte(r.body), &a), r.body)
	require.Nil(t, a.Error, string(a.Error))

	return a.Result
}

func (r *reply) logs(t *testing.T) (logs []types.Log) {
	t.Helper()
	require.NoError(t, json.Unmarshal(r.result(t), &logs))
	return logs
}

func post(t *testing.T, url, body string) (*reply, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)

	return &reply{resp.StatusCode, resp.Header.Get("Retry-After"), string(b)}, err
}

func ask(t *testing.T, n *Node, body string) *reply {
	t.Helper()
	r, err := post(t, n.HTTP(), body)
	require.NoError(t, err)

	return r
}

const (
	headQuestion = `{"jsonrpc":"2.0","id":7,"method":"eth_blockNumber","params":[]}`
	idQuestion   = `{"jsonrpc":"2.0","id":7,"method":"eth_chainId","params":[]}`
	logsQuestion = `{"jsonrpc":"2.0","id":7,"method":"eth_getLogs","params":[{"fromBlock":"0x0","toBlock":"0x1000"}]}`
	lateQuestion = `[{"jsonrpc":"2.0","id":1,"method":"eth_getBlockByNumber","params":["latest",false]},{"jsonrpc":"2.0","id":2,"method":"eth_getBlockByNumber","params":["0x8",false]}]`
)

func allLogs(t *testing.T, n *Node, head uint64) *reply {
	t.Helper()
	return ask(t, n, strings.Replace(logsQuestion, `"0x1000"`, hex(head), 1))
}

func head(t *testing.T, n *Node) uint64 {
	t.Helper()
	h, ok := unhex(ask(t, n, headQuestion).result(t))
	require.True(t, ok)

	return h
}

func TestTransportFaults(t *testing.T) {
	_, n := chain(t)
	honest := ask(t, n, headQuestion)
	for _, c := range []struct {
		fault Fault
		want  func(*reply)
	}{
		{Fault{Mode: Limited}, func(r *reply) { require.Equal(t, 429, r.status); require.Empty(t, r.retry) }},
		{Fault{Mode: Limited, Delay: 2 * time.Second},
			func(r *reply) { require.Equal(t, 429, r.status); require.Equal(t, "2", r.retry) }},
		{Fault{Mode: Failing}, func(r *reply) { require.GreaterOrEqual(t, r.status, 500) }},
		{Fault{Mode: Truncated}, func(r *reply) {
			require.Equal(t, 200, r.status)
			require.False(t, json.Valid([]byte(r.body)))
			require.True(t, strings.HasPrefix(honest.body, r.body))
		}},
		{Fault{Mode: Malformed}, func(r *reply) { require.False(t, json.Valid([]byte(r.body))) }},
		{Fault{Mode: HTML}, func(r *reply) { require.Equal(t, page, r.body) }},
	} {
		i := n.Inject(c.fault)
		c.want(ask(t, n, headQuestion))
		require.Equal(t, 1, i.Hits(), c.fault)
		i.Remove()
		require.Equal(t, honest, ask(t, n, headQuestion), c.fault)
		require.Equal(t, 1, i.Hits(), c.fault)
	}

	i := n.Inject(Fault{Mode: Down})
	_, err := post(t, n.HTTP(), headQuestion)
	require.Error(t, err)
	require.Equal(t, 1, i.Hits())
	i.Remove()
	require.Equal(t, 8, n.Requests("eth_blockNumber"),
		"those that reached the node: the honest ones, and the truncated one")
}

func TestSlow(t *testing.T) {
	_, n := chain(t)
	i := n.Inject(Fault{Mode: Slow, Delay: 200 * time.Millisecond})
	begun := time.Now()
	ask(t, n, headQuestion)
	require.GreaterOrEqual(t, time.Since(begun), 200*time.Millisecond)
	i.Remove()
	i = n.Inject(Fault{Mode: Slow, Delay: time.Hour})
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, n.HTTP(), strings.NewReader(headQuestion))
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			resp.Body.Close()
		}

		return i.Hits() > 0 && err != nil
	}, 10*time.Minute, time.Millisecond)
	http.DefaultClient.CloseIdleConnections()
	i.Remove()
	ask(t, n, headQuestion)
}

func TestRefusals(t *testing.T) {
	_, n := chain(t)
	top := head(t, n)
	total := len(allLogs(t, n, top).logs(t))
	require.Greater(t, total, 20)
	seen := map[string]bool{}
	for _, mode := range []Mode{Range, Results} {
		i := n.Inject(Fault{Mode: mode, N: 5})
		for range 40 {
			var a response
			require.NoError(t, json.Unmarshal([]byte(allLogs(t, n, top).body), &a))
			require.NotEmpty(t, a.Error)
			seen[string(a.Error)] = true
		}

		ask(t, n, `{"jsonrpc":"2.0","id":7,"method":"eth_getLogs","params":[{"fromBlock":"0x0","toBlock":"0x0"}]}`).logs(t)
		i.Remove()
	}

	require.Len(t, seen, len(rangeWords)+len(resultWords), "every wording comes")
	i := n.Inject(Fault{Mode: Refused, Words: "no such project"})
	require.Contains(t, ask(t, n, headQuestion).body, "no such project")
	i.Remove()
	i = n.Inject(Fault{Mode: Pruned, N: 5})
	require.Contains(t, allLogs(t, n, top).body, "pruned")
	require.Contains(t, ask(t, n, `{"jsonrpc":"2.0","id":7,"method":"eth_getBlockByNumber","params":["0x4",false]}`).body,
		"pruned")
	require.NotContains(t, ask(t, n,
		`{"jsonrpc":"2.0","id":7,"method":"eth_getBlockByNumber","params":["0x5",false]}`).body, "pruned")
	i.Remove()
	require.Len(t, allLogs(t, n, top).logs(t), total)
}

func TestStanding(t *testing.T) {
	_, n := chain(t)
	safe := `{"jsonrpc":"2.0","id":7,"method":"eth_getBlockByNumber","params":["safe",false]}`
	now := hex(head(t, n))
	require.Contains(t, ask(t, n, safe).body, `"number":`+now)
	i := n.Inject(Fault{Mode: Standing, N: 3})
	require.Contains(t, ask(t, n, safe).body, `"number":"0x3"`)
	require.Equal(t, now, hex(head(t, n)), "the head goes on")
	n.Inject(Fault{Mode: Tagged, N: 1})
	require.Contains(t, ask(t, n, safe).body, `"number":"0x3"`, "it stands still all the same")
	i.Remove()
	require.Contains(t, ask(t, n, safe).body, `"number":`+hex(head(t, n)-1))
}

func TestBehind(t *testing.T) {
	_, n := chain(t)
	top := head(t, n)
	full := allLogs(t, n, top).logs(t)
	i := n.Inject(Fault{Mode: Behind, N: 6})
	require.Equal(t, top-6, head(t, n))
	for _, l := range allLogs(t, n, top).logs(t) {
		require.LessOrEqual(t, l.BlockNumber, top-6)
	}

	last := full[len(full)-1]
	require.Greater(t, last.BlockNumber, top-6)
	require.Empty(t, ask(t, n,
		`{"jsonrpc":"2.0","id":7,"method":"eth_getLogs","params":[{"blockHash":"`+last.BlockHash.Hex()+`"}]}`).logs(t))
	require.Equal(t, "null",
		string(ask(t, n, `{"jsonrpc":"2.0","id":7,"method":"eth_getBlockByHash","params":["`+last.BlockHash.Hex()+`",false]}`).result(t)))
	require.Equal(t, "null",
		string(ask(t, n, `{"jsonrpc":"2.0","id":7,"method":"eth_getBlockByNumber","params":[`+hex(top)+`,false]}`).result(t)))
	batch, single, err := parse[response]([]byte(ask(t, n, lateQuestion).body))
	require.NoError(t, err)
	require.False(t, single)
	newest, ok := blockNumber(batch[0].Result)
	require.True(t, ok)
	require.Equal(t, top-6, newest)
	i.Remove()
	require.Equal(t, full, allLogs(t, n, top).logs(t))
}

// A gateway that splits a batch over backends of which some are behind: one answer may have what the other lacks.
func TestSplit(t *testing.T) {
	_, n := chain(t)
	top := head(t, n)
	i := n.Inject(Fault{Mode: Split, N: 6, Share: 0.5})
	newest := `{"jsonrpc":"2.0","id":1,"method":"eth_getBlockByNumber","params":[` + hex(top) + `,false]}`
	mixed := false
	for range 40 {
		batch, _, err := parse[response]([]byte(ask(t, n, "["+newest+","+newest+"]").body))
		require.NoError(t, err)
		require.Len(t, batch, 2)
		mixed = mixed || (string(batch[0].Result) == "null") != (string(batch[1].Result) == "null")
	}

	require.True(t, mixed)
	require.Positive(t, i.Hits())
}

func TestForgotten(t *testing.T) {
	_, n := chain(t)
	top := head(t, n)
	full := allLogs(t, n, top).logs(t)
	i := n.Inject(Fault{Mode: Forgotten, N: 10})
	left := allLogs(t, n, top).logs(t)
	require.NotEmpty(t, left)
	require.Less(t, len(left), len(full))
	for _, l := range left {
		require.GreaterOrEqual(t, l.BlockNumber, uint64(10))
	}

	require.Less(t, full[0].BlockNumber, uint64(10))
	for _, question := range []string{
		`"method":"eth_getBlockByNumber","params":["0x9",false]`,
		`"method":"eth_getBlockByHash","params":["` + full[0].BlockHash.Hex() + `",false]`,
	} {
		require.Equal(t, "null", string(ask(t, n, `{"jsonrpc":"2.0","id":7,`+question+`}`).result(t)))
	}

	require.NotEqual(t, "null", string(ask(t, n,
		`{"jsonrpc":"2.0","id":7,"method":"eth_getBlockByNumber","params":["0xa",false]}`).result(t)))
	i.Remove()
	require.Equal(t, full, allLogs(t, n, top).logs(t))
}

func TestAllowances(t *testing.T) {
	_, n := chain(t)
	i := n.Inject(Fault{Mode: Batch, N: 1})
	require.JSONEq(t, `[{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"batch too large"}}]`,
		ask(t, n, lateQuestion).body)
	ask(t, n, headQuestion).result(t)
	i.Remove()
	batch, _, err := parse[response]([]byte(ask(t, n, lateQuestion).body))
	require.NoError(t, err)
	require.Len(t, batch, 2)

	// One item per second, two at once; a batch counts by its items.
	i = n.Inject(Fault{Mode: Rate, N: 1})
	require.Equal(t, 200, ask(t, n, lateQuestion).status)
	require.Eventually(t, func() bool { return ask(t, n, lateQuestion).status == 429 }, 10*time.Minute, time.Millisecond)
	require.Eventually(t, func() bool { return ask(t, n, headQuestion).status == 200 },
		10*time.Minute, 50*time.Millisecond)
	require.Positive(t, i.Hits())
	i.Remove()

	// Item by item: of a batch the first are answered.
	i = n.Inject(Fault{Mode: RateEach, N: 1, Words: "slower"})
	require.Eventually(t, func() bool {
		batch, _, err := parse[response]([]byte(ask(t, n, lateQuestion).body))
		require.NoError(t, err)

		return batch[0].Error == nil && strings.Contains(string(batch[1].Error), "slower")
	}, 10*time.Minute, 50*time.Millisecond)
	require.Positive(t, i.Hits())
}

func TestLies(t *testing.T) {
	sim, n := chain(t)
	top := head(t, n)
	full := allLogs(t, n, top).logs(t)

	i := n.Inject(Fault{Mode: Omit})
	some := allLogs(t, n, top).logs(t)
	require.Less(t, len(some), len(full))
	require.Greater(t, len(some), len(full)/3)
	require.Equal(t, len(full)-len(some), i.Hits())
	require.Equal(t, some, allLogs(t, n, top).logs(t), "the same ones")
	twin, err := NewNode(sim.HTTP(), sim.WS(), 3)
	require.NoError(t, err)
	defer func() { require.NoError(t, twin.Close()) }()
	twin.Inject(Fault{Mode: Omit})
	require.Equal(t, some, allLogs(t, twin, top).logs(t), "the seed decides")
	i.Remove()

	i = n.Inject(Fault{Mode: Foreign})
	more := allLogs(t, n, top).logs(t)
	require.Equal(t, full, more[:len(full)])
	require.Len(t, more, len(full)+1)
	i.Remove()

	i = n.Inject(Fault{Mode: Chain, N: 1})
	require.JSONEq(t, `"0x1"`, string(ask(t, n, idQuestion).result(t)))
	i.Remove()
	require.JSONEq(t, `"0x539"`, string(ask(t, n, idQuestion).result(t)))
}

func TestWebSocket(t *testing.T) {
	sim, n := chain(t)
	dial := func() *websocket.Conn {
		c, resp, err := websocket.DefaultDialer.DialContext(t.Context(), n.WS(), nil)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())

		return c
	}
	c := dial()
	defer c.Close()
	say := func(body string) { require.NoError(t, c.WriteMessage(websocket.TextMessage, []byte(body))) }
	hear := func() string {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		_, b, err := c.ReadMessage()
		require.NoError(t, err)

		return string(b)
	}
	say(idQuestion)
	require.Contains(t, hear(), `"0x539"`)
	say(`{"jsonrpc":"2.0","id":9,"method":"eth_subscribe","params":["newHeads"]}`)
	require.Contains(t, hear(), `"id":9`)
	top := head(t, n)
	announced := func() uint64 {
		var note struct {
			Params struct{ Result json.RawMessage }
		}
		require.NoError(t, json.Unmarshal([]byte(hear()), &note))
		number, ok := blockNumber(note.Params.Result)
		require.True(t, ok)

		return number
	}
	require.NoError(t, sim.Mine(t.Context(), 1))
	require.Equal(t, top+1, announced())
	i := n.Inject(Fault{Mode: Behind, N: 3})
	require.NoError(t, sim.Mine(t.Context(), 1))
	require.Equal(t, top-1, announced())
	i.Remove()

	i = n.Inject(Fault{Mode: Limited})
	say(idQuestion)
	require.Contains(t, hear(), `"code":429`)
	i.Remove()

	// Silent: nothing that is asked is ever answered, and nothing ends.
	i = n.Inject(Fault{Mode: Silent})
	say(idQuestion)
	require.NoError(t, sim.Mine(t.Context(), 1))
	require.Eventually(t, func() bool { return i.Hits() >= 2 }, 10*time.Minute, time.Millisecond)
	i.Remove()
	require.NoError(t, sim.Mine(t.Context(), 1))
	require.Equal(t, top+4, announced(), "the one announced meanwhile is lost")

	// Deaf: it answers pings, and nothing else.
	i = n.Inject(Fault{Mode: Deaf})
	pongs := make(chan string, 1)
	c.SetPongHandler(func(data string) error {
		pongs <- data
		i.Remove()

		return nil
	})
	say(idQuestion)
	require.Eventually(t, func() bool { return i.Hits() > 0 }, 10*time.Minute, time.Millisecond)
	require.NoError(t, c.WriteControl(websocket.PingMessage, []byte("there?"), time.Now().Add(time.Minute)))
	read := make(chan string, 1)
	go func() {
		_, b, _ := c.ReadMessage()
		read <- string(b)
	}()
	require.Equal(t, "there?", <-pongs)
	say(idQuestion)
	require.Contains(t, <-read, `"0x539"`, "the answer to what was asked later")

	// Mute: requests are answered, new blocks are not announced.
	i = n.Inject(Fault{Mode: Mute})
	require.NoError(t, sim.Mine(t.Context(), 1))
	require.Eventually(t, func() bool { return i.Hits() > 0 }, 10*time.Minute, time.Millisecond)
	say(idQuestion)
	require.Contains(t, hear(), `"0x539"`)
	i.Remove()
	require.NoError(t, sim.Mine(t.Context(), 1))
	require.Equal(t, top+6, announced())

	// Closing: it ends when it has been open for so long, and another begins.
	i = n.Inject(Fault{Mode: Closing, Delay: 100 * time.Millisecond})
	_, _, err := c.ReadMessage()
	require.Error(t, err)
	c = dial()
	defer c.Close()
	_, _, err = c.ReadMessage()
	require.Error(t, err)
	require.GreaterOrEqual(t, i.Hits(), 2)
	i.Remove()
	c = dial()
	defer c.Close()

	// Down: it ends, and no other begins.
	i = n.Inject(Fault{Mode: Down})
	_, _, err = c.ReadMessage()
	require.Error(t, err)
	_, resp, err := websocket.DefaultDialer.DialContext(t.Context(), n.WS(), nil) //nolint:bodyclose // there is none
	require.Error(t, err)
	require.Nil(t, resp)
	i.Remove()
	require.NoError(t, dial().Close())
}

// A machine that stayed on the branch that the chain has left answers as it did before.
func TestStayed(t *testing.T) {
	sim, n := chain(t)
	top := head(t, n)
	one := func(method, params string) *reply {
		return ask(t, n, `{"jsonrpc":"2.0","id":7,"method":"`+method+`","params":[`+params+`]}`)
	}
	byNumber := func(number uint64) string {
		return string(one("eth_getBlockByNumber", hex(number)+",false").result(t))
	}
	hashOf := func(block string) (h common.Hash) {
		var b struct{ Hash common.Hash }
		require.NoError(t, json.Unmarshal([]byte(block), &b))
		return b.Hash
	}
	full, fault := allLogs(t, n, top).logs(t), Fault{Mode: Stayed, N: top - 5}
	for number := fault.N; number <= top; number++ {
		fault.Branch = append(fault.Branch, hashOf(byNumber(number)))
	}

	state := func() string {
		all := []string{string(one("eth_getTransactionReceipt", `"`+full[len(full)-1].TxHash.Hex()+`"`).result(t))}
		for _, a := range sim.Accounts() {
			all = append(all, string(one("eth_getTransactionCount", `"`+a.Address.Hex()+`",`+hex(fault.N)).result(t)))
		}

		return strings.Join(all, " ")
	}
	before, fork, states := byNumber(top), byNumber(fault.N-1), state()
	require.NoError(t, sim.Reorg(t.Context(), 6, testchain.Keep))
	elsewhere := allLogs(t, n, top+1).logs(t)
	require.NotEqual(t, full, elsewhere)
	require.NotEqual(t, states, state())
	last, foreign := full[len(full)-1], elsewhere[len(elsewhere)-1]
	require.GreaterOrEqual(t, last.BlockNumber, fault.N)

	i := n.Inject(fault)
	require.Equal(t, top, head(t, n))
	require.Equal(t, before, byNumber(top))
	require.Equal(t, fork, byNumber(fault.N-1))
	require.Equal(t, states, state())
	require.Equal(t, "null", byNumber(top+1))
	require.Equal(t, full, allLogs(t, n, top+1).logs(t))
	ofBlock := func(h common.Hash) *reply {
		return one("eth_getLogs", `{"blockHash":"`+h.Hex()+`"}`)
	}
	require.NotEmpty(t, ofBlock(last.BlockHash).logs(t))
	require.Contains(t, ofBlock(foreign.BlockHash).body, "unknown block")
	byHash := func(h common.Hash) string {
		return string(one("eth_getBlockByHash", `"`+h.Hex()+`",false`).result(t))
	}
	require.Equal(t, before, byHash(hashOf(before)))
	require.Equal(t, "null", byHash(foreign.BlockHash))
	require.Positive(t, i.Hits())

	i.Remove()
	require.Equal(t, elsewhere, allLogs(t, n, top+1).logs(t))
}
