package chain

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// saying answers one method with an error in full, over http.
func saying(t *testing.T, n *testNode, method, fault string) {
	t.Helper()
	n.set(func() {
		n.http = func(w http.ResponseWriter, r *http.Request) bool {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return true
			}

			one := func(body []byte) []byte {
				var q testRequest
				if json.Unmarshal(body, &q) == nil && q.Method == method {
					return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":%s}`, q.ID, fault)
				}

				return n.serve(body, nil)
			}
			var batch []json.RawMessage
			if json.Unmarshal(body, &batch) != nil {
				_, _ = w.Write(one(body))
				return true
			}

			answers := make([]json.RawMessage, len(batch))
			for i, q := range batch {
				answers[i] = one(q)
			}

			_ = json.NewEncoder(w).Encode(answers)

			return true
		}
	})
}

func TestCall(t *testing.T) {
	chain := newChain(20, 1, 0)
	first, second := startNode(t, chain), startNode(t, chain)
	var ahead atomic.Int64
	s := New(Config{URLs: []string{first.server.URL, second.server.URL}, ChainID: 1,
		Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	t.Cleanup(s.Close)

	head, err := s.Head(t.Context())
	require.NoError(t, err, "before Run")
	require.Equal(t, chain.headers[20].Hash, head.Hash)

	saying(t, first, "eth_call", `{"code":3,"message":"execution reverted: not yet","data":"0x08c379a0"}`)
	_, err = s.Call(t.Context(), "eth_call", map[string]any{"to": common.Address{1}}, "latest")
	fault, is := errors.AsType[*NodeError](err)
	require.True(t, is, "%v", err)
	require.Equal(t, 3, fault.Code)
	require.Equal(t, "execution reverted: not yet", fault.Message)
	require.JSONEq(t, `"0x08c379a0"`, string(fault.Data))
	require.Zero(t, second.count("eth_call"), "another endpoint would say the same")

	for _, passing := range []string{
		`{"code":-32601,"message":"the method eth_chainId does not exist"}`,
		`{"code":-32005,"message":"project ID request rate exceeded"}`,
		`{"code":4444,"message":"pruned history unavailable"}`,
	} {
		saying(t, first, rpc.GetCode, passing)
		code, err := s.Code(t.Context(), common.Address{1}, 7)
		require.NoError(t, err, passing)
		require.Equal(t, []byte{0}, code)
	}

	saying(t, first, rpc.GetCode, `{"code":-32000,"message":"missing trie node 12 (path ) state 0x34 is not available"}`)
	saying(t, second, rpc.GetCode, `{"code":-32000,"message":"missing trie node 12 (path ) state 0x34 is not available"}`)
	ahead.Add(int64(time.Minute)) // its rate was limited above
	_, err = s.Code(t.Context(), common.Address{1}, 7)
	require.ErrorIs(t, err, ErrNoHistory)

	saying(t, first, "eth_sendRawTransaction", `{"code":-32000,"message":"already known"}`)
	saying(t, second, "eth_sendRawTransaction", `{"code":-32000,"message":"nonce too low"}`)
	answers, err := s.CallEach(t.Context(), "eth_sendRawTransaction", "0x02")
	require.NoError(t, err)
	require.Len(t, answers, 2)
	require.ErrorContains(t, answers[0].Err, "already known")
	require.ErrorContains(t, answers[1].Err, "nonce too low")

	first.set(func() { first.http = nil })
	second.stop()
	result, err := s.Call(t.Context(), rpc.GetByNumber, "0x99", false)
	require.NoError(t, err, "null is an answer")
	require.Equal(t, "null", string(result))
}

func TestCallBatch(t *testing.T) {
	chain := newChain(20, 1, 0)
	first, second := startNode(t, chain), startNode(t, chain)
	s := New(Config{URLs: []string{first.server.URL, second.server.URL}, ChainID: 1})
	t.Cleanup(s.Close)
	lie := func(n *testNode, method, fault string) {
		n.set(func() {
			n.lie = func(m string, _ []json.RawMessage) (any, error) {
				if m == method {
					return nil, errors.New(fault)
				}

				return nil, nil
			}
		})
	}
	requests := []Request{{Method: rpc.GetByNumber, Params: []any{"0x7", false}},
		{Method: rpc.GetCode, Params: []any{common.Address{1}, "0x7"}}, {Method: "eth_call"}}

	// Together, in order; a refusal that concerns one request is that one's answer.
	lie(first, "eth_call", "execution reverted: not yet")
	lie(second, "eth_call", "execution reverted: not yet")
	answers, err := s.CallBatch(t.Context(), requests...)
	require.NoError(t, err)
	require.Len(t, answers, 3)
	require.Contains(t, string(answers[0].Result), chain.headers[7].Hash.Hex())
	require.Equal(t, `"0x00"`, string(answers[1].Result))
	fault, is := errors.AsType[*NodeError](answers[2].Err)
	require.True(t, is, "%v", answers[2].Err)
	require.Equal(t, "execution reverted: not yet", fault.Message)
	require.Contains(t, first.batches, []string{rpc.GetByNumber, rpc.GetCode, "eth_call"}, "one request")
	require.Empty(t, second.batches)

	// What another endpoint may answer is put to it, all of it: the answers are of one endpoint.
	lie(first, "eth_call", "missing trie node 12 (path ) state 0x34 is not available")
	answers, err = s.CallBatch(t.Context(), requests...)
	require.NoError(t, err)
	for _, a := range answers {
		require.Equal(t, answers[0].Endpoint, a.Endpoint)
	}

	require.Equal(t, 1, second.count(rpc.GetByNumber))

	// What none of them answers is refused, where the one that refuses it answers what every node does.
	lie(second, "eth_call", "header not found, in the words of a revert")
	answers, err = s.CallBatch(t.Context(), requests...)
	require.NoError(t, err)
	require.Len(t, answers, 3)
	require.Contains(t, string(answers[0].Result), chain.headers[7].Hash.Hex())
	require.True(t, isNodeError(answers[2].Err), "%v", answers[2].Err)
	for _, n := range []*testNode{first, second} {
		n.set(func() {
			n.lie = func(string, []json.RawMessage) (any, error) { return nil, errors.New("header not found") }
		})
	}

	_, err = s.CallBatch(t.Context(), requests...)
	require.ErrorContains(t, err, "header not found")

	// An endpoint that takes no batches is asked one by one.
	second.stop()
	lie(first, "", "")
	first.set(func() { first.noBatch = true })
	answers, err = s.CallBatch(t.Context(), requests[:2]...)
	require.NoError(t, err)
	require.Contains(t, string(answers[0].Result), chain.headers[7].Hash.Hex())
	require.Equal(t, `"0x00"`, string(answers[1].Result))
}
