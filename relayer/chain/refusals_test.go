package chain

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A limit of the range is found whatever code or words it comes with, words that mean something else included.
func TestRangeLimitUnderOtherWords(t *testing.T) {
	const blocks, most = 600, 50
	for name, text := range map[string]string{
		"the code that asks for addresses": `{"code":-32701,"message":"exceed maximum block range: 50"}`,
		"the code in unknown words":        `{"code":-32701,"message":"nay"}`,
		"the words of a pruned block":      `{"code":-32000,"message":"older than the lookback"}`,
		"the words of a batch":             `{"code":-32000,"message":"batch it otherwise"}`,
		"the words of a rate":              `{"code":-32005,"message":"rate limit exceeded"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				chain := newChain(blocks, 3, 0)
				var p pipes
				n, _ := p.node(t, chain)
				n.finalized = blocks
				n.refuseLogs(func(q testRequest, _, _, _ int) (int, string) {
					if f := parseQuery(t, q.Params[0]); f.ToBlock-f.FromBlock >= most {
						return 0, text
					}

					return 0, ""
				})
				s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest, Dial: p.dial})
				await(t, s, func(v View) bool { return v.Final == blocks })
				require.EqualValues(t, blocks+1, backlog(t, s, chain, 1, blocks, 2*time.Minute), s.Endpoints()[0].LastError)
			})
		})
	}
}
