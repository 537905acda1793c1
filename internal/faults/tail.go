package faults

import (
	"encoding/json"
	"errors"
	"math/big"
	"slices"
	"sync"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/trie"
)

// tail is the end of a chain that a node has in the place of what the node behind has: a branch that the chain has
// left (Stayed), or one of its own making, valid in all that a hash proves (Own).
type tail struct {
	mu     sync.Mutex
	blocks []tailBlock   // from block Fault.N on
	newest *types.Header // of Own
}

type tailBlock struct {
	hash         common.Hash
	brief, whole any // as a node gives it, with the hashes of its transactions, and with them
	receipts     []json.RawMessage
	logs         [][]types.Log   // by receipt
	txs          []common.Hash   // likewise
	state        json.RawMessage // where the node behind has its state
}

// tailOf returns the blocks as of now. Those of Own end as many above the newest one of the node behind as the fault
// says, once that has the block on which they begin.
func (v *view) tailOf(i *Injected) (blocks []tailBlock, err error) {
	i.tail.mu.Lock()
	defer i.tail.mu.Unlock()
	if i.Mode == Own {
		err = v.grow(i)
	} else if len(i.tail.blocks) == 0 {
		err = v.stay(i)
	}

	return i.tail.blocks, err
}

// stay reads the blocks of the branch: the node behind has them still, by their hashes. Held: tail.mu.
func (v *view) stay(i *Injected) error {
	var all []tailBlock
	for _, hash := range i.Branch {
		name := `"` + hash.Hex() + `"`
		b := tailBlock{hash: hash, state: json.RawMessage(`{"blockHash":` + name + `}`)}
		brief, err := v.call(v.ctx, "eth_getBlockByHash", name, "false")
		whole, failed := v.call(v.ctx, "eth_getBlockByHash", name, "true")
		receipts, lacking := v.call(v.ctx, "eth_getBlockReceipts", name)
		if err := errors.Join(err, failed, lacking); err != nil {
			return err
		}

		b.brief, b.whole = brief, whole
		if err := b.read(receipts); err != nil {
			return err
		}

		all = append(all, b)
	}

	i.tail.blocks = all

	return nil
}

// read takes the receipts of a block.
func (b *tailBlock) read(receipts []byte) error {
	var of []struct {
		TransactionHash common.Hash
		Logs            []types.Log
	}
	if err := errors.Join(json.Unmarshal(receipts, &b.receipts), json.Unmarshal(receipts, &of)); err != nil {
		return err
	}

	for _, r := range of {
		b.txs, b.logs = append(b.txs, r.TransactionHash), append(b.logs, r.Logs)
	}

	return nil
}

// ofTail answers a request from the tail where that has what it asks for, or does not have it, and puts into it what
// the node behind is to be asked else.
func (v *view) ofTail(i *Injected, r *request) (a response, answered bool, err error) {
	if len(r.Params) == 0 && r.Method != "eth_blockNumber" {
		return a, false, nil
	}

	blocks, err := v.tailOf(i)
	if len(blocks) == 0 || err != nil {
		return a, false, err
	}

	var result any = json.RawMessage("null")
	switch r.Method {
	case "eth_blockNumber":
		result = json.RawMessage(hex(i.N + uint64(len(blocks)) - 1))
	case "eth_getBlockByNumber", "eth_getBlockByHash", "eth_getBlockReceipts":
		b, behind, err := v.block(i, blocks, r.Params[0])
		switch {
		case err != nil || behind:
			return a, false, err
		case b == nil:
		case r.Method == "eth_getBlockReceipts":
			result = b.receipts
		case len(r.Params) > 1 && string(r.Params[1]) == "true":
			result = b.whole
		default:
			result = b.brief
		}
	case "eth_getTransactionReceipt":
		if receipt := receiptOf(blocks, r.Params[0]); receipt != nil {
			result = receipt
		} else if raw, err := v.call(v.ctx, r.Method, string(r.Params[0])); err != nil {
			return a, false, err
		} else if number, ok := blockNumber(raw); !ok || number < i.N {
			return a, false, nil
		}
	case "eth_getLogs":
		return v.logsOfTail(i, blocks, *r)
	default:
		return v.stateOfTail(i, blocks, r)
	}

	i.hits.Add(1)
	a = response{JSONRPC: "2.0", ID: r.ID}
	a.Result, err = json.Marshal(result)

	return a, true, err
}

// block returns the one that a hash, a number or a tag names; nil: there is none. behind: the node behind has it too.
func (v *view) block(i *Injected, blocks []tailBlock, param json.RawMessage) (b *tailBlock, behind bool, err error) {
	if hash, ok := read[common.Hash](param); ok {
		at := slices.IndexFunc(blocks, func(b tailBlock) bool { return b.hash == hash })
		if at >= 0 {
			return &blocks[at], false, nil
		}

		raw, err := v.call(v.ctx, "eth_getBlockByHash", string(param), "false")
		number, known := blockNumber(raw)

		return nil, known && number < i.N, err
	}

	number, ok := unhex(param)
	switch {
	case !ok: // latest, pending, safe, finalized: it lies in all
		return &blocks[len(blocks)-1], false, nil
	case number < i.N:
		return nil, true, nil
	case number < i.N+uint64(len(blocks)):
		return &blocks[number-i.N], false, nil
	}

	return nil, false, nil
}

// receiptOf is the receipt of a transaction that one of the blocks has; nil: none has it.
func receiptOf(blocks []tailBlock, param json.RawMessage) json.RawMessage {
	hash, _ := read[common.Hash](param)
	for _, b := range blocks {
		if at := slices.Index(b.txs, hash); at >= 0 {
			return b.receipts[at]
		}
	}

	return nil
}

