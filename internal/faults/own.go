package faults

import (
	"encoding/json"
	"math/big"
	"slices"
	"sync"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/trie"
)

// own is the chain of a node with one of its own: valid in all that a hash proves.
type own struct {
	mu     sync.Mutex
	blocks []*ownBlock // from block Fault.N on
}

// ownBlock has one transaction, with the logs of Fault.Logs.
type ownBlock struct {
	header   *types.Header
	tx       *types.Transaction
	receipts types.Receipts
}

// ofOwn answers a request from the node's own chain where that has what it asks for, or does not have it, and puts
// into it what the node behind is to be asked else.
func (v *view) ofOwn(i *Injected, r *request) (a response, answered bool, err error) {
	if err := v.grow(i); err != nil || len(r.Params) == 0 && r.Method != "eth_blockNumber" {
		return a, false, err
	}

	i.own.mu.Lock()
	defer i.own.mu.Unlock()
	if len(i.own.blocks) == 0 {
		return a, false, nil
	}

	top := i.N + uint64(len(i.own.blocks)) - 1
	var result any
	switch r.Method {
	case "eth_blockNumber":
		result = json.RawMessage(hex(top))
	case "eth_getBlockByNumber", "eth_getBlockByHash", "eth_getBlockReceipts":
		b, actual, err := v.ownOf(i, r.Params[0])
		switch {
		case err != nil || actual:
			return a, false, err
		case b != nil && r.Method == "eth_getBlockReceipts":
			result = b.receipts
		case b != nil:
			result = b.json(string(r.Params[1]) == "true")
		}
	case "eth_getTransactionReceipt":
		hash, _ := read[common.Hash](r.Params[0])
		at := slices.IndexFunc(i.own.blocks, func(b *ownBlock) bool { return b.tx.Hash() == hash })
		if at < 0 {
			return a, false, nil
		}

		result = i.own.blocks[at].receipts[0]
	case "eth_getLogs":
		if result, answered, err = v.ownLogs(i, *r); !answered || err != nil {
			return a, false, err
		}
	default:
		if last := len(r.Params) - 1; slices.Contains(ofState, r.Method) {
			if number, ok := unhex(r.Params[last]); ok && number >= i.N {
				r.Params = slices.Clone(r.Params)
				r.Params[last] = json.RawMessage(`"latest"`) // no state is its own
			}
		}

		return a, false, nil
	}

	i.hits.Add(1)
	a = response{JSONRPC: "2.0", ID: r.ID}
	a.Result, err = json.Marshal(result)

	return a, true, err
}

// ownOf returns the block that a hash, a number or a tag names; nil: there is none. actual: it is one that the node
// behind has too. Held: own.mu.
func (v *view) ownOf(i *Injected, param json.RawMessage) (b *ownBlock, actual bool, err error) {
	if hash, ok := read[common.Hash](param); ok {
		at := slices.IndexFunc(i.own.blocks, func(b *ownBlock) bool { return b.header.Hash() == hash })
		if at >= 0 {
			return i.own.blocks[at], false, nil
		}

		raw, err := v.call(v.ctx, "eth_getBlockByHash", string(param), "false")
		number, known := blockNumber(raw)

		return nil, known && number < i.N, err
	}

	number, ok := unhex(param)
	switch {
	case !ok: // latest, pending, safe, finalized: it lies in all
		return i.own.blocks[len(i.own.blocks)-1], false, nil
	case number < i.N:
		return nil, true, nil
	case number < i.N+uint64(len(i.own.blocks)):
		return i.own.blocks[number-i.N], false, nil
	}

	return nil, false, nil
}

