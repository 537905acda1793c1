package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// refusal is what a node or provider really says: source is where it was found, an issue of the
// repository named, the owner's documentation, or the notes of the review that collected it.
type refusal struct {
	who, text string
	code      int
	want      Kind
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
	{"Base proxyd", "no backend is currently healthy to serve traffic", -32011, Failed, review},
	{"Coinbase", "please limit the query to at most 1,000 blocks", -32000, RangeTooLarge, review},
	{"LlamaRPC", "query exceeds max results 20000, retry with the range 1-2", -32602, RangeTooLarge, review},
	{"merkle", "eth_getLogs range is too large, max is 1k blocks", -32603, RangeTooLarge, review},
	{"Optimism", "backend response too large", -32020, RangeTooLarge, review},
	{"Cloudflare", "Invalid eth_getLogs request. 'fromBlock'-'toBlock' range too large. Max range: 800", -32047,
		RangeTooLarge, review},
	{"Avalanche", "requested too many blocks from 0 to 10000, maximum is set to 2048", -32000, RangeTooLarge, review},
	{"Moonbeam", "block range is too wide (maximum 1024)", -32000, RangeTooLarge, review},
	{"dRPC timeout", "Request timeout on the free tier, please upgrade your tier to the paid one", 30,
		TimedOut, review},
	{"dRPC", "ranges over 10000 blocks are not supported on freetier", 35, RangeTooLarge, review},
	{"geth timeout", "request timed out", -32002, TimedOut, review},
	{"bor, erigon, op-geth", "context deadline exceeded", -32000, TimedOut, review},
	{"Frontier", "query timeout of 10 seconds exceeded", -32603, TimedOut, review},
	{"SQD's list", "The query timed out", -32000, TimedOut, review},
	{"Nethermind", "Too many logs requested. Max logs per response is 20000.", -32005, RangeTooLarge, review},
	{"Nethermind timeout", "eth_getLogs request was canceled due to enabled timeout.", -32016, TimedOut, review},
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
	{"PublicNode, through a gateway", "Please specify an address in your request or, to remove restrictions, order a dedicated full node here: https://www.allnodes.com/bsc/host", -32603, AddressRequired, "PublicNode's words under another code"},
	{"EIP-4444", "pruned history unavailable", 4444, Pruned, review},
	{"dRPC", "Can't route your request to suitable provider, if you specified certain providers revise the list", 12,
		Failed, review},
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
	{"Infura's documentation", "query timeout exceeded", -32005, TimedOut,
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
	{"Frontier", "query timeout of 10 seconds exceeded", -32603, TimedOut, "Analog-Labs/chain-connectors#275"},
	{"Alchemy on Polygon", "Query timeout exceeded. Consider reducing your block range.", -32000, RangeTooLarge,
		"worldcoin/signup-sequencer#274"},
	{"Scroll", "Unable to complete request at this time.", -32001, Failed, "joshstevens19/rindexer#327"},
	{"Scroll's forwarder", "Internal server error. Forwarder error: 1000.", 0, Failed,
		"joshstevens19/rindexer#327"},
	{"Envio's node 8333", "invalid block range params", -32000, Behind, "enviodev/hyperindex#263"},
	{"geth, block 0 of a pruned node", "failed to get logs for block #0 (0xd4e567..cb8fa3)", -32000, Failed,
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

	{"1RPC on Gnosis", "eth_getLogs is limited to a 1000 blocks range", -32000, RangeTooLarge, "rotki/rotki#8875"},
	{"1RPC by size", "response size should not greater than 10000000 bytes", -32000, RangeTooLarge,
		"ponder-sh/ponder, getLogsRetryHelper.ts"},
	{"Altitude", "allowed block range threshold exceeded", -32000, RangeTooLarge,
		"ponder-sh/ponder, getLogsRetryHelper.ts"},
	{"Arbitrum", "logs matched by query exceeds limit of 10000", -32000, RangeTooLarge,
		"ponder-sh/ponder, getLogsRetryHelper.ts"},
	{"TRON", "exceed max block range: 5000", -32602, RangeTooLarge, "tronprotocol/java-tron, LogFilterWrapper.java"},
	{"StakeWise's node", "Block range 18608 exceeds the maximum of 10000 blocks per logs request. ...", -32602,
		RangeTooLarge, "stakewise/v3-operator#792"},
	{"Scroll's geth", "block range is bigger than maxBlockRange", -32000, RangeTooLarge, "scroll-tech/go-ethereum#529"},
	{"MASQ's node", "eth_getLogs block range too large, range: 855077, max: 3500", -32005, RangeTooLarge,
		"MASQ-Project/MASQ-Node-issues#585"},
	{"Nodies", "Block range too large: maximum allowed is 20000 blocks", -32001, RangeTooLarge, "MASQ-Project/Node#734"},
	{"Alchemy by Envio", "block range too large (2500), maximum allowed is 2000 blocks", -32000, RangeTooLarge,
		"enviodev/hyperindex#716"},
	{"Arc", "Query exceeds max block range of 10000", -32600, RangeTooLarge, "circlefin/arc-node#383"},
	{"Candle", "block range too high", -32600, RangeTooLarge, "AlphaWallet/alpha-wallet-ios#5277"},
	{"zkEVM", "logs are limited to a 10000 block range", -32602, RangeTooLarge, "0xPolygon/zkevm-node#3136"},
	{"Conflux", "Error processing request: Filter error: The gap between from_epoch and to_epoch is larger than max_gap (from: 71160000, to: 71252840, max_gap: 1000)", -32016, RangeTooLarge, "doc.confluxnetwork.org, eth_getLogs"},
	{"Confura", "query set is too large, please narrow down your filter condition", -32000, RangeTooLarge,
		"Conflux-Chain/conflux-documentation#335"},
	{"Confura", "result set to be queried is too large with more than 10000 logs, please narrow down your filter condition", -32000, RangeTooLarge, "Conflux-Chain/conflux-documentation#335"},
	{"Confura", "query timeout with duration exceeds 3s", -32000, TimedOut, "Conflux-Chain/conflux-documentation#335"},
	{"Confura", "event logs are too stale (already pruned)", -32000, Pruned, "Conflux-Chain/conflux-documentation#335"},
	{"Confura", "server is too busy, please try again later", -32000, RateLimited,
		"Conflux-Chain/conflux-documentation#335"},
	{"Hedera", "The request payload exceeded the maximum size limit. Use a smaller block range.", -32000, RangeTooLarge,
		"hiero-ledger/hiero-json-rpc-relay, JsonRpcError.ts"},
	{"Hedera", "Exceeded maximum block range: 1000", -32000, RangeTooLarge,
		"hiero-ledger/hiero-json-rpc-relay, JsonRpcError.ts"},
	{"Hedera", "The provided fromBlock and toBlock contain timestamps that exceed the maximum allowed duration of 7 days (604800 seconds): fromBlock: 0x1 (1), toBlock: 0x2 (700000)", -32004, RangeTooLarge, "hiero-ledger/hiero-json-rpc-relay, JsonRpcError.ts"},
	{"Hedera", "Exceeded maximum mirror node pagination count: 20", -32011, RangeTooLarge,
		"hiero-ledger/hiero-json-rpc-relay, JsonRpcError.ts"},
	{"Hedera", "IP Rate limit exceeded on eth_getLogs", -32605, RateLimited,
		"hiero-ledger/hiero-json-rpc-relay, JsonRpcError.ts"},
	{"Hedera", "Request beyond head block: requested 100, head 90", -32000, Behind,
		"hiero-ledger/hiero-json-rpc-relay, JsonRpcError.ts"},
	{"Hedera", "Unknown block", -39012, Behind, "hiero-ledger/hiero-json-rpc-relay, JsonRpcError.ts"},
	{"Hedera", "Batch request amount 50 exceeds max 10", -32203, BatchRefused,
		"hiero-ledger/hiero-json-rpc-relay, JsonRpcError.ts"},
	{"Hedera", "Batch requests are disabled", -32202, BatchRefused, "hiero-ledger/hiero-json-rpc-relay, JsonRpcError.ts"},
	{"Hedera", "Request timeout. Please try again.", -32010, TimedOut,
		"hiero-ledger/hiero-json-rpc-relay, JsonRpcError.ts"},
	{"Sei", "requested block range [5, 90] includes pruned blocks, earliest available block is 100", -32000, Pruned,
		"sei-protocol/sei-chain, evmrpc/filter.go"},
	{"Sei", "requested fromBlock 5 is before earliest available block 100", -32000, Pruned,
		"sei-protocol/sei-chain, evmrpc/filter.go"},
	{"Sei", "requested height 5 receipts have been pruned; earliest available is 10", -32000, Pruned,
		"sei-protocol/sei-chain, evmrpc/watermark_manager.go"},
	{"Sei", "requested toBlock 500 is after latest available block 400", -32000, Behind,
		"sei-protocol/sei-chain, evmrpc/filter.go"},
	{"Sei", "requested height 5 is not yet available; safe latest is 4: block height not yet available", -32000, Behind,
		"sei-protocol/sei-chain, evmrpc/watermark_manager.go"},
	{"Sei", "could not find block for height 826401374464", -32000, Behind, "gitshreevatsa/Assignment-Overview"},
	{"Sei", "log query rate limit exceeded for large queries, please try again later", -32000, RateLimited,
		"sei-protocol/sei-chain, evmrpc/filter.go"},
	{"Sei", "server too busy, rejecting new request (pending: 90, threshold: 64)", -32000, RateLimited,
		"sei-protocol/sei-chain, evmrpc/filter.go"},
	{"Sei", "server I/O saturated, rejecting new request (semaphore: 1024/1024 in use)", -32000, Failed,
		"sei-protocol/sei-chain, evmrpc/filter.go"},
	{"Avalanche", "requested from block 10 after last accepted block 9", -32000, Behind,
		"ava-labs/coreth, eth/filters/filter.go"},
	{"reth", "request beyond head block: requested 10, head 5", -32602, Behind,
		"paradigmxyz/reth, rpc-eth-types/src/error/mod.rs"},
	{"reth", "header range not found, start block 1, end block 5", -32603, Behind,
		"paradigmxyz/reth, rpc-eth-types/src/error/mod.rs"},
	{"reth", "pruned history unavailable: requested 5, earliest available 10", 4444, Pruned,
		"paradigmxyz/reth, rpc-eth-types/src/error/mod.rs"},
	{"Besu", "Number of requests exceeds max batch size", -32005, BatchRefused, "hyperledger/besu, RpcErrorType.java"},
	{"Besu", "Timeout expired", -32603, TimedOut, "hyperledger/besu, RpcErrorType.java"},
	{"Besu", "Block not found", -32000, Behind, "hyperledger/besu, RpcErrorType.java"},
	{"Besu", "Method not enabled", -32604, Unsupported, "hyperledger/besu, RpcErrorType.java"},
	{"Besu", "Unauthorized", -40100, Unsupported, "hyperledger/besu, RpcErrorType.java"},
	{"zkSync Era", "Block with such an ID is pruned; the first retained block is 5", -32602, Pruned,
		"matter-labs/zksync-era, web3_decl/src/error.rs"},
	{"Lotus", "requested a future epoch (beyond 'latest')", 1, Behind,
		"filecoin-project/lotus, node/impl/eth/tipsetresolver.go"},
	{"Lotus", "events for the requested block are not yet available", 1, Behind,
		"filecoin-project/lotus, node/impl/eth/api.go"},
	{"Lotus", "filter matches too many events, try a more restricted filter", 1, RangeTooLarge,
		"filecoin-project/lotus, chain/index/events.go"},
	{"Lotus's gateway", "lookbacks of more than 24h0m0s are disallowed", 1, Pruned,
		"filecoin-project/lotus, gateway/node.go"},
	{"Filecoin", "invalid epoch range", 1, RangeTooLarge, "filecoin-project/ref-fvm#1206"},
	{"Erigon", "state transitaion failed: seek with txNum=1962853355 but data before txNum=2662500000 is not available: blockNum=16999999, txNum=1962853355", -32000, Pruned, "erigontech/erigon#13198"},
	{"Erigon", "old data not available due to pruning: from tx: 1909646215, min tx: 3200000000", -32000, Pruned,
		"erigontech/erigon#19215"},
	{"Erigon", "block 5 exists but transaction indexing is not yet complete, please try again later", -32000, Behind,
		"erigontech/erigon, rpc/jsonrpc/eth_receipts.go"},
	{"Erigon", "query exceeds the maximum of 1000 addresses or topics per search position", -32602, TooManyAddresses,
		"erigontech/erigon#23211"},
	{"Erigon", "block not found 11185311", -32000, Behind, "erigontech/erigon#2770"},
	{"geth", "header not found", -32000, Behind, "ethereum/go-ethereum, eth/filters/filter.go"},
	{"geth", "header for hash not found", -32000, Behind, "ethereum/go-ethereum, eth/api_backend.go"},
	{"geth", "head block not available", -32000, Behind, "ethereum/go-ethereum, eth/filters/filter.go"},
	{"geth", "context canceled", -32000, TimedOut, "ethereum/go-ethereum#19146"},
	{"bor", "failed to get logs for block #24256133 (0xe366b3..729727)", -32000, Failed, "0xPolygon/bor#1678"},
	{"BSC", "pebble: not found", -32000, Failed, "bnb-chain/bsc#2179"},
	{"Ethermint", "failed to fetch header by number (latest): rpc error: code = NotFound desc = rpc error: code = NotFound desc = block bloom not found: key not found", -32000, Behind, "evmos/ethermint#248"},
	{"OpenEthereum", "One of the blocks specified in filter (fromBlock, toBlock or blockHash) cannot be found", -32000,
		Behind, "hoprnet/hoprnet#2736"},
	{"Nethermind", "Unable to rent an instance of IEthRpcModule. Too many concurrent requests.", -32017, RateLimited,
		"NethermindEth/nethermind#5923"},
	{"Nethermind", "Unable to start new queued requests for IEthRpcModule. Too many queued requests. Queued calls 501.",
		-32005, RateLimited, "NethermindEth/nethermind, BoundedModulePool.cs"},
	{"Nethermind", "8633830 could not be found", -32001, Behind, "equilibriumco/pathfinder#943"},
	{"Nethermind", "Receipt not available for 'From' block '11052984'.", -32001, Pruned, "NethermindEth/nethermind#5230"},
	{"Nitro", "requested block ahead of current block and the hash is not currently canonical", -32000, Behind,
		"OffchainLabs/go-ethereum, arbitrum/apibackend.go"},
	{"Kaia", "the block does not exist (block number: 5)", -32000, Behind, "kaiachain/kaia, api/api_kaia_blockchain.go"},
	{"Kaia", "query timeout exceeded", -32000, TimedOut, "kaiachain/kaia, node/cn/filters/filter.go"},
	{"Cloudflare", "Invalid Request. Requested data is older than 128 blocks.", 0, Pruned,
		"OffchainLabs/arbitrum-token-bridge#185"},
	{"PublicNode, old blocks", "Archive requests require a personal token. Get one at: https://www.allnodes.com/publicnode", -32602, Pruned, "PublicNode, under HTTP 403"},
	{"PublicNode", "Please, specify less number of addresses", -32000, TooManyAddresses,
		"erpc/erpc, error_normalizer.go"},
	{"Infura", "This query contains 5006 filters. The current limit is 5000.", -32603, TooManyAddresses,
		"erpc/erpc, error_normalizer_test.go"},
	{"eRPC", "getLogs request exceeded max allowed range", -32012, RangeTooLarge, "erpc/erpc, common/errors.go"},
	{"eRPC", "getLogs request exceeded max allowed addresses", -32012, TooManyAddresses, "erpc/erpc, common/errors.go"},
	{"eRPC", "upstream-level rate limit rule exceeded", -32005, RateLimited, "erpc/erpc, common/errors.go"},
	{"eRPC", "remote endpoint capacity exceeded", -32005, RateLimited, "erpc/erpc, common/errors.go"},
	{"Alchemy, through eRPC", "Cancelled due to validation errors in batch request", -32600, BatchRefused,
		"erpc/erpc, error_normalizer.go"},
	{"a provider of eRPC's", "Exceeded the quota", -32000, RateLimited, "erpc/erpc, error_normalizer.go"},
	{"proxyd", "backend is over capacity", -32012, RateLimited, "ethereum-optimism/infra, proxyd/backend.go"},
	{"proxyd", "too many RPC calls in batch request", -32014, BatchRefused, "ethereum-optimism/infra, proxyd/backend.go"},
	{"proxyd", "gateway timeout", -32015, TimedOut, "ethereum-optimism/infra, proxyd/backend.go"},
	{"proxyd", "backend offline", -32010, Failed, "ethereum-optimism/infra, proxyd/backend.go"},
	{"proxyd", "block is out of range", -32019, Behind, "ethereum-optimism/optimism, proxyd/backend.go"},
	{"proxyd", "request body too large", -32021, TooManyAddresses, "ethereum-optimism/infra, proxyd/backend.go"},
	{"Alchemy", "Unsupported methods [trace_block] in batch call. See available methods at https://docs.alchemy.com/alchemy/documentation/apis", -32600, BatchRefused, "agnosticeng/clickhouse-evm#4"},
	{"dRPC", "Batch of more than 3 requests are not allowed on free plan", 31, BatchRefused, "dRPC, under HTTP 500"},
	{"Ankr", "Unauthorized: You must authenticate your request with an API key. Create an account on https://www.ankr.com/rpc/ and generate your personal API key for free.", -32000, Unsupported, "BitteProtocol/near-ca#173"},
	{"Ankr", "API key is not allowed to access blockchain", -32052, Unsupported, "wevm/viem#3476"},
	{"Ankr", "No nodes available", -32055, Failed, "ankr.com/docs, RPC errors"},
	{"Tenderly", "rate limit exceeded", -32005, RateLimited, "fluencelabs/dev-rewards#20"},
	{"QuickNode", "The requests per second (RPS) of your requests are higher than your plan allows.", 429, RateLimited,
		"quicknode.com/docs, error references"},
	{"QuickNode, through a gateway", "The requests per second (RPS) of your requests are higher than your plan allows.", -32603, RateLimited, "QuickNode's words under another code"},
	{"Infura's day", "Payment Required", 402, RateLimited, "docs.metamask.io, avoid rate limiting"},
	{"Ankr", "call rate limit exhausted", -32090, RateLimited, "ankr.com/docs, charging policy"},
	{"Managed Blockchain", "The request or operation couldn't be performed because a service is throttling requests.", -32000, RateLimited, "docs.aws.amazon.com, Managed Blockchain, ThrottlingException"},
	{"BlockVision", "Too many requests were made, these requests are be limited.", -32605, RateLimited,
		"docs.blockvision.org, error code reference"},
	{"BlockVision", "The call limit has been reached, please upgrade your subscription", -32607, RateLimited,
		"docs.blockvision.org, error code reference"},
	{"NodeReal", "You have reached the maximum API usage limit of public. If you need higher throughput, please check out https://meganode.nodereal.io/", -32005, RateLimited, "bnb-chain/bnb-chain.github.io#38"},
	{"a gateway", "compute unit quota exceeded", -32005, RateLimited, "docs.lab.au.ro, errors"},
	{"a gateway", "Heavy method rate limit: 1/min for eth_getLogs", -32000, RateLimited, "docs.lab.au.ro, errors"},
	{"Energy Web", "Limit exceeded: Query requested more than 10.000 blocks", -32005, RangeTooLarge,
		"energywebfoundation/origin#2378"},
	{"Aion", "jsonrpc - eth_newFilter(): can't query more than 1000 blocks", -32000, RangeTooLarge,
		"aionnetwork/aion#1080"},
	{"Managed Blockchain", "message response is too large", -32000, RangeTooLarge,
		"docs.aws.amazon.com, Managed Blockchain, supported JSON-RPC methods"},
	{"Pocket", "Internal JSON-RPC error.", -32603, Failed, "pokt-network/pocket-core#1402"},
}

func TestClassify(t *testing.T) {
	require.GreaterOrEqual(t, len(refusals), 69+40+100)
	for _, r := range refusals {
		kind := Classify(fmt.Errorf("wrapped: %w", &Error{Code: r.code, Message: r.text}))
		require.Equal(t, r.want, kind, "%s: %q (%s)", r.who, r.text, r.source)
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

}

// The reason may stand in data, in capitals, behind much else, or on a page.
func TestClassifyWhereverItStands(t *testing.T) {
	for fault, want := range map[string]Kind{
		// bobanetwork/boba_legacy#827
		`{"code":-32602,"message":"invalid params","data":{"error_id":"4ed9","payload":"range 9009594 is bigger than range limit 2000"}}`: RangeTooLarge,
		`{"code":-32010,"message":"limit","data":"Exceeded max limit of batch 10"}`:                                                       BatchRefused,
		`{"code":-32603,"message":"Internal error","data":{"cause":{"why":["HEADER NOT FOUND"]}}}`:                                        Behind,
		`{"code":-32000,"message":"MISSING TRIE NODE"}`:                                                                                   Pruned,
		// Infura, where the data says how long to wait
		`{"code":-32005,"message":"exceeded project rate limit","data":{"rate":{"allowed_rps":5,"backoff_seconds":30}}}`: RateLimited,
		// aurora-is-near/aurora-relayer#327: the data repeats the request
		`{"code":-32005,"message":"query returned more than 10000 results","data":{"host":"localhost:8545","request_body":{"method":"eth_getLogs","params":[{"fromBlock":1,"toBlock":2}]}}}`: RangeTooLarge,
		// ankr.com/docs: every fault has a trace id
		`{"code":-32055,"message":"No nodes available","data":{"trace_id":"4b1f...e9c2"}}`: Failed,
		`{"code":3,"message":"execution reverted","data":"0x6261746368"}`:                  Failed, // a revert's data is not read
		`{"code":"RATE","message":"Too many requests"}`:                                    RateLimited,
		`"over rate limit"`: RateLimited,
	} {
		require.Equal(t, want, Classify(parseFault([]byte(fault))), fault)
	}

	for _, c := range []struct {
		status int
		body   string
		want   Kind
	}{
		{403, `<html><title>Access denied</title><h1>Error 1015</h1>You are being rate limited</html>`, RateLimited},
		{403, `{"message":"Archive requests require a personal token. Get one at: https://www.allnodes.com/publicnode"}`, Pruned},
		{400, `{"message":"block range too large"}`, RangeTooLarge},
		{401, `message: API key not found, trace_id: 4b1f...e9c2`, Unsupported},
		{402, `{"message":"account suspended - contact your administrator"}`, RateLimited},
		{403, `{"message":"API key not found"}`, Unsupported},
		{413, `<html><head><title>413 Request Entity Too Large</title></head><hr><center>nginx</center></html>`, RangeTooLarge},
		{429, `{"message":"API rate limit exceeded"}`, RateLimited},
		{500, `{"error":"Internal server error. Forwarder error: 1000."}`, Failed},
		{502, `<html><title>502 Bad Gateway</title><body>the response exceeded the maximum size</body></html>`, Failed},
		{503, `upstream connect error or disconnect/reset before headers`, Failed},
		{503, `<html>the server is too busy</html>`, RateLimited},
		{504, ``, TimedOut}, {524, ``, TimedOut}, {404, `the page could not be found`, Failed}, {200, `<html>ok</html>`, Failed},
	} {
		refused := newMessage(strings.NewReader(c.body), 1<<20).refusal(c.status)
		require.Equal(t, c.want, Classify(refused), "%d %s", c.status, c.body)
	}

	for _, r := range refusals {
		whole, err := json.Marshal(map[string]any{"code": r.code, "message": strings.ToUpper(r.text)})
		require.NoError(t, err)
		require.Equal(t, r.want, Classify(parseFault(whole)), r.text)
	}
}

// Each word is needed: without it a text of the table is taken for something else. A word that no
// node is known to say is not worth its risk.
func TestEachWordIsNeeded(t *testing.T) {
	wrong := func() (list []string) {
		for _, r := range refusals {
			if Classify(&Error{Code: r.code, Message: r.text}) != r.want {
				list = append(list, r.text)
			}
		}

		return list
	}
	var needless []string
	for _, words := range []*[]string{&batchWords, &addressWords, &needsAddressWords, &rateWords, &behindWords,
		&prunedWords, &paidWords, &rangeWords, &slowWords, &archiveWords, &unsupportedWords} {
		all := *words
		for i, word := range all {
			*words = slices.Delete(slices.Clone(all), i, i+1)
			if len(wrong()) == 0 {
				needless = append(needless, word)
			}
		}

		*words = all
	}

	require.Empty(t, needless)
}

func TestRetry(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for v, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "0.5": 500 * time.Millisecond, "-3": 0, "soon": 0, "NaN": 0, "1e300": 10 * time.Minute,
		now.Add(9 * time.Second).Format(http.TimeFormat): 9 * time.Second, now.Add(-time.Hour).Format(http.TimeFormat): 0,
	} {
		require.Equal(t, want, retryAfter(v, now), v)
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
		require.LessOrEqual(t, len(pageText(b)), maxReason)
	})
}

// A stream or a connection that HTTP/2 ends for its rate is a limit of the rate, one that it ends otherwise
// is not. The texts are those of net/http.
func TestClassifyHTTP2(t *testing.T) {
	for text, want := range map[string]Kind{
		"stream error: stream ID 3; ENHANCE_YOUR_CALM; received from peer":                               RateLimited,
		"http2: server sent GOAWAY and closed the connection; LastStreamID=5, ErrCode=ENHANCE_YOUR_CALM": RateLimited,
		"stream error: stream ID 3; INTERNAL_ERROR; received from peer":                                  Failed,
	} {
		require.Equal(t, want, Classify(&url.Error{Op: "Post", URL: "https://node", Err: errors.New(text)}), text)
	}
}
