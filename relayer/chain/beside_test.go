package chain

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/proof"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// What a header that proves nothing does not list is no proof that it is not there: neither transactions, nor their
// root, nor gas, nor a bloom filter, together or each alone, nor an empty list of receipts.
func TestUnprovedHeaderExcludesNothing(t *testing.T) {
	lacks := map[string]map[string]any{
		"transactions": {"transactions": []string{}},
		"root":         {"transactionsRoot": types.EmptyTxsHash, "receiptsRoot": types.EmptyReceiptsHash},
		"gas":          {"gasUsed": "0x0", "transactionsRoot": types.EmptyTxsHash, "transactions": nil},
		"bloom":        {"logsBloom": types.Bloom{}},
		"another":      {"logsBloom": types.Bloom{1}},
		"all": {"transactions": []string{}, "transactionsRoot": types.EmptyTxsHash, "receiptsRoot": types.EmptyReceiptsHash,
			"gasUsed": "0x0", "logsBloom": types.Bloom{}},
	}
	for name, members := range lacks {
		for _, receipts := range []string{"right", "none", "empty"} {
			t.Run(name+", receipts "+receipts, func(t *testing.T) {
				t.Parallel()
				chain := newChain(20, 2, 0)
				n := startNode(t, chain)
				n.receipts = receipts == "right"
				n.lie = func(method string, params []json.RawMessage) (any, error) {
					switch {
					case method == rpc.GetReceipts && receipts == "empty":
						return []any{}, nil
					case method != rpc.GetByNumber && method != rpc.GetByHash:
						return nil, nil
					}

					n.mu.Lock()
					defer n.mu.Unlock()
					block, err := n.answer(method, params)
					if b, is := block.(map[string]any); is {
						maps.Copy(b, members)
					}

					return block, err
				}
				s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest})
				await(t, s, func(v View) bool { return v.Target == 20 })
				if name == "another" || receipts == "empty" && name != "transactions" && name != "all" {
					for b, err := range s.Read(t.Context(), 1, 20, filterA()) {
						require.True(t, err != nil || len(b.Logs) == len(chain.all(b.From, b.To)))
					}

					return // what contradicts itself delays, and leaves nothing out
				}

				got, _ := collect(t, s, 1, 20, filterA())
				require.True(t, slices.EqualFunc(chain.all(1, 20), got, SameLog))
			})
		}
	}
}

// Transactions and receipts that nodes list and that are under no root (Polygon's state sync behind the others, what
// other chains' systems send before them) make nobody a liar. What the roots name is proved all the same where they are
// listed last, and nothing of ours is among them.
func TestWhatIsUnderNoRoot(t *testing.T) {
	for _, first := range []bool{false, true} {
		for _, nodes := range []int{1, 2} {
			t.Run(fmt.Sprintf("before the others %t, %d nodes", first, nodes), func(t *testing.T) {
				chain := newChain(20, 2, 0)
				chain.seal()
				var urls []string
				for range nodes {
					n := startNode(t, chain)
					n.receipts = true
					n.lie = beside(n, first)
					urls = append(urls, n.server.URL)
				}

				s := start(t, Config{URLs: urls, ChainID: 1, Finality: Latest, believeAfter: time.Hour})
				s.Demand([]string{"headers hash", "receipts prove"})
				await(t, s, func(v View) bool { return v.Target == 20 })
				got, _ := collect(t, s, 1, 20, filterA())
				require.True(t, slices.EqualFunc(chain.all(1, 20), got, SameLog))
				require.Empty(t, s.Faults())
				require.True(t, s.Endpoints()[0].Up)
				if !first && nodes > 1 {
					require.Equal(t, Proved, s.Trust())
				}
			})
		}
	}
}

