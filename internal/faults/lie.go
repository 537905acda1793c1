package faults

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/crypto"
)

type request struct {
	JSONRPC string            `json:"jsonrpc"`
	ID      json.RawMessage   `json:"id"`
	Method  string            `json:"method"`
	Params  []json.RawMessage `json:"params"`
}

type response struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   json.RawMessage `json:"error,omitempty"`
}

// parse takes one message or a batch of them.
func parse[T any](b []byte) (list []T, single bool, err error) {
	if b = bytes.TrimSpace(b); len(b) > 0 && b[0] == '[' {
		err = json.Unmarshal(b, &list)
	} else {
		single, list = true, make([]T, 1)
		err = json.Unmarshal(b, &list[0])
	}

	if err == nil && len(list) == 0 {
		err = fmt.Errorf("empty batch")
	}

	return list, single, err
}

func hex(n uint64) string { return `"0x` + strconv.FormatUint(n, 16) + `"` }

func unhex(raw json.RawMessage) (uint64, bool) {
	var s string
	if json.Unmarshal(raw, &s) != nil || !strings.HasPrefix(s, "0x") {
		return 0, false
	}

	n, err := strconv.ParseUint(s[2:], 16, 64)

	return n, err == nil
}

// blockNumber of a header or a log.
func blockNumber(raw json.RawMessage) (uint64, bool) {
	var b struct {
		Number      json.RawMessage `json:"number"`
		BlockNumber json.RawMessage `json:"blockNumber"`
	}
	if json.Unmarshal(raw, &b) != nil {
		return 0, false
	}

	if b.Number == nil {
		b.Number = b.BlockNumber
	}

	return unhex(b.Number)
}

// call asks the node behind one question.
func (n *Node) call(ctx context.Context, method string, params ...string) (json.RawMessage, error) {
	b, err := n.post(ctx,
		[]byte(`{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":[`+strings.Join(params, ",")+`]}`))
	if err != nil {
		return nil, err
	}

	var r response
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, err
	}

	if r.Error != nil {
		return nil, fmt.Errorf("%s: %s", method, r.Error)
	}

	return r.Result, nil
}

// view is what the faults make of the chain for one message.
type view struct {
	*Node
	ctx  context.Context
	list []*Injected
	top  uint64 // newest block there is
	late *Injected

	onSend func(raw []byte) bool
}

// lie forwards a message and changes requests and answers as the faults want.
func (n *Node) lie(ctx context.Context, list []*Injected, body []byte) ([]byte, error) {
	requests, single, err := parse[request](body)
	if err != nil {
		return n.post(ctx, body)
	}

	sends := false
	n.mu.Lock()
	onSend := n.onSend
	for _, r := range requests {
		n.requests[r.Method]++
		sends = sends || r.Method == sendMethod
	}

	n.mu.Unlock()
	plain := find(list, Range, Results, Behind, Split, Stayed, Omit, Foreign, Chain, Pruned, Forgotten, Without, Standing,
		Tagged, Stateless, Batch, Refused, Reworded, Rewritten, RateEach) == nil && find(list, hostile...) == nil
	if plain && (!sends || onSend == nil && find(list, ofSends...) == nil) {
		return n.post(ctx, body)
	}

	if i := find(list, Batch); i != nil && !single && uint64(len(requests)) > i.N {
		i.hits.Add(1)
		return json.Marshal([]response{refuse(requests[0], -32600, "batch too large")})
	}

	v := &view{Node: n, ctx: ctx, list: list, onSend: onSend}
	if err := v.backend(find(list, Behind, Stayed)); err != nil {
		return nil, err
	}

	split := find(list, Split)
	answers := make([]response, len(requests))
	for i, r := range requests {
		if split != nil {
			if err := v.backend(split); err != nil {
				return nil, err
			}
		}

		if err := v.tag(&r); err != nil {
			return nil, err
		}

		if answers[i], err = v.one(r); err != nil {
			return nil, err
		}
	}

	if single {
		return json.Marshal(answers[0])
	}

	return json.Marshal(answers)
}

// backend chooses who answers: one that is as far behind as the fault says, one that stayed on its branch, or
// one that is neither.
func (v *view) backend(late *Injected) error {
	v.late = nil
	if late == nil || !v.chance(late.Share) {
		return nil
	}

	if late.Mode == Stayed {
		v.late, v.top = late, late.N+uint64(len(late.Branch))-1
		return nil
	}

	raw, err := v.call(v.ctx, "eth_blockNumber")
	if err != nil {
		return err
	}

	head, _ := unhex(raw)
	v.late, v.top = late, head-min(head, late.N)

	return nil
}

