package faults

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
)

// hostile are the lies of a node that means to deceive. Its answers keep to the protocol: only what the
// chain is tells them from true ones.
var hostile = []Mode{Invented, Bits, Changed, Blank, Own, Receipts, Hidden, Repeated, Unindexed, Miscount, Odd,
	Withheld}

// Hostile lists the lies about the chain that a single answer gives away. Of Withheld that is so once the chain has
// shown that its receipts prove logs: told from the start by an endpoint that is alone, it looks like one whose
// receipts do not.
func Hostile() []Mode {
	return slices.DeleteFunc(slices.Clone(hostile), func(m Mode) bool { return m == Withheld })
}

// deceive changes an answer as the lies in force want.
func (v *view) deceive(r request, result json.RawMessage) (json.RawMessage, error) {
	if string(result) == "null" || find(v.list, hostile...) == nil {
		return result, nil
	}

	switch r.Method {
	case "eth_getBlockByNumber", "eth_getBlockByHash":
		return v.forgeHeader(result)
	case "eth_getLogs":
		return v.forgeLogs(r, result)
	case "eth_getBlockReceipts":
		return v.forgeReceipts(result)
	case "eth_getTransactionCount":
		if i := find(v.list, Miscount); i != nil {
			if n, ok := unhex(result); ok {
				i.hits.Add(1)
				return json.RawMessage(hex(n + 1)), nil
			}
		}
	}

	return result, nil
}

// forgeHeader lies about a header.
func (v *view) forgeHeader(raw json.RawMessage) (json.RawMessage, error) {
	number, ok := blockNumber(raw)
	h, isHeader := read[map[string]any](raw)
	if !ok || !isHeader {
		return raw, nil
	}

	for _, i := range v.list {
		switch {
		case i.Mode == Hidden && number == i.N:
			i.hits.Add(1)
			return json.RawMessage("null"), nil
		case i.Mode == Blank && number >= i.N:
			h["logsBloom"] = hexutil.Encode(make([]byte, types.BloomByteLength))
		case i.Mode == Bits && i.blooms(h):
		case i.Mode == Repeated && number == i.N:
			old, err := v.call(v.ctx, "eth_getBlockByNumber", hex(number-3), "false")
			if err != nil {
				return nil, err
			}

			of, _ := read[map[string]any](old)
			h["hash"] = of["hash"]
		default:
			continue
		}

		i.hits.Add(1)
	}

	return json.Marshal(h)
}

// blooms adds the invented logs' bits to the bloom filter of their block.
func (i *Injected) blooms(h map[string]any) (forged bool) {
	bloom, ok := h["logsBloom"].(string)
	if !ok {
		return false
	}

	b := types.BytesToBloom(common.FromHex(bloom))
	for _, l := range i.Logs {
		if l.BlockHash.Hex() != h["hash"] {
			continue
		}

		forged = true
		b.Add(l.Address.Bytes())
		for _, t := range l.Topics {
			b.Add(t.Bytes())
		}
	}

	h["logsBloom"] = hexutil.Encode(b.Bytes())

	return forged
}

// forgeLogs lies about the logs of a range or a block.
func (v *view) forgeLogs(r request, raw json.RawMessage) (json.RawMessage, error) {
	var logs []types.Log
	if err := json.Unmarshal(raw, &logs); err != nil {
		return nil, err
	}

	for _, i := range v.list {
		switch i.Mode {
		case Invented, Bits, Receipts:
			invented := asked(r, i.Logs)
			logs = append(logs, invented...)
			i.hits.Add(int64(len(invented)))
		case Changed:
			for n := range logs {
				if data := logs[n].Data; logs[n].BlockNumber >= i.N && len(data) > 0 {
					logs[n].Data = slices.Clone(data)
					logs[n].Data[len(data)-1] ^= 1
					i.hits.Add(1)
				}
			}
		case Hidden, Unindexed:
			before := len(logs)
			logs = slices.DeleteFunc(logs, func(l types.Log) bool {
				return i.Mode == Hidden && l.BlockNumber == i.N || i.Mode == Unindexed && l.BlockNumber < i.N
			})
			i.hits.Add(int64(before - len(logs)))
		case Withheld:
			logs = slices.DeleteFunc(logs, func(l types.Log) bool { return i.withholds(l.BlockNumber, l.Index) })
		}
	}

	slices.SortStableFunc(logs, func(a, b types.Log) int {
		return cmp.Or(cmp.Compare(a.BlockNumber, b.BlockNumber), cmp.Compare(a.Index, b.Index))
	})
	if logs == nil {
		logs = []types.Log{}
	}

	return json.Marshal(logs)
}

// withholds reports whether Withheld leaves a log out.
func (i *Injected) withholds(block uint64, index uint) bool {
	if block < i.N || index%2 == 0 {
		return false
	}

	i.hits.Add(1)

	return true
}

// altered changes a receipt's log where Changed does, and reports whether Withheld leaves it out.
func (i *Injected) altered(log any) (gone bool) {
	l, _ := log.(map[string]any)
	block, _ := hexutil.DecodeUint64(fmt.Sprint(l["blockNumber"]))
	index, err := hexutil.DecodeUint64(fmt.Sprint(l["logIndex"]))
	if i.Mode == Withheld {
		return err == nil && i.withholds(block, uint(index))
	}

	if data := common.FromHex(fmt.Sprint(l["data"])); block >= i.N && len(data) > 0 {
		data[len(data)-1] ^= 1
		l["data"] = hexutil.Encode(data)
		i.hits.Add(1)
	}

	return false
}

// asked are those of some logs that an eth_getLogs asks for.
func asked(r request, some []types.Log) (logs []types.Log) {
	q, ok := read[struct {
		BlockHash *common.Hash
		Address   []common.Address
		Topics    [][]common.Hash
	}](r.Params[0])
	if !ok {
		return nil
	}

	from, to, ranged := span(r)
	for _, l := range some {
		here := ranged && l.BlockNumber >= from && l.BlockNumber <= to || q.BlockHash != nil && *q.BlockHash == l.BlockHash
		named := len(q.Address) == 0 || slices.Contains(q.Address, l.Address)
		every := len(q.Topics) == 0 || len(q.Topics[0]) == 0
		if here && named && (every || len(l.Topics) > 0 && slices.Contains(q.Topics[0], l.Topics[0])) {
			logs = append(logs, l)
		}
	}

	return logs
}

// forgeReceipts lies about the receipts of a block.
func (v *view) forgeReceipts(raw json.RawMessage) (json.RawMessage, error) {
	receipts, ok := read[[]map[string]any](raw)
	if !ok || len(receipts) == 0 {
		return raw, nil
	}

	last := receipts[len(receipts)-1]
	for _, i := range v.list {
		switch i.Mode {
		case Receipts:
			for _, l := range i.Logs {
				if l.BlockHash.Hex() == last["blockHash"] {
					logs, _ := last["logs"].([]any)
					last["logs"] = append(logs, l)
					i.hits.Add(1)
				}
			}
		case Odd:
			if number, ok := hexutil.DecodeUint64(fmt.Sprint(last["blockNumber"])); ok == nil && number >= i.N {
				last["type"] = "0x5f"
				i.hits.Add(1)
			}
		case Changed, Withheld:
			for _, r := range receipts {
				logs, _ := r["logs"].([]any)
				r["logs"] = slices.DeleteFunc(logs, i.altered)
			}
		}
	}

	return json.Marshal(receipts)
}