// beside has a node list a transaction and a receipt more, with a log of a system's contract, in each block with logs.
func beside(n *testNode, first bool) func(string, []json.RawMessage) (any, error) {
	hash := common.Hash{0x5e}
	put := func(list []any, item any) []any {
		if first {
			return append([]any{item}, list...)
		}

		return append(list, item)
	}

	return func(method string, params []json.RawMessage) (any, error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		answer, err := n.answer(method, params)
		if err != nil || method != rpc.GetReceipts && method != rpc.GetByHash && method != rpc.GetByNumber {
			return nil, nil
		}

		var list []any
		b, _ := answer.(map[string]any)
		switch {
		case method == rpc.GetReceipts:
			_ = json.Unmarshal(marshal(answer), &list)
		case b != nil:
			_ = json.Unmarshal(marshal(b["transactions"]), &list)
		}

		if len(list) == 0 {
			return answer, nil
		}

		if method == rpc.GetReceipts {
			of, _ := list[0].(map[string]any)
			return put(list, map[string]any{"type": "0x0", "status": "0x1", "cumulativeGasUsed": "0x0", "gasUsed": "0x0",
				"logsBloom": types.Bloom{}, "transactionHash": hash, "blockHash": of["blockHash"], "blockNumber": of["blockNumber"],
				"logs": []types.Log{{Address: common.Address{0x10, 0x10}, Topics: []common.Hash{{0x10}}, TxHash: hash, Index: 2,
					BlockHash: common.HexToHash(of["blockHash"].(string))}}}), nil
		}

		item := any(hash)
		if _, whole := list[0].(map[string]any); whole {
			item = map[string]any{"type": "0x0", "hash": hash, "from": common.Address{}, "to": common.Address{}, "gas": "0x0"}
		}

		b["transactions"] = put(list, item)

		return b, nil
	}
}

// A log of a contract that nobody follows, which names no transaction, makes no block unreadable: it is the reader's
// to drop. One of a contract that was named is refused.
func TestStrangersLogWithoutTransaction(t *testing.T) {
	chain := newChain(20+farBlocks, 2, 0)
	stranger := types.Log{Address: common.Address{0x99}, Topics: []common.Hash{topicA}, BlockNumber: 4,
		BlockHash: chain.headers[4].Hash, Index: 50}
	chain.logs[stranger.BlockHash] = append(chain.logs[stranger.BlockHash], stranger)
	chain.headers[4].Bloom.Add(stranger.Address.Bytes())
	for _, final := range []uint64{0, 20} {
		n := startNode(t, chain)
		n.finalized = final
		s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest})
		await(t, s, func(v View) bool { return v.Final == final && v.Target == 20+farBlocks })
		got, _ := collect(t, s, 1, 20, filterA())
		require.Len(t, got, len(chain.all(1, 20)))
		named := &Filter{Topics: []common.Hash{topicA}, Addresses: []common.Address{stranger.Address}}
		for b, err := range s.Read(t.Context(), 4, 4, named) {
			require.Error(t, err, "block %d", b.To)
		}
	}
}

// A number with leading zeros is one, and so is an id that is a float.
func TestLooseNumbers(t *testing.T) {
	chain := newChain(5, 1, 0)
	n := startNode(t, chain)
	n.lie = func(method string, _ []json.RawMessage) (any, error) {
		if method == rpc.ChainID {
			return "0x0001", nil
		}

		return nil, nil
	}
	s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest})
	await(t, s, func(v View) bool { return v.Target == 5 })
}

// A fork brings a type of transactions that nobody knows yet. Its receipts are encoded as those of all types so far
// (EIP-2718), and the node gives its transactions as they are in the block: both are proved.
func TestUnknownTypeIsProved(t *testing.T) {
	for _, raw := range []bool{true, false} {
		t.Run(fmt.Sprintf("the node gives raw transactions %t", raw), func(t *testing.T) {
			t.Parallel()
			chain := newChain(20, 2, 0)
			chain.seal()
			encoded, hash := chain.unknownType()
			n := startNode(t, chain)
			n.receipts = true
			n.lie = func(method string, params []json.RawMessage) (any, error) {
				n.mu.Lock()
				defer n.mu.Unlock()
				answer, err := n.answer(method, params)
				b, _ := answer.(map[string]any)
				switch {
				case method == rpc.GetRaw && raw && string(params[0]) == fmt.Sprintf("%q", hash):
					return hexutil.Bytes(encoded), nil
				case b != nil && b["number"] == "0x14" && len(params) == 2 && string(params[1]) == "true":
					b["transactions"] = []any{map[string]any{"type": "0x5", "hash": hash, "novelty": "0x1"}}
				case b != nil && b["number"] == "0x14":
					b["transactions"] = []common.Hash{hash}
				}

				return answer, err
			}
			s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest})
			await(t, s, func(v View) bool { return v.Target == 20 })
			if raw {
				got, _ := collect(t, s, 1, 20, filterA())
				require.True(t, slices.EqualFunc(chain.all(1, 20), got, SameLog))
				require.False(t, s.unproved.Load())
			} else { // one endpoint alone could invent the type, and the hash
				collect(t, s, 1, 19, filterA())
				for _, err := range s.Read(t.Context(), 20, 20, filterA()) {
					require.ErrorContains(t, err, "none proves what is in it")
				}
			}

			require.Empty(t, s.Faults())
		})
	}
}

