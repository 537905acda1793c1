package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
)

// publicNode stands before a node and refuses what PublicNode refuses, in its words: logs of contracts
// that are not named, and of more than so many.
type publicNode struct {
	*httptest.Server
	refused, crowded atomic.Int64
}

func startPublicNode(t *testing.T, upstream string, most int) *publicNode {
	p := &publicNode{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var calls []json.RawMessage
		single := json.Unmarshal(body, &calls) != nil
		if single {
			calls = []json.RawMessage{body}
		}

		var answers []string
		for _, c := range calls {
			answer := p.refuse(c, most)
			if answer == "" {
				resp, err := http.Post(upstream, "application/json", bytes.NewReader(c))
				if err != nil {
					w.WriteHeader(http.StatusBadGateway)
					return
				}

				b, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				answer = strings.TrimSpace(string(b))
			}

			answers = append(answers, answer)
		}

		w.Header().Set("Content-Type", "application/json")
		if single {
			_, _ = io.WriteString(w, answers[0])
		} else {
			_, _ = io.WriteString(w, "["+strings.Join(answers, ",")+"]")
		}
	}))
	t.Cleanup(p.Close)

	return p
}

// refuse is the answer to what is refused; else empty.
func (p *publicNode) refuse(raw json.RawMessage, most int) string {
	var call struct {
		ID     json.RawMessage
		Method string
		Params []json.RawMessage
	}
	if json.Unmarshal(raw, &call) != nil || call.Method != "eth_getLogs" {
		return ""
	}

	var query struct{ Address json.RawMessage }
	var list []string
	_ = json.Unmarshal(call.Params[0], &query)
	_ = json.Unmarshal(query.Address, &list) // or a single one
	switch {
	case query.Address == nil:
		p.refused.Add(1)
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32701,"message":"Please specify an address in your request or, to remove restrictions, order a dedicated full node here: https://www.allnodes.com/eth/host"}}`, call.ID)
	case len(list) > most:
		p.crowded.Add(1)
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"Please, specify less number of addresses"}}`, call.ID)
	}

	return ""
}

// With a provider that gives logs of named contracts only, and of few at once, every event is published
// once and in order, from the empty book on, under LOG_FILTER=addresses and auto, which says at most once
// what it does: newer blocks are read by their receipts, without a filter. doctor says to set it.
func TestProviderThatWantsAddresses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *lab.Options) { o.Env["LOG_FILTER"] = "addresses" })
	front := startPublicNode(t, w.Chain.HTTP(), 5)
	rpc := map[string]string{"RPC_URLS": front.URL}
	code, d, out := examine(t, w.Environ("doc", 0, 1, rpc))
	require.Zero(t, code, out)
	d.says(t, fine, front.URL, "filter", "named contracts only")
	d.says(t, fine, front.URL, "range", "which is all that was asked for")
	d.says(t, fine, front.URL, "history", "back to START_BLOCK")

	rpc["LOG_FILTER"] = "auto"
	code, d, out = examine(t, w.Environ("doc", 0, 1, rpc))
	require.Equal(t, 1, code, out)
	d.says(t, wrong, front.URL, "filter", "set LOG_FILTER=addresses: it gives logs of named contracts only")

	delete(rpc, "LOG_FILTER")
	before := front.refused.Load()
	w.run("r0", 0, 2, rpc)
	rpc["LOG_FILTER"] = "auto"
	auto := w.run("r1", 1, 2, rpc)
	w.ready("r0", "r1")
	w.blocks(40)
	w.audit(false)
	log, err := os.ReadFile(auto.LogFile)
	require.NoError(t, err)
	require.LessOrEqual(t, bytes.Count(log, []byte("LOG_FILTER=auto names them now")), 1, "%s", log)
	require.NotContains(t, string(log), "blocks not ")
	require.LessOrEqual(t, front.crowded.Load(), int64(60))
	t.Logf("%d without an address, %d with too many", front.refused.Load()-before, front.crowded.Load())
	require.LessOrEqual(t, front.refused.Load()-before, int64(10))
	code, out = call(t, w.Environ("audit", 0, 2, rpc), "audit")
	require.Zero(t, code, out)
}

// Under LOG_FILTER=topics the past of such a provider cannot be read in ranges: /readyz and a metric say so,
// and what to set.
func TestTopicsOfAProviderThatWantsAddresses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	front := startPublicNode(t, w.Chain.HTTP(), 5)
	w.blocks(3)
	require.NoError(t, w.Chain.Mine(t.Context(), 400)) // the newest are read by their receipts, these in ranges
	p := w.run("r0", 0, 1, map[string]string{"RPC_URLS": front.URL, "LOG_FILTER": "topics", "RESIGN_AFTER": "1s"})
	says := func(path string) string {
		resp, err := http.Get(p.URL + path)
		if err != nil {
			return err.Error() // it has just started
		}

		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)

		return resp.Status + "\n" + string(body)
	}
	require.Eventually(t, func() bool {
		ready := says("/readyz")
		return strings.HasPrefix(ready, "503") && strings.Contains(ready, "set LOG_FILTER=addresses")
	}, patience, 20*time.Millisecond)
	require.Regexp(t, `(?m)^relayer_node_up\{.*\} 0$`, says("/metrics"))
}
