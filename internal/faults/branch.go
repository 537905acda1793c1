package faults

import (
	"encoding/json"
	"slices"

	"github.com/ethereum/go-ethereum/common"
)

// ofBranch has a request answered by a machine that stayed on its branch: from the fork on it has the
// blocks of that, and no others. The node behind has them still, by their hashes. What it is to be
// asked is put into the request, unless the machine has answered already.
func (v *view) ofBranch(r *request) (a response, answered bool, err error) {
	if len(r.Params) == 0 {
		return a, false, nil
	}

	switch r.Method {
	case "eth_getLogs":
		return v.logsOfBranch(*r)
	case "eth_getTransactionReceipt":
		return v.receiptOfBranch(*r)
	case "eth_getTransactionCount", "eth_getBalance", "eth_getCode", "eth_call":
		return v.stateOfBranch(r)
	case "eth_getBlockByNumber", "eth_getBlockReceipts":
		number, ok := unhex(r.Params[0])
		if ok && number >= v.late.N && number <= v.top {
			v.late.hits.Add(1)
			r.Params = slices.Clone(r.Params)
			if r.Params[0], err = json.Marshal(v.late.Branch[number-v.late.N]); r.Method == "eth_getBlockByNumber" {
				r.Method = "eth_getBlockByHash"
			}

			return a, false, err
		}

		if r.Method == "eth_getBlockByNumber" {
			return a, false, nil
		}
	case "eth_getBlockByHash":
	default:
		return a, false, nil
	}

	hash, ok := read[common.Hash](r.Params[0])
	if !ok { // the node behind says what is wrong with it
		return a, false, nil
	}

	lacks, err := v.lacks(hash)

	return response{JSONRPC: "2.0", ID: r.ID, Result: json.RawMessage("null")}, lacks, err
}

// lacks reports whether a block is none of the machine's.
func (v *view) lacks(hash common.Hash) (bool, error) {
	raw, err := v.call(v.ctx, "eth_getBlockByHash", `"`+hash.Hex()+`"`, "false")
	number, ok := blockNumber(raw)
	lacks := !ok || number >= v.late.N && !slices.Contains(v.late.Branch, hash)
	if err == nil && lacks {
		v.late.hits.Add(1)
	}

	return lacks, err
}

// logsOfBranch are the logs that the machine has: of a range below the fork what the node behind has,
// above it those of each block of the branch.
func (v *view) logsOfBranch(r request) (a response, answered bool, err error) {
	q, ok := read[map[string]json.RawMessage](r.Params[0])
	if !ok {
		return a, false, nil
	}

	if hash, ok := read[common.Hash](q["blockHash"]); ok {
		lacks, err := v.lacks(hash)
		return refuse(r, -32000, "unknown block"), lacks, err // as geth says it
	}

	from, to, ok := span(r)
	if !ok || to < v.late.N {
		return a, false, nil
	}

	v.late.hits.Add(1)
	logs := []json.RawMessage{}
	if from < v.late.N {
		q["toBlock"] = json.RawMessage(hex(v.late.N - 1))
		if logs, err = v.logsBy(q); err != nil {
			return a, false, err
		}
	}

	delete(q, "fromBlock")
	delete(q, "toBlock")
	for number := max(from, v.late.N); number <= min(to, v.top); number++ {
		q["blockHash"] = json.RawMessage(`"` + v.late.Branch[number-v.late.N].Hex() + `"`)
		more, err := v.logsBy(q)
		if err != nil {
			return a, false, err
		}

		logs = append(logs, more...)
	}

	a = response{JSONRPC: "2.0", ID: r.ID}
	if a.Result, err = json.Marshal(logs); err != nil {
		return a, false, err
	}

	a, err = v.logs(r, a)

	return a, true, err
}

// logsBy asks the node behind for the logs of a filter.
func (v *view) logsBy(filter map[string]json.RawMessage) (logs []json.RawMessage, err error) {
	q, err := json.Marshal(filter)
	if err != nil {
		return nil, err
	}

	raw, err := v.call(v.ctx, "eth_getLogs", string(q))
	if err != nil {
		return nil, err
	}

	err = json.Unmarshal(raw, &logs)

	return logs, err
}

// read decodes a parameter, and reports whether it is one.
func read[T any](raw json.RawMessage) (value T, ok bool) {
	ok = json.Unmarshal(raw, &value) == nil
	return value, ok
}

// receiptOfBranch is the receipt of a transaction that is in a block of the machine.
func (v *view) receiptOfBranch(r request) (a response, answered bool, err error) {
	a = response{JSONRPC: "2.0", ID: r.ID, Result: json.RawMessage("null")}
	for _, hash := range v.late.Branch {
		raw, err := v.call(v.ctx, "eth_getBlockReceipts", `"`+hash.Hex()+`"`)
		if err != nil {
			return a, false, err
		}

		var receipts []json.RawMessage
		if err := json.Unmarshal(raw, &receipts); err != nil {
			return a, false, err
		}

		for _, receipt := range receipts {
			var of struct{ TransactionHash json.RawMessage }
			if json.Unmarshal(receipt, &of) == nil && string(of.TransactionHash) == string(r.Params[0]) {
				v.late.hits.Add(1)
				a.Result = receipt

				return a, true, nil
			}
		}
	}

	raw, err := v.call(v.ctx, r.Method, string(r.Params[0]))
	number, ok := blockNumber(raw)

	return a, ok && number >= v.late.N, err
}

// stateOfBranch has the state be asked for that the machine has.
func (v *view) stateOfBranch(r *request) (a response, answered bool, err error) {
	last := len(r.Params) - 1
	number, ok := unhex(r.Params[last])
	if text := string(r.Params[last]); text == `"latest"` || text == `"pending"` {
		number, ok = v.top, true
	}

	switch {
	case !ok || number < v.late.N:
		return a, false, nil
	case number > v.top:
		return refuse(*r, -32000, "header not found"), true, nil
	}

	v.late.hits.Add(1)
	r.Params = slices.Clone(r.Params)
	r.Params[last], err = json.Marshal(map[string]common.Hash{"blockHash": v.late.Branch[number-v.late.N]})

	return a, false, err
}