// logsOfTail are the logs of a range or a block: below the tail those of the node behind.
func (v *view) logsOfTail(i *Injected, blocks []tailBlock, r request) (a response, answered bool, err error) {
	q, ok := read[map[string]json.RawMessage](r.Params[0])
	from, to, ranged := span(r)
	if !ok || ranged && to < i.N {
		return a, false, nil
	}

	logs := []json.RawMessage{}
	if hash, is := q["blockHash"]; is {
		b, behind, err := v.block(i, blocks, hash)
		switch {
		case behind || err != nil:
			return a, false, err
		case b == nil:
			return refuse(r, -32000, "unknown block"), true, nil // as geth says it
		}

		blocks = []tailBlock{*b}
	} else if from < i.N {
		q["toBlock"] = json.RawMessage(hex(i.N - 1))
		below, err := json.Marshal(q)
		if err != nil {
			return a, false, err
		}

		raw, err := v.call(v.ctx, "eth_getLogs", string(below))
		if err = errors.Join(err, json.Unmarshal(raw, &logs)); err != nil {
			return a, false, err
		}
	}

	for _, b := range blocks {
		for _, l := range asked(r, slices.Concat(b.logs...)) {
			raw, err := json.Marshal(l)
			if err != nil {
				return a, false, err
			}

			logs = append(logs, raw)
		}
	}

	i.hits.Add(1)
	a = response{JSONRPC: "2.0", ID: r.ID}
	if a.Result, err = json.Marshal(logs); err == nil {
		a, err = v.logs(r, a)
	}

	return a, true, err
}

// stateOfTail has the state be asked for that the node has.
func (v *view) stateOfTail(i *Injected, blocks []tailBlock, r *request) (a response, answered bool, err error) {
	if !slices.Contains(ofState, r.Method) {
		return a, false, nil
	}

	last := len(r.Params) - 1
	top := i.N + uint64(len(blocks)) - 1
	number, ok := unhex(r.Params[last])
	if tag := r.tag(); tag == "latest" || tag == "pending" {
		number, ok = top, true
	}

	switch {
	case !ok || number < i.N:
		return a, false, nil
	case number > top:
		return refuse(*r, -32000, "header not found"), true, nil
	}

	i.hits.Add(1)
	r.Params = slices.Clone(r.Params)
	r.Params[last] = blocks[number-i.N].state

	return a, false, nil
}

// grow adds blocks to those of Own. Held: tail.mu.
func (v *view) grow(i *Injected) error {
	raw, err := v.call(v.ctx, "eth_blockNumber")
	if err != nil {
		return err
	}

	head, _ := unhex(raw)
	if head+1 < i.N {
		return nil
	}

	if i.tail.newest == nil {
		raw, err := v.call(v.ctx, "eth_getBlockByNumber", hex(i.N-1), "false")
		if err = errors.Join(err, json.Unmarshal(raw, &i.tail.newest)); err != nil {
			return err
		}
	}

	for n := i.N + uint64(len(i.tail.blocks)); n == i.N || int64(n) <= int64(head)+int64(i.Ahead); n++ {
		b, h, err := ownOn(i.tail.newest, i.Logs)
		if err != nil {
			return err
		}

		i.tail.blocks, i.tail.newest = append(i.tail.blocks, b), h
	}

	return nil
}

// ownOn makes a block on top of another one: with one transaction, and the logs of that.
func ownOn(parent *types.Header, logs []types.Log) (b tailBlock, h *types.Header, err error) {
	h = types.CopyHeader(parent)
	h.Number, h.ParentHash, h.Time = new(big.Int).Add(parent.Number, common.Big1), parent.Hash(), parent.Time+1
	tx := types.NewTx(&types.LegacyTx{Nonce: h.Number.Uint64(), GasPrice: new(big.Int), Value: new(big.Int),
		V: big.NewInt(27), R: big.NewInt(1), S: big.NewInt(1)})
	receipt := &types.Receipt{Status: 1, CumulativeGasUsed: 1, GasUsed: 1, EffectiveGasPrice: new(big.Int),
		TxHash: tx.Hash(), BlockNumber: h.Number}
	for at, l := range logs {
		l.BlockNumber, l.BlockTimestamp, l.TxHash, l.TxIndex, l.Index = h.Number.Uint64(), h.Time, tx.Hash(), 0, uint(at)
		receipt.Logs = append(receipt.Logs, &l)
	}

	receipt.Bloom = types.CreateBloom(receipt)
	h.Bloom, h.GasUsed = receipt.Bloom, 1
	h.TxHash = types.DeriveSha(types.Transactions{tx}, trie.NewStackTrie(nil))
	h.ReceiptHash = types.DeriveSha(types.Receipts{receipt}, trie.NewStackTrie(nil))
	b = tailBlock{hash: h.Hash(), state: json.RawMessage(`"latest"`)} // no state is its own
	receipt.BlockHash = b.hash
	for _, l := range receipt.Logs {
		l.BlockHash = b.hash
	}

	receipts, err := json.Marshal(types.Receipts{receipt})
	if err != nil {
		return b, h, err
	}

	b.brief, b.whole = asBlock(h, tx.Hash()), asBlock(h, tx)

	return b, h, b.read(receipts)
}

// asBlock is a block as a node gives it, with its transaction or the hash of that.
func asBlock(h *types.Header, tx any) map[string]any {
	text, _ := json.Marshal(h) // it can be marshalled
	block := map[string]any{}
	_ = json.Unmarshal(text, &block)
	block["hash"], block["uncles"], block["size"], block["transactions"] = h.Hash(), []any{}, "0x300", []any{tx}

	return block
}

// read decodes a parameter, and reports whether it is one.
func read[T any](raw json.RawMessage) (value T, ok bool) {
	ok = json.Unmarshal(raw, &value) == nil
	return value, ok
}
