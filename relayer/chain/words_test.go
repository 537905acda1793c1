package chain

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A node that takes no block's hash for its logs is asked by number. (The words: rsksmart/rskj#1518; Lotus
// and Viction were such nodes, filecoin-project/lotus#10781 and BuildOnViction/victionchain#480.)
func TestLogsByHashAreUnknown(t *testing.T) {
	chain := newChain(60, 3, 0)
	n := startNode(t, chain)
	n.finalized = 40
	refused := n.refuseLogs(func(q testRequest, _, _, _ int) (int, string) {
		if !strings.Contains(string(q.Params[0]), "blockHash") {
			return 0, ""
		}

		return 0, `{"code":-32602,"message":"Unrecognized field \"blockHash\" (class org.ethereum.rpc.Web3$FilterRequest), ` +
			`not marked as ignorable (4 known properties: \"toBlock\", \"fromBlock\", \"address\", \"topics\"])"}`
	})
	s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest})
	await(t, s, func(v View) bool { return v.Head == 60 && v.Final == 40 })
	require.EqualValues(t, 61, backlog(t, s, chain, 0, 60, 20*time.Second))
	require.LessOrEqual(t, refused.Load(), int64(8), "as many as are asked at a time")
}

// BNB Chain's public nodes refuse any eth_getLogs that is in a batch, as if for the rate, and answer it
// alone. (The words: rpc's table.)
func TestLogsInABatchAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const blocks = 3000
		chain := newChain(blocks, 10, 0)
		var p pipes
		n, _ := p.node(t, chain)
		n.finalized = blocks - 30
		refused := n.refuseLogs(func(_ testRequest, _, _, batch int) (int, string) {
			if batch == 1 {
				return 0, ""
			}

			return 0, `{"code":-32005,"message":"method eth_getLogs in batch triggered rate limit"}`
		})
		s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest, Dial: p.dial, MaxRange: 100})
		await(t, s, func(v View) bool { return v.Final == blocks-30 })
		begun := time.Now()
		require.EqualValues(t, blocks+1, backlog(t, s, chain, 1, blocks, 10*time.Minute))
		t.Logf("%s, %d refused", time.Since(begun), refused.Load())
		require.LessOrEqual(t, refused.Load(), int64(2))
		require.Less(t, time.Since(begun), time.Minute)
	})
}
