package chain

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// naming is a filter that names the emitter among so many others.
func naming(addresses int) *Filter {
	f := &Filter{Topics: filterA().Topics, Addresses: []common.Address{}}
	for i := range addresses - 1 {
		f.Addresses = append(f.Addresses, common.Address{0xad, byte(i >> 16), byte(i >> 8), byte(i)})
	}

	return &Filter{Topics: f.Topics, Addresses: append(f.Addresses, emitter)}
}

var oneAddress = regexp.MustCompile(`"address":("0x[0-9a-fA-F]*")`)

// refuseLogs answers eth_getLogs as told, by its addresses, the bytes of the exchange and the requests in it:
// 0 and "" let it through. It counts the exchanges with a refusal.
func (n *testNode) refuseLogs(refuse func(q testRequest, addresses, body, batch int) (int, string)) *atomic.Int64 {
	var refused atomic.Int64
	n.http = func(w http.ResponseWriter, r *http.Request) bool {
		b, _ := io.ReadAll(r.Body)
		var batch []testRequest
		single := json.Unmarshal(b, &batch) != nil
		if single {
			batch = make([]testRequest, 1)
			_ = json.Unmarshal(b, &batch[0])
		}

		var answers []string
		said := false
		for _, q := range batch {
			if q.Method == rpc.GetLogs { // one address may stand without a list
				q.Params[0] = oneAddress.ReplaceAll(q.Params[0], []byte(`"address":[$1]`))
			}

			answer := string(n.serve(marshal(q), nil))
			if q.Method == rpc.GetLogs {
				named := -1
				if f := parseQuery(n.t, q.Params[0]); f.Address != nil {
					named = len(f.Address)
				}

				status, text := refuse(q, named, len(b), len(batch))
				if (status != 0 || text != "") && !said {
					said = true
					refused.Add(1)
				}

				if status != 0 {
					w.WriteHeader(status)
					_, _ = io.WriteString(w, text)
					return true
				}

				if text != "" {
					answer = fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":%s}`, q.ID, text)
				}
			}

			answers = append(answers, answer)
		}

		if single {
			_, _ = io.WriteString(w, answers[0])
		} else {
			_, _ = io.WriteString(w, "["+strings.Join(answers, ",")+"]")
		}

		return true
	}

	return &refused
}

const publicNode = "Please specify an address in your request or, to remove restrictions, order a dedicated full node here: https://www.allnodes.com/eth/host"

// A provider that gives logs of named contracts only is read with addresses, below finality and above,
// however it refuses the rest; without addresses an error says what to set, and the endpoint stays in use.
func TestAddressRequiredInAllForms(t *testing.T) {
	for name, refuse := range map[string]struct {
		status int
		text   string
	}{
		"PublicNode":             {0, `{"code":-32701,"message":"` + publicNode + `"}`},
		"through a gateway":      {0, `{"code":-32603,"message":"` + publicNode + `"}`},
		"under 403":              {403, `{"jsonrpc":"2.0","id":1,"error":{"code":-32701,"message":"` + publicNode + `"}}`},
		"under 403, no JSON-RPC": {403, `{"message":"` + publicNode + `"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			chain := newChain(60+farBlocks, 3, 0)
			chain.crowd(3)
			n := startNode(t, chain)
			n.finalized = 40
			n.refuseLogs(func(_ testRequest, addresses, _, _ int) (int, string) {
				if addresses < 0 {
					return refuse.status, refuse.text
				}

				return 0, ""
			})
			s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest})
			await(t, s, func(v View) bool { return v.Head == 60+farBlocks && v.Final == 40 })
			for range 8 {
				for _, err := range s.Read(t.Context(), 1, 60, filterA()) {
					require.Error(t, err)
				}
			}

			for _, err := range s.Read(t.Context(), 1, 60, filterA()) {
				require.ErrorContains(t, err, "LOG_FILTER=addresses")
			}

			require.True(t, s.Endpoints()[0].Up, s.Endpoints()[0].LastError)
			got, _ := collect(t, s, 1, 60, naming(3))
			require.Equal(t, chain.matching(1, 60), got)
		})
	}
}

// Whatever number of addresses a provider takes, and however it says so, all logs are read, and the
// limit is found once.
func TestAddressLimits(t *testing.T) {
	words := map[string]string{
		"geth":       `{"code":-32602,"message":"exceed max addresses or topics per search position"}`,
		"Erigon":     `{"code":-32602,"message":"query exceeds the maximum of {n} addresses or topics per search position"}`,
		"PublicNode": `{"code":-32000,"message":"Please, specify less number of addresses"}`,
		"Infura":     `{"code":-32603,"message":"This query contains 5006 filters. The current limit is {n}."}`,
		"eRPC":       `{"code":-32012,"message":"getLogs request exceeded max allowed addresses"}`,
	}
	for name, text := range words {
		limits := []int{100}
		if name == "geth" {
			limits = []int{1, 5, 100, 1000}
		}

		for _, most := range limits {
			t.Run(fmt.Sprintf("%s, %d", name, most), func(t *testing.T) {
				t.Parallel()
				chain := newChain(60, 3, 0)
				n := startNode(t, chain)
				n.finalized = 40
				refused := n.refuseLogs(func(_ testRequest, addresses, _, _ int) (int, string) {
					if addresses > most || addresses < 0 {
						return 0, strings.ReplaceAll(text, "{n}", fmt.Sprint(most))
					}

					return 0, ""
				})
				s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest, MaxAddresses: 1000})
				await(t, s, func(v View) bool { return v.Head == 60 && v.Final == 40 })
				f := naming(250)
				got, _ := collect(t, s, 1, 60, f)
				require.Equal(t, chain.matching(1, 60), got)
				found := refused.Load()
				require.LessOrEqual(t, found, int64(12))
				got, _ = collect(t, s, 1, 60, f)
				require.Equal(t, chain.matching(1, 60), got)
				require.Equal(t, found, refused.Load(), "it is found once")
				require.True(t, s.Endpoints()[0].Up, s.Endpoints()[0].LastError)
			})
		}
	}
}

// A proxy in front that takes no more than 1 MB (nginx's default, and Chainstack's): a request that
// names very many addresses is sent in smaller parts.
func TestLargeRequestsAreSplit(t *testing.T) {
	for name, refusal := range map[string]struct {
		status int
		text   string
	}{
		"nginx":  {413, "<html><head><title>413 Request Entity Too Large</title></head><body><hr><center>nginx</center></body></html>"},
		"geth":   {413, "content length too large (135000>100000)\n"},
		"proxyd": {413, `{"jsonrpc":"2.0","id":null,"error":{"code":-32021,"message":"request body too large"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			chain := newChain(60, 3, 0)
			n := startNode(t, chain)
			n.finalized = 60
			refused := n.refuseLogs(func(_ testRequest, _, body, _ int) (int, string) {
				if body > 100_000 {
					return refusal.status, refusal.text
				}

				return 0, ""
			})
			s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest, MaxAddresses: 100,
				Timeout: time.Minute})
			await(t, s, func(v View) bool { return v.Final == 60 })
			f := naming(3_000)
			for from := uint64(1); from <= 60 && t.Context().Err() == nil; {
				for b, err := range s.Read(t.Context(), from, 60, f) {
					if err != nil {
						break
					}

					from = b.To + 1
				}
			}

			require.Positive(t, refused.Load())
			require.LessOrEqual(t, refused.Load(), int64(20))
		})
	}
}