func refuse(r request, code int, words string) response {
	e, _ := json.Marshal(map[string]any{"code": code, "message": words})
	return response{JSONRPC: "2.0", ID: r.ID, Error: e}
}

// refused refuses a request where a fault has it refused, whatever it asks.
func (v *view) refused(r request) (a response, refused bool) {
	if i := find(v.list, Refused); i != nil && (i.Method == "" || i.Method == r.Method) {
		i.hits.Add(1)
		return refuse(r, -32000, i.Words), true
	}

	if i := find(v.list, RateEach); i != nil && !i.take(1) {
		i.hits.Add(1)
		return refuse(r, -32005, i.Words), true
	}

	return a, false
}

// one answers one request: refuses it, or forwards it and changes what it asks and what is answered.
func (v *view) one(r request) (response, error) {
	if a, refused := v.refused(r); refused {
		return a, nil
	}

	if r.Method == sendMethod {
		return v.send(r)
	}

	if a, refused := v.outOfRange(r); refused {
		return a, nil
	}

	if v.late != nil {
		switch {
		case r.Method == "eth_blockNumber":
			v.late.hits.Add(1)
			return response{JSONRPC: "2.0", ID: r.ID, Result: json.RawMessage(hex(v.top))}, nil
		case r.Method == "eth_getBlockByNumber" && string(r.Params[0]) == `"latest"`:
			v.late.hits.Add(1)
			r.Params = append([]json.RawMessage{json.RawMessage(hex(v.top))}, r.Params[1:]...)
		}
	}

	other := find(v.list, Own)
	if other == nil && v.late != nil && v.late.Mode == Stayed {
		other = v.late
	}

	if other != nil {
		if a, answered, err := v.ofTail(other, &r); answered || err != nil {
			return a, err
		}
	}

	body, err := json.Marshal(r)
	if err != nil {
		return response{}, err
	}

	b, err := v.post(v.ctx, body)
	if err != nil {
		return response{}, err
	}

	var a response
	if err := json.Unmarshal(b, &a); err != nil || a.Error != nil {
		return v.reworded(r, a), err
	}

	if r.Method == "eth_getLogs" {
		if a, err = v.logs(r, a); err != nil || a.Error != nil {
			return a, err
		}
	} else {
		v.header(r, &a)
	}

	a.Result, err = v.deceive(r, v.rewritten(r, a.Result))
	return a, err
}

// rewritten is what Rewritten makes of a result.
func (v *view) rewritten(r request, result json.RawMessage) json.RawMessage {
	i := find(v.list, Rewritten)
	if i == nil {
		return result
	}

	to := i.Rewrite(r.Method, string(result))
	if to != string(result) {
		i.hits.Add(1)
	}

	return json.RawMessage(to)
}

// reworded is an answer that is an error, as the node would word it.
func (v *view) reworded(r request, a response) response {
	i := find(v.list, Reworded)
	if i == nil || a.Error == nil {
		return a
	}

	i.hits.Add(1)

	return refuse(r, -32603, i.Words)
}

// tag has a question for the safe or the finalized block be one for the block that the faults say: the lowest
// at which they stand still, or one below the newest.
func (v *view) tag(r *request) error {
	if r.Method != "eth_getBlockByNumber" ||
		!slices.Contains([]string{`"safe"`, `"finalized"`}, string(r.Params[0])) {
		return nil
	}

	decides := find(v.list, Tagged)
	number := uint64(math.MaxUint64)
	for _, i := range v.list {
		if i.Mode == Standing && i.N < number {
			decides, number = i, i.N
		}
	}

	switch {
	case decides == nil:
		return nil
	case decides.Mode == Tagged:
		raw, err := v.call(v.ctx, "eth_blockNumber")
		if err != nil {
			return err
		}

		head, _ := unhex(raw)
		if v.late != nil {
			head = v.top
		}

		number = head - min(head, decides.N)
	}

	decides.hits.Add(1)
	r.Params = append([]json.RawMessage{json.RawMessage(hex(number))}, r.Params[1:]...)

	return nil
}

// tag is the block tag that a request ends with; empty: none.
func (r request) tag() (name string) {
	if len(r.Params) > 0 {
		_ = json.Unmarshal(r.Params[len(r.Params)-1], &name) // what is no string is no tag
	}

	return name
}

// ofState are methods whose second parameter is the block of the state that they are about.
var ofState = []string{"eth_getTransactionCount", "eth_getCode", "eth_getBalance", "eth_call"}