// ownLogs are the logs of a range or a block. Not answered: the node behind has them. Held: own.mu.
func (v *view) ownLogs(i *Injected, r request) (logs []json.RawMessage, answered bool, err error) {
	q, ok := read[map[string]json.RawMessage](r.Params[0])
	from, to, ranged := span(r)
	if !ok || ranged && to < i.N {
		return nil, false, nil
	}

	logs = []json.RawMessage{}
	some := i.own.blocks
	if hash, is := q["blockHash"]; is {
		b, actual, err := v.ownOf(i, hash)
		if actual || err != nil {
			return nil, false, err
		}

		if some = nil; b != nil {
			some = []*ownBlock{b}
		}
	} else if from < i.N {
		q["toBlock"] = json.RawMessage(hex(i.N - 1))
		if logs, err = v.logsBy(q); err != nil {
			return nil, false, err
		}
	}

	asked, _ := read[struct {
		Address []common.Address
		Topics  [][]common.Hash
	}](r.Params[0])
	for _, b := range some {
		number := b.header.Number.Uint64()
		for _, l := range b.receipts[0].Logs {
			named := len(asked.Address) == 0 || slices.Contains(asked.Address, l.Address)
			wanted := len(asked.Topics) == 0 || len(asked.Topics[0]) == 0 || slices.Contains(asked.Topics[0], l.Topics[0])
			if named && wanted && (!ranged || from <= number && number <= to) {
				raw, err := json.Marshal(l)
				if err != nil {
					return nil, false, err
				}

				logs = append(logs, raw)
			}
		}
	}

	return logs, true, nil
}

// grow has the own chain end as many blocks above the newest one of the node behind as the fault says, once that has
// the block on which it begins.
func (v *view) grow(i *Injected) error {
	raw, err := v.call(v.ctx, "eth_blockNumber")
	if err != nil {
		return err
	}

	head, _ := unhex(raw)
	if head+1 < i.N {
		return nil
	}

	i.own.mu.Lock()
	defer i.own.mu.Unlock()
	var parent types.Header
	if len(i.own.blocks) == 0 {
		raw, err := v.call(v.ctx, "eth_getBlockByNumber", hex(i.N-1), "false")
		if err == nil {
			err = json.Unmarshal(raw, &parent)
		}

		if err != nil {
			return err
		}
	} else {
		parent = *i.own.blocks[len(i.own.blocks)-1].header
	}

	for n := i.N + uint64(len(i.own.blocks)); len(i.own.blocks) == 0 || int64(n) <= int64(head)+int64(i.Ahead); n++ {
		b := ownOn(&parent, i.Logs)
		i.own.blocks = append(i.own.blocks, b)
		parent = *b.header
	}

	return nil
}

// ownOn makes a block on top of another one.
func ownOn(parent *types.Header, logs []types.Log) *ownBlock {
	h := types.CopyHeader(parent)
	h.Number, h.ParentHash, h.Time = new(big.Int).Add(parent.Number, common.Big1), parent.Hash(), parent.Time+1
	b := &ownBlock{header: h, tx: types.NewTx(&types.LegacyTx{Nonce: h.Number.Uint64(), GasPrice: new(big.Int),
		Value: new(big.Int), V: big.NewInt(27), R: big.NewInt(1), S: big.NewInt(1)})}
	receipt := &types.Receipt{Status: 1, CumulativeGasUsed: 1, GasUsed: 1, EffectiveGasPrice: new(big.Int),
		TxHash: b.tx.Hash(), BlockNumber: h.Number}
	for at, l := range logs {
		l.BlockNumber, l.BlockTimestamp, l.TxHash, l.TxIndex, l.Index = h.Number.Uint64(), h.Time, b.tx.Hash(), 0, uint(at)
		receipt.Logs = append(receipt.Logs, &l)
	}

	receipt.Bloom = types.CreateBloom(receipt)
	b.receipts = types.Receipts{receipt}
	h.Bloom, h.GasUsed = receipt.Bloom, 1
	h.TxHash = types.DeriveSha(types.Transactions{b.tx}, trie.NewStackTrie(nil))
	h.ReceiptHash = types.DeriveSha(b.receipts, trie.NewStackTrie(nil))
	receipt.BlockHash = h.Hash()
	for _, l := range receipt.Logs {
		l.BlockHash = h.Hash()
	}

	return b
}

// json is the block as a node gives it, with its transaction or the hash of that.
func (b *ownBlock) json(whole bool) map[string]any {
	text, _ := json.Marshal(b.header) // it can be marshalled
	block := map[string]any{}
	_ = json.Unmarshal(text, &block)
	block["hash"], block["uncles"], block["size"] = b.header.Hash(), []any{}, "0x300"
	if block["transactions"] = []any{b.tx.Hash()}; whole {
		block["transactions"] = []any{b.tx}
	}

	return block
}
