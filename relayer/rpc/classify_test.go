package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// refusal is what a node or provider really says: source is where it was found, an issue of the
// repository named, the owner's documentation, or the notes of the review that collected it.
type refusal struct {
	who, text string
	code      int
	want      Kind // RangeTooLarge stands for everything that shrinks a range
	source    string
}

const review = "review of the first version"

var refusals = []refusal{
	{"Alchemy", "Log response size exceeded. You can make eth_getLogs requests with up to a 2K block range and no limit on the response size, or you can request any block range with a cap of 10K logs in the response. Based on your parameters and the response size limit, this block range should work: [0xc5dc00, 0xc614a7]", -32602, RangeTooLarge, review},
	{"Alchemy free", "Under the Free tier plan, you can make eth_getLogs requests with up to a 10 block range. Based on your parameters, this block range should work: [0xad10d9, 0xad10e2]. Upgrade to PAYG for expanded block range.", -32600, RangeTooLarge, review},
	{"Alchemy 150MB", "Response size is larger than 150MB limit", -32000, RangeTooLarge, review},
	{"Infura", "query returned more than 10000 results. Try with this block range [0x1,0x2].", -32005,
		RangeTooLarge, review},
	{"Infura timeout", "query timeout exceeded. Consider reducing your block range.", -32005, RangeTooLarge, review},
	{"QuickNode", "eth_getLogs is limited to a 10,000 range", -32614, RangeTooLarge, review},
	{"QuickNode", "eth_getLogs and eth_newFilter are limited to a 10,000 blocks range", -32602, RangeTooLarge, review},
	{"Ankr", "block range is too wide", -32600, RangeTooLarge, review},
	{"Ankr TAC", "maximum [from, to] blocks distance: 10000", -32000, RangeTooLarge, review},
	{"thirdweb", "Maximum allowed number of requested blocks is 1000", -32602, RangeTooLarge, review},
	{"thirdweb", "Log response size exceeded. Maximum allowed number of requested blocks is 1000", -32005,
		RangeTooLarge, review},
	{"Harmony", "GetLogs query must be smaller than size 1024", -32000, RangeTooLarge, review},
	{"Oasis Sapphire", "invalid request: max allowed of rounds in logs query is: 100", -32000, RangeTooLarge, review},
	{"Swell", "block range greater than 20000 max", -32000, RangeTooLarge, review},
	{"Somnia", "block range exceeds 1000", -32000, RangeTooLarge, review},
	{"Base proxyd", "no backend is currently healthy to serve traffic", -32011, RangeTooLarge, review},
	{"Coinbase", "please limit the query to at most 1,000 blocks", -32000, RangeTooLarge, review},
	{"LlamaRPC", "query exceeds max results 20000, retry with the range 1-2", -32602, RangeTooLarge, review},
	{"merkle", "eth_getLogs range is too large, max is 1k blocks", -32603, RangeTooLarge, review},
	{"Optimism", "backend response too large", -32020, RangeTooLarge, review},
	{"Cloudflare", "Invalid eth_getLogs request. 'fromBlock'-'toBlock' range too large. Max range: 800", -32047,
		RangeTooLarge, review},
	{"Avalanche", "requested too many blocks from 0 to 10000, maximum is set to 2048", -32000, RangeTooLarge, review},
	{"Moonbeam", "block range is too wide (maximum 1024)", -32000, RangeTooLarge, review},
	{"dRPC timeout", "Request timeout on the free tier, please upgrade your tier to the paid one", 30,
		RangeTooLarge, review},
	{"dRPC", "ranges over 10000 blocks are not supported on freetier", 35, RangeTooLarge, review},
	{"geth timeout", "request timed out", -32002, RangeTooLarge, review},
	{"bor, erigon, op-geth", "context deadline exceeded", -32000, RangeTooLarge, review},
	{"Frontier", "query timeout of 10 seconds exceeded", -32603, RangeTooLarge, review},
	{"SQD's list", "The query timed out", -32000, RangeTooLarge, review},
	{"Nethermind", "Too many logs requested. Max logs per response is 20000.", -32005, RangeTooLarge, review},
	{"Nethermind timeout", "eth_getLogs request was canceled due to enabled timeout.", -32016, RangeTooLarge, review},
	{"reth", "query exceeds max block range 100000", -32602, RangeTooLarge, review},
	{"Besu", "Requested range exceeds maximum RPC range limit", -32005, RangeTooLarge, review},
	{"geth rangelimit", "exceed maximum block range 10000", -32602, RangeTooLarge, review},
	{"BSC", "exceed maximum block range: 50000", -32000, RangeTooLarge, review},
	{"BlockPI", "eth_getLogs is limited to 1024 block range", -32602, RangeTooLarge, review},
	{"Chainstack", "Block range limit exceeded. See more details at https://docs.chainstack.com/docs/limits#evm-range-limits", -32000, RangeTooLarge, review},
	{"Linea", "range 16777216 exceeds limit of 10000", -32000, RangeTooLarge, review},
	{"Morph", "block range is larger than max block range, block range = 5120, max block range = 5000", -32000,
		RangeTooLarge, review},
	{"Evmos", "maximum [begin, end] blocks distance: 10000", -32000, RangeTooLarge, review},
	{"Aurora", "up to a 2000 block range", -32000, RangeTooLarge, review},
	{"geth", "response too large", -32003, RangeTooLarge, review},
	{"413 in JSON", "Request Entity Too Large", -32600, RangeTooLarge, review},
	{"413 in JSON", "payload too large", -32600, RangeTooLarge, review},
	{"Infura rate", "project ID request rate exceeded", -32005, RateLimited, review},
	{"Infura daily", "daily request count exceeded, request rate limited", -32005, RateLimited, review},
	{"Chainstack", "You've exceeded the RPS limit available on the current plan. Learn more at https://docs.chainstack.com/docs/limits", -32005, RateLimited, review},
	{"QuickNode", "50/second request limit reached - reduce calls per second or upgrade your account at quicknode.com",
		-32007, RateLimited, review},
	{"QuickNode", "credits limited to 6000/sec", -32012, RateLimited, review},
	{"Alchemy", "Your app has exceeded its compute units per second capacity. If you have retries enabled, you can safely ignore this message.", 429, RateLimited, review},
	{"Alchemy monthly", "Monthly capacity limit exceeded. Visit https://dashboard.alchemyapi.io/settings/billing to upgrade", 429, RateLimited, review},
	{"BSC", "method eth_getLogs in batch triggered rate limit", -32005, RateLimited, review},
	{"proxyd", "over rate limit", -32016, RateLimited, review},
	{"zan", "cu limit exceeded", -32012, RateLimited, review},
	{"OnFinality", "Too Many Requests, Please apply an OnFinality API key or contact us to receive a higher rate limit",
		-32029, RateLimited, review},
	{"1rpc", "You've reached the usage limit for your current plan", -32001, RateLimited, review},
	{"Godwoken", "Too Many Requests, IP: ::ffff:127.0.0.1, please wait 23s and retry.", -32005, RateLimited, review},
	{"geth", "unknown block", -32000, Behind, review},
	{"geth", "block range extends beyond current head block", -32602, Behind, review},
	{"bloXroute", "invalid block range params", -32602, Behind, review},
	{"reth", "block not found: hash 0x12", -32001, Behind, review},
	{"zkSync", "Block with such an ID doesn't exist yet", -32602, Behind, review},
	{"polkadot eth-rpc", "block number exceeds latest block", -32000, Behind, review},
	{"Nethermind", "0xabc could not be found", -32001, Behind, review},
	{"Avalanche", "cannot query unfinalized data", -32000, Behind, review},
	{"geth", "exceed max addresses or topics per search position", -32602, TooManyAddresses, review},
	{"PublicNode", "Please specify an address in your request or, to remove restrictions, order a dedicated full node here: https://www.allnodes.com/eth/host", -32701, AddressRequired, review},
	{"EIP-4444", "pruned history unavailable", 4444, Pruned, review},
	{"dRPC", "Can't route your request to suitable provider, if you specified certain providers revise the list", 12,
		RangeTooLarge, review},
	{"paid only", "eth_getLogs is limited to paid plans", -32000, Unsupported, review},
	{"subscriptions", "websocket connections limited to 10 per key", -32000, RateLimited, review},

	{"Alchemy 2020", "Log response size exceeded. Please reduce query block range.", -32602, RangeTooLarge,
		"bancorprotocol/webapp#523"},
	{"Alchemy on Base", "Log response size exceeded. You can make eth_getLogs requests with up to a 2K block range and no limit on the response size, or you can request any block range with a cap of 10K logs in the response. Based on your parameters and the response size limit, this block range should work: [0x1dfaf9, 0x1dfb0c]", -32602, RangeTooLarge, "joshstevens19/rindexer#181"},
	{"Alchemy growth", "You can make eth_getLogs requests with up to a 500 block range. Based on your parameters, this block range should work: [0x1a30dfd, 0x1a30ff0]", -32600, RangeTooLarge, "boundless-xyz/boundless#838"},
	{"Alchemy 10,000", "You can make eth_getLogs requests with up to a 10000 block range...", -32600, RangeTooLarge,
		"boundless-xyz/boundless#1665"},
	{"Infura with data", "query returned more than 10000 results. Try with this block range [0xBDE5F8, 0x102DBCC].",
		-32005, RangeTooLarge, "ethers-io/ethers.js#4703"},
	{"Infura 2019", "query returned more than 1000 results", -32005, RangeTooLarge, "graphprotocol/graph-node#776"},
	{"Infura by range", "range 1000000 exceeds limit of 10000", -32602, RangeTooLarge, "INFURA/infura#237"},
	{"Infura's documentation", "query timeout exceeded", -32005, RangeTooLarge,
		"docs.metamask.io, eth_getLogs constraints"},
	{"zkSync Era", "Query returned more than 10000 results. Try with this block range [0x118dc91, 0x1198cc3].", -32602,
		RangeTooLarge, "ponder-sh/ponder#724"},
	{"Llama on BSC", "eth_getLogs range is too large, max is 10k blocks", -32000, RangeTooLarge, "ponder-sh/ponder#1362"},
	{"Hyperliquid", "invalid block range", -32603, RangeTooLarge, "ponder-sh/ponder#1234"},
	{"QuickNode under 413", "eth_getLogs is limited to a 10,000 range", -32614, RangeTooLarge,
		"OffchainLabs/arbitrum-sdk#609"},
	{"cdk-erigon", "block range too large, max range: 1000", -32005, RangeTooLarge, "0xPolygon/cdk-erigon#1706"},
	{"reth", "query exceeds max block range 5000", -32602, RangeTooLarge, "paradigmxyz/reth#8558"},
	{"reth on Base", "query exceeds max results 20000, retry with the range 25766988-25775072", -32602, RangeTooLarge,
		"base/base#2421"},
	{"tempo", "query exceeds max results 20000, retry with the range 24383075-24383096", -32602, RangeTooLarge,
		"tempoxyz/rpc-tester#20"},
	{"Morph", "block range is larger than max block range, block range = 5120, max block range = 5000", -32000,
		RangeTooLarge, "enviodev/hyperindex#605"},
	{"BlockPI", "eth_getLogs is limited to 1024 block range. Please check the parameter requirements at  https://docs.blockpi.io/documentations/api-reference", -32602, RangeTooLarge, "DefiLlama/dimension-adapters#793"},
	{"BSC dataseed", "limit exceeded", -32005, RangeTooLarge, "DefiLlama/dimension-adapters#286"},
	{"Frontier", "query timeout of 10 seconds exceeded", -32603, RangeTooLarge, "Analog-Labs/chain-connectors#275"},
	{"Alchemy on Polygon", "Query timeout exceeded. Consider reducing your block range.", -32000, RangeTooLarge,
		"worldcoin/signup-sequencer#274"},
	{"Scroll", "Unable to complete request at this time.", -32001, RangeTooLarge, "joshstevens19/rindexer#327"},
	{"Scroll's forwarder", "Internal server error. Forwarder error: 1000.", 0, RangeTooLarge,
		"joshstevens19/rindexer#327"},
	{"Envio's node 8333", "invalid block range params", -32000, Behind, "enviodev/hyperindex#263"},
	{"geth, block 0 of a pruned node", "failed to get logs for block #0 (0xd4e567..cb8fa3)", -32000, RangeTooLarge,
		"ethereum/go-ethereum#31939"},
	{"geth, pruned", "pruned history unavailable", -32000, Pruned, "ethereum/go-ethereum#31939"},
	{"geth", "missing trie node b03d68ac51042467d7637d4ef9e1c52370abc410f263166965cb1e280b1f6d17 (path )", -32000, Pruned,
		"ethereum/go-ethereum#16471"},
	{"bor", "missing trie node c6ebfa185e24077a555f06caaf4b78d9e0ae9dcb7a693ec753e856f49f55c85c (path ) state 0xc6eb is not available, not found", -32000, Pruned, "0xPolygon/bor#1303"},
	{"Parity", "This request is not supported because your node is running with state pruning. Run with --pruning=archive.", -32000, Pruned, "openethereum/parity-ethereum#11594"},
	{"geth, tracing", "required historical state unavailable (reexec=128)", -32000, Pruned, "blockscout/blockscout#2219"},
	{"Base", "429 Too Many Requests: {\"jsonrpc\":\"2.0\",\"error\":{\"code\":-32016,\"message\":\"over rate limit\"},\"id\":2239375}\n", -32000, RateLimited, "base/node#368"},
	{"Infura", "exceeded project rate limit", -32005, RateLimited, "status-im/status-go#4807"},
	{"Infura's wallet", "Request is being rate limited.", -32005, RateLimited, "safe-global/safe-wallet-monorepo#7939"},
	{"QuickNode", "100/second request limit reached - reduce calls per second or upgrade your account at quicknode.com",
		-32007, RateLimited, "wevm/viem#5083"},
	{"Alchemy", "Your app has exceeded its compute units per second capacity. If you have retries enabled, you can safely ignore this message. If not, check out https://docs.alchemy.com/reference/throughput", 429, RateLimited, "latticexyz/mud#1522"},
	{"QuickNode", "credits limited to 6000/sec", -32012, RateLimited, "latticexyz/mud#1522"},
	{"erigon", "batch limit 100 exceeded: 142 requests given", -32000, BatchRefused, "erigontech/erigon#7072"},
	{"geth", "batch too large", -32600, BatchRefused, "base/node#234"},
	{"Polygon's", "Too many [\"eth_getLogs\"] methods in the batch", -32600, BatchRefused, "ethers-io/ethers.js#4128"},
	{"jsonrpsee", "The batch request was too large", -32010, BatchRefused, "paritytech/jsonrpsee#1107"},
	{"a node without limits' words", "method not found", -32601, Unsupported, "JSON-RPC 2.0, error object"},
}