// unable refuses methods that the node does not know, and what asks for state that was thrown away.
func (v *view) unable(r request) (a response, refused bool) {
	for _, i := range v.list {
		switch {
		case i.Mode == Without && (i.Words == r.Method || i.Words == r.Method+" "+r.tag()):
			i.hits.Add(1)
			code := cmp.Or(int(i.N), 32601)
			return refuse(r, -code, "the method "+r.Method+" does not exist/is not available"), true
		case i.Mode == Stateless && slices.Contains(ofState, r.Method):
			if number, ok := unhex(r.Params[1]); ok && number < i.N {
				i.hits.Add(1)
				return refuse(r, -32000, "missing trie node"), true
			}
		}
	}

	return response{}, false
}

// outOfRange refuses what asks for too many blocks, or for blocks that were thrown away, and what unable refuses.
func (v *view) outOfRange(r request) (a response, refused bool) {
	if i := find(v.list, Range); i != nil && r.Method == "eth_getLogs" {
		if from, to, ok := span(r); ok && to-from+1 > i.N {
			i.hits.Add(1)
			words, code := v.words(rangeWords, i)
			return refuse(r, code, strings.ReplaceAll(words, "{n}", strconv.FormatUint(i.N, 10))), true
		}
	}

	i := find(v.list, Pruned)
	if i == nil {
		return v.unable(r)
	}

	below := false
	switch r.Method {
	case "eth_getLogs":
		from, _, ok := span(r)
		below = ok && from < i.N
	case "eth_getBlockByNumber":
		number, ok := unhex(r.Params[0])
		below = ok && number < i.N
	}

	if !below {
		return response{}, false
	}

	i.hits.Add(1)

	return refuse(r, 4444, "pruned history unavailable"), true
}

// header changes the id of the chain, and hides blocks.
func (v *view) header(r request, a *response) {
	switch r.Method {
	case "eth_chainId":
		if i := find(v.list, Chain); i != nil {
			i.hits.Add(1)
			a.Result = json.RawMessage(hex(i.N))
		}
	case "eth_getBlockByNumber", "eth_getBlockByHash":
		number, ok := blockNumber(a.Result)
		by := find(v.list, Forgotten)
		switch {
		case ok && v.late != nil && number > v.top:
			by = v.late
		case !ok || by == nil || number >= by.N:
			return
		}

		by.hits.Add(1)
		a.Result = json.RawMessage("null")
	}
}

const sendMethod = "eth_sendRawTransaction"

// ofSends are the faults of sendMethod.
var ofSends = []Mode{SendLost, SendForgotten, SendRefused, SendHangs}

var errDropped = errors.New("dropped")

// send forwards a transaction, or what the faults make of it.
func (v *view) send(r request) (response, error) {
	var raw hexutil.Bytes
	if len(r.Params) > 0 {
		_ = json.Unmarshal(r.Params[0], &raw) // the node behind says what is wrong with it
	}

	if v.onSend != nil && !v.onSend(raw) {
		return response{}, errDropped
	}

	i := find(v.list, ofSends...)
	if i != nil && (i.Of != nil && !i.Of(raw) || !v.chance(i.Share)) {
		i = nil
	}

	if i != nil && i.Mode != SendLost {
		i.hits.Add(1)
		switch i.Mode {
		case SendRefused:
			return refuse(r, -32000, i.Words), nil
		case SendHangs:
			select {
			case <-i.removed:
			case <-v.ctx.Done():
			}

			return response{}, errDropped
		}

		return response{JSONRPC: "2.0", ID: r.ID, Result: json.RawMessage(`"` + crypto.Keccak256Hash(raw).Hex() + `"`)}, nil
	}

	body, err := json.Marshal(r)
	if err != nil {
		return response{}, err
	}

	b, err := v.post(v.ctx, body)
	if err != nil {
		return response{}, err
	}

	if i != nil {
		i.hits.Add(1)
		return response{}, errDropped
	}

	var a response
	err = json.Unmarshal(b, &a)

	return a, err
}

// span is the range of an eth_getLogs by numbers.
func span(r request) (from, to uint64, ok bool) {
	var q struct{ FromBlock, ToBlock json.RawMessage }
	if len(r.Params) == 0 || json.Unmarshal(r.Params[0], &q) != nil {
		return 0, 0, false
	}

	from, a := unhex(q.FromBlock)
	to, b := unhex(q.ToBlock)

	return from, to, a && b && from <= to
}

