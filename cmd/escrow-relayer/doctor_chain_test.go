package main

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
)

// What doctor says of an endpoint is true, and tells what to do, in each of the ways in which
// providers differ.
func TestDoctorOfAnEndpoint(t *testing.T) {
	said := func(text string) error { return &rpc.Error{Code: -32000, Message: text} }
	archive := said("Archive requests require a personal token. Get one at: https://www.allnodes.com/publicnode")
	for name, c := range map[string]struct {
		change func(x *chain.Examination)
		of     string
		want   verdict
		words  string
		not    string
		limit  uint64 // 0: none
	}{
		"well": {func(*chain.Examination) {}, "range", fine, "which is all that was asked for", "", 0},
		"a limit in known words": {func(x *chain.Examination) {
			x.Range, x.RangeErr = 100, said("block range too large")
		}, "range", note, "logs of 100 blocks at once: a backfill will be slow", "", 100},
		"a limit in unknown words": {func(x *chain.Examination) {
			x.Range, x.RangeErr = 800, said("nay")
		}, "range", fine, "logs of 800 blocks at once; to more it says", "could not be tested", 800},
		"a limit of time": {func(x *chain.Examination) {
			x.Range, x.RangeErr = 100, said("context deadline exceeded")
		}, "range", note, "logs of 100 blocks at once", "could not be tested", 100},
		"old blocks for money": {func(x *chain.Examination) {
			x.Range, x.RangeErr, x.Oldest, x.OldestErr, x.OldestLogs = 101, archive, 1900, archive, true
		}, "history", wrong, "logs go back to block 1900 only, and START_BLOCK is 100", "", 0},
		"the range of one that lacks old blocks": {func(x *chain.Examination) {
			x.Range, x.RangeErr, x.Oldest, x.OldestErr, x.OldestLogs = 101, archive, 1900, archive, true
		}, "range", note, "more could not be tested", "", 0},
		"old blocks are null": {func(x *chain.Examination) {
			x.Oldest, x.OldestErr = 1500, rpc.ErrBehind
		}, "history", wrong, "headers go back to block 1500 only", "does not have the block yet", 0},
		"no logs at all": {func(x *chain.Examination) {
			x.Range, x.RangeErr = 0, said("limit exceeded")
			x.Oldest, x.OldestErr, x.OldestLogs = 2000, said("limit exceeded"), true
		}, "range", wrong, "use another endpoint", "", 0},
		"the history of one without logs": {func(x *chain.Examination) {
			x.Range, x.RangeErr = 0, said("limit exceeded")
			x.Oldest, x.OldestErr, x.OldestLogs = 2000, said("limit exceeded"), true
		}, "history", unknown, "no logs of any block", "archive node", 0},
		"slow": {func(x *chain.Examination) { x.Latency = 1100 * time.Millisecond }, "latency", note, "1.1s (median)", "", 0},
		"a rate": {func(x *chain.Examination) { x.Rate = 1.5 }, "rate", note, "asked for 1.5 requests per second",
			"went through", 0},
		"a rate, and too little time": {func(x *chain.Examination) {
			x.Rate, x.Err = 1.5, context.DeadlineExceeded
		}, "chain", unknown, "name a longer --timeout; it limits the rate", "", 0},
		"wrong chain": {func(x *chain.Examination) {
			x.Head, x.Err = 0, fmt.Errorf("%w: it serves chain 5, CHAIN_ID is 1", endpoint.ErrWrongChain)
		}, "chain", wrong, "correct its URL in RPC_URLS, or CHAIN_ID", "", 0},
		"no key": {func(x *chain.Examination) {
			x.Head, x.Err = 0, &rpc.Page{Status: 401, Text: "message: API key not found"}
		}, "chain", wrong, "it wants an API key", "", 0},
		"forbidden": {func(x *chain.Examination) {
			x.Head, x.Err = 0, &rpc.Page{Status: 403, Text: "Forbidden"}
		}, "chain", wrong, "it wants an API key, or refuses this one", "", 0},
		"unauthorized in words": {func(x *chain.Examination) {
			x.Head, x.Err = 0, said("Unauthorized: You must authenticate your request with an API key.")
		}, "chain", wrong, "it wants an API key", "", 0},
		"wrong path": {func(x *chain.Examination) { x.Head, x.Err = 0, &rpc.Page{Status: 404} }, "chain", wrong,
			"the path of its URL", "", 0},
		"a time ahead of the clock": {func(x *chain.Examination) {
			x.HeadTime = time.Now().Add(time.Hour)
		}, "head", fine, "ahead of this machine's clock", "-", 0},
		"a final block above the head": {func(x *chain.Examination) {
			above := x.Head + 1_000_000
			x.Finalized = &above
		}, "finalized", note, "it calls block 1002000 finalized, and its head is block 2000", "below the head", 0},
		"a page": {func(x *chain.Examination) {
			x.Head, x.Err = 0, fmt.Errorf("a page: %w", &rpc.Page{Text: "Welcome"})
		}, "chain", wrong, "correct its host, port and path in RPC_URLS", "", 0},
		"nothing left for today": {func(x *chain.Examination) {
			x.Head, x.Err = 0, &rpc.Error{Code: 402, Message: "Payment Required"}
		}, "chain", wrong, "its allowance is used up", "", 0},
		"silent": {func(x *chain.Examination) { x.Head, x.Err = 0, rpc.ErrSlow }, "chain", wrong, "no answer in time",
			"", 0},
		"no blocks announced": {func(x *chain.Examination) {
			x.WebSocket, x.Subscribes = true, said("notifications not supported")
		}, "newHeads", note, "it does not announce blocks, and is polled", "", 0},
		"logs that show themselves": {func(x *chain.Examination) { x.Logged = 103 }, "history", fine,
			"the logs that block 103 has by its bloom filter", "", 0},
		"no logs by which to test": {func(*chain.Examination) {}, "history", fine,
			"none of the blocks after it has logs by which to test those", "", 0},
		"headers of another kind": {func(x *chain.Examination) { x.Hashes = false }, "headers", note,
			"two endpoints have to say the same of a block", "", 0},
		"headers that hash":   {func(*chain.Examination) {}, "headers", fine, "they hash as Ethereum's do", "", 0},
		"receipts that prove": {func(*chain.Examination) {}, "receipts", fine, "they prove the logs of block 1990", "", 0},
		"receipts of another kind": {func(x *chain.Examination) { x.Unproved = endpoint.ErrUnproved }, "receipts", note,
			"they do not prove the logs of block 1990", "", 0},
		"no receipts to test": {func(x *chain.Examination) { x.Receipts = 0 }, "receipts", unknown,
			"none of the newest blocks has logs", "", 0},
		"no old state": {func(x *chain.Examination) { x.StateErr = said("missing trie node") }, "state", note,
			"does not have that of START_BLOCK, so a factory's nonce is not compared", "", 0},
		"old state": {func(*chain.Examination) {}, "state", fine, "back to START_BLOCK", "", 0},
		"addresses": {func(x *chain.Examination) { x.Addressed = errors.New("name them") }, "filter", wrong,
			"set LOG_FILTER=addresses: it gives logs of named contracts only", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := &doctor{of: "https://rpc.example.com",
				cfg: &config.Config{ChainID: 1, StartBlock: 100, RPCMaxRange: 1000, LogFilter: "auto"}}
			x := &chain.Examination{Name: d.of, ChainID: 1, Head: 2000, HeadTime: time.Now(),
				Range: 1000, Oldest: 100, Provable: endpoint.Provable{Hashes: true, Receipts: 1990}}
			c.change(x)
			if d.serves(x) {
				d.endpoint(x, x.Head)
			}

			d.says(t, c.want, x.Name, c.of, c.words)
			_, found := d.verdict(x.Name, c.of)
			if c.not != "" {
				require.NotContains(t, found, c.not)
			}

			require.Equal(t, c.limit > 0, limited(x))
		})
	}
}