// unknownType makes the transaction of the newest block one of a type that nobody knows.
func (c *testChain) unknownType() (encoded []byte, hash common.Hash) {
	h := &c.headers[len(c.headers)-1]
	b, logs := c.sealed[h.Hash], c.logs[h.Hash]
	encoded = []byte{5, 0xc1, 0x80}
	hash = crypto.Keccak256Hash(encoded)
	r := b.receipts[0]
	r.Type, r.TxHash = 5, hash
	under := proof.Receipt{Type: 5, Status: 1, Gas: r.CumulativeGasUsed, Bloom: r.Bloom}
	for i := range logs {
		under.Logs = append(under.Logs, proof.Log(&logs[i]))
	}

	content, _ := under.Encode()
	b.header.TxHash, b.header.ReceiptHash = proof.Root([][]byte{encoded}), proof.Root([][]byte{content})
	h.Hash = b.header.Hash()
	for i := range logs {
		logs[i].BlockHash, logs[i].TxHash = h.Hash, hash
	}

	for _, l := range r.Logs {
		l.BlockHash, l.TxHash = h.Hash, hash
	}

	r.BlockHash, c.sealed[h.Hash], c.logs[h.Hash] = h.Hash, b, logs

	return encoded, hash
}

// The same answer of two endpoints is never a lie of either, also where it breaks what the chain has kept before: its
// rules may have changed. Nothing is read for a minute, then it is as two show it, and neither is named. What one says
// and another does not is a lie.
func TestSameAnswerOfTwoIsNoLie(t *testing.T) {
	for _, what := range []string{"headers", rpc.GetReceipts, rpc.GetByHash} {
		for _, alone := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, one alone %t", what, alone), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					chain := newChain(20, 2, 0)
					chain.seal()
					var p pipes
					first, _ := p.node(t, chain)
					second, _ := p.node(t, chain)
					first.receipts, second.receipts, first.lie = true, true, otherwise(first, what)
					if !alone {
						second.lie = otherwise(second, what)
					}

					s := start(t, Config{URLs: []string{first.server.URL, second.server.URL}, ChainID: 1, Finality: Latest,
						Dial: p.dial})
					s.Demand([]string{"headers hash", "receipts prove", "transactions prove"})
					begun, from := time.Now(), uint64(1)
					for from <= 20 {
						require.Less(t, time.Since(begun), 5*time.Minute, "%+v", s.Endpoints())
						for b, err := range s.Read(t.Context(), from, 20, filterA()) {
							if err != nil {
								break
							}

							require.True(t, slices.EqualFunc(chain.all(b.From, b.To), b.Logs, SameLog))
							from = b.To + 1
						}

						<-time.After(5 * time.Second)
					}

					if !alone {
						require.Empty(t, s.Faults())
						require.Greater(t, time.Since(begun), time.Minute)
					} else {
						require.Len(t, s.Faults(), 1)
						require.Equal(t, s.nodes[0].Name(), s.Faults()[0].Endpoint)
					}
				})
			})
		}
	}
}

// otherwise has a node answer a method as one of a chain with other rules does.
func otherwise(n *testNode, method string) func(string, []json.RawMessage) (any, error) {
	return func(asked string, params []json.RawMessage) (any, error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		answer, err := n.answer(asked, params)
		var block map[string]any
		var receipts []map[string]any
		switch text := marshal(answer); {
		case err != nil || asked != method && (method != "headers" || asked != rpc.GetByNumber && asked != rpc.GetByHash):
		case method == rpc.GetReceipts && json.Unmarshal(text, &receipts) == nil && len(receipts) > 0:
			receipts[0]["cumulativeGasUsed"] = "0xff"
			return receipts, nil
		case json.Unmarshal(text, &block) != nil || block == nil:
		case method == "headers":
			block["stateRoot"] = common.Hash{0x57}
			return block, nil
		default:
			for _, tx := range block["transactions"].([]any) {
				if tx, whole := tx.(map[string]any); whole {
					tx["nonce"] = "0xff"
				}
			}

			return block, nil
		}

		return nil, nil
	}
}