func TestClassify(t *testing.T) {
	require.GreaterOrEqual(t, len(refusals), 69+40)
	for _, r := range refusals {
		kind := Classify(fmt.Errorf("wrapped: %w", &Error{Code: r.code, Message: r.text}))
		if r.want == RangeTooLarge {
			require.True(t, Shrinks(kind), "%s: %q is %s (%s)", r.who, r.text, kind, r.source)
		} else {
			require.Equal(t, r.want, kind, "%s: %q (%s)", r.who, r.text, r.source)
		}
	}

	for _, c := range []struct {
		err  error
		want Kind
	}{
		{nil, OK}, {&Error{Code: -32005, Message: "limit exceeded"}, RangeTooLarge}, {&Error{Code: 429}, RateLimited},
		{errors.New("anything"), Failed},
		{&Page{Status: 429}, RateLimited}, {&Page{Status: 413}, RangeTooLarge}, {&Page{Status: 502}, Failed},
		{&Page{Status: 503}, Failed}, {&Page{Status: 504}, TimedOut},
		{&Page{Status: 503, Retry: time.Second}, RateLimited},
		{&Page{Status: 403, Text: "error 1015 You are being rate limited"}, RateLimited},
		{&Page{Status: 502, Text: "The request took too long: timeout"}, TimedOut},
		{garbled([]byte("<html>please wait</html>"), errSyntax), Invalid},
		{garbled([]byte("<html><title>Too many requests</title></html>"), errSyntax), RateLimited},
		{context.DeadlineExceeded, TimedOut}, {ErrSlow, TimedOut}, {ErrTooLarge, RangeTooLarge},
		{ErrUnanswered, BatchRefused}, {ErrBehind, Behind}, {ErrInvalid, Invalid},
	} {
		require.Equal(t, c.want, Classify(c.err), "%v", c.err)
	}

	tenderly := &Error{Code: -32602, Message: "invalid params",
		Data: json.RawMessage(`{"error_id":"4ed94073","payload":"range 9009594 is bigger than range limit 2000"}`)}
	require.Equal(t, RangeTooLarge, Classify(tenderly), "the reason stands in data: bobanetwork/boba_legacy#827")
	require.Equal(t, BatchRefused,
		Classify(&Error{Code: -32010, Message: "limit", Data: json.RawMessage(`"Exceeded max limit of batch 10"`)}))
	require.Equal(t, Failed,
		Classify(&Error{Code: 3, Message: "execution reverted", Data: json.RawMessage(`"0x6261746368"`)}),
		"a revert's data is not read")
}