// logs refuses too many of them, leaves some out, and adds one that nobody asked for.
func (v *view) logs(r request, a response) (response, error) {
	var logs []json.RawMessage
	if err := json.Unmarshal(a.Result, &logs); err != nil {
		return a, err
	}

	if i := find(v.list, Results); i != nil && uint64(len(logs)) > i.N {
		if from, to, ok := span(r); !ok || from < to { // of a single block no provider refuses to give the logs
			i.hits.Add(1)
			words, code := v.words(resultWords, i)
			return refuse(r, code, strings.ReplaceAll(words, "{n}", strconv.FormatUint(i.N, 10))), nil
		}
	}

	logs = v.leaveOut(logs)
	if i := find(v.list, Foreign); i != nil && len(logs) > 0 {
		raw, err := foreign(logs[len(logs)-1])
		if err != nil {
			return a, err
		}

		i.hits.Add(1)
		logs = append(logs, raw)
	}

	if logs == nil {
		logs = []json.RawMessage{}
	}

	var err error
	a.Result, err = json.Marshal(logs)

	return a, err
}

// leaveOut removes the logs of blocks that this node does not have yet or any more, and those that
// the seed chooses.
func (v *view) leaveOut(logs []json.RawMessage) []json.RawMessage {
	forgotten, omit := find(v.list, Forgotten), find(v.list, Omit)
	return slices.DeleteFunc(logs, func(l json.RawMessage) bool {
		var by *Injected
		number, ok := blockNumber(l)
		switch {
		case ok && v.late != nil && number > v.top:
			by = v.late
		case ok && forgotten != nil && number < forgotten.N:
			by = forgotten
		case omit != nil && v.omitted(l, omit.N):
			by = omit
		default:
			return false
		}

		by.hits.Add(1)

		return true
	})
}

// foreign is a log behind this one, with a topic that nobody asked for.
func foreign(log json.RawMessage) (json.RawMessage, error) {
	var alien map[string]any
	if err := json.Unmarshal(log, &alien); err != nil {
		return nil, err
	}

	alien["topics"] = []string{"0x" + strings.Repeat("ab", 32)}
	if index, err := strconv.ParseUint(strings.TrimPrefix(fmt.Sprint(alien["logIndex"]), "0x"), 16, 64); err == nil {
		alien["logIndex"] = "0x" + strconv.FormatUint(index+1, 16)
	}

	return json.Marshal(alien)
}

// omitted decides by the seed and the log itself.
func (v *view) omitted(raw json.RawMessage, oneIn uint64) bool {
	var l struct{ TransactionHash, LogIndex string }
	if json.Unmarshal(raw, &l) != nil {
		return false
	}

	if oneIn == 0 {
		oneIn = 3
	}

	h := fnv.New64a()
	_, _ = h.Write(binary.BigEndian.AppendUint64(nil, v.seed))
	_, _ = h.Write([]byte(l.TransactionHash + ":" + l.LogIndex))

	return h.Sum64()%oneIn == 0
}

// refusalWords are what a provider says; {n} is its limit.
type refusalWords struct {
	code  int
	words string
}

var rangeWords = []refusalWords{
	// Alchemy
	{-32600, "You can make eth_getLogs requests with up to a {n} block range. Based on your parameters, this block range should work: [0x0, 0x1]"},
	{-32614, "eth_getLogs is limited to a {n} range"}, // QuickNode
	// Infura's former, and others
	{-32005, "query exceeds max block range {n}"},
	{-32600, "Block range is too large"},                                                           // Ankr
	{-32047, "Invalid eth_getLogs request. 'fromBlock'-'toBlock' range too large. Max range: {n}"}, // Cloudflare
	// BNB Chain's fork of geth
	{-32000, "exceed maximum block range: {n}"},
	{35, "ranges over {n} blocks are not supported on freetier"}, // dRPC
}

var resultWords = []refusalWords{
	{-32005, "query returned more than {n} results"},                                        // Infura
	{-32602, "Log response size exceeded. Recommended block range: [0x0, 0x1]"},             // Alchemy
	{-32000, "query exceeds max results {n}, retry with the range 1-2"},                     // newer gateways
	{-32602, "Query returned more than {n} results. Try with this block range [0x0, 0x1]."}, // Alchemy, by count
	{-32005, "logs matched by query exceeds limit of {n}"},                                  // Nethermind-style gateways
	{-32008, "Response is too big: exceeded max limit of {n}"},                              // jsonrpsee
	{-32000, "backend response too large"},                                                  // proxyd
}

func (v *view) words(of []refusalWords, i *Injected) (string, int) {
	if i.Words != "" {
		return i.Words, -32000
	}

	w := of[v.number(len(of))]

	return w.words, w.code
}