func TestSuggestedRange(t *testing.T) {
	for text, want := range map[string]uint64{
		"this block range should work: [0xad10d9, 0xad10e2]": 10, "up to a 10 block range": 10,
		"ranges over 10000 blocks": 10_000, "Max range: 800": 800, "limited to a 10,000 range": 10_000,
		"max is 1k blocks": 1000, "query returned more than 10000 results": 0, "query timeout of 10 seconds exceeded": 0,
		"internal error": 0, "[0x5, 0x1]": 0,
		"exceed maximum block range: 50000": 50_000, "block range is too wide (maximum 1024)": 1024,
		"[0x0, 0xffffffffffffffff]": 0,
	} {
		require.Equal(t, want, SuggestedRange(&Error{Message: text}), text)
	}
}

func TestRetry(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for v, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "0.5": 500 * time.Millisecond, "-3": 0, "soon": 0, "NaN": 0, "1e300": 10 * time.Minute,
		now.Add(9 * time.Second).Format(http.TimeFormat): 9 * time.Second, now.Add(-time.Hour).Format(http.TimeFormat): 0,
	} {
		require.Equal(t, want, retryAfter(v, now), v)
	}

	for fault, want := range map[string]time.Duration{
		`{"code":-32005,"message":"Too Many Requests, IP: ::ffff:127.0.0.1, please wait 23s and retry."}`:                                                    23 * time.Second,
		`{"code":-32005,"message":"exceeded project rate limit","data":{"rate":{"allowed_rps":5,"backoff_seconds":30,"current_rps":5.2},"see":"https://x"}}`: 30 * time.Second,
		`{"code":429,"message":"call rate limit exhausted, retry in 10s"}`:                                                                                   10 * time.Second, `{"code":429,"message":"try again in 250ms"}`: 250 * time.Millisecond,
		`{"code":429,"message":"retry in 99999 minutes"}`: 10 * time.Minute, `{"code":429,"message":"retry"}`: 0,
	} {
		require.Equal(t, want, RetryIn(parseFault([]byte(fault))), fault)
	}
}

func FuzzFault(f *testing.F) {
	for _, r := range refusals {
		b, _ := json.Marshal(map[string]any{"code": r.code, "message": r.text})
		f.Add(b)
	}

	f.Add([]byte(`{"code":"x","message":1,"data":{"a":[1]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		err := parseFault(b)
		require.NotEmpty(t, err.Error())
		require.NotEmpty(t, Classify(err))
		require.LessOrEqual(t, RetryIn(err), maxRetry)
		_ = SuggestedRange(err)
		require.LessOrEqual(t, len(pageText(b)), maxReason)
	})
}
