// Package proof computes what a block's hash vouches for: its header, its transactions and its receipts.
// Its functions are pure. They compute Ethereum's hashes (Yellow Paper, 4.4.3 and appendix D); whether a
// chain hashes so, what they give tells.
package proof

import (
	"encoding/json"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/rlp"
)

// Header decodes a block as eth_getBlockByNumber and newHeads give it. ok reports whether a hash is that of
// what the block contains; only then does the header mean something.
func Header(b []byte, hash common.Hash) (h types.Header, ok bool) {
	if json.Unmarshal(b, &h) != nil || !h.Number.IsUint64() {
		return h, false
	}

	return h, h.Hash() == hash
}

// Receipt is a transaction's receipt as under the receipts root. Numbers and hashes that it leaves out
// are those that the root says nothing of.
type Receipt struct {
	Type    uint64
	Root    []byte // of the state, before Byzantium; nil: Status counts
	Status  uint64
	Gas     uint64 // used so far in the block
	Bloom   types.Bloom
	Logs    []rlp.RawValue // of Log
	Deposit []uint64
}

// Log returns a log as in a receipt's hash.
func Log(l *types.Log) rlp.RawValue { return encode(l) }

// encode is for what rlp can encode.
func encode(v any) []byte {
	b, _ := rlp.EncodeToBytes(v)
	return b
}

// Deposit is the type of a deposit on the OP stack, mostType the highest that EIP-2718 allows.
const Deposit, mostType = 0x7e, 0x7f

// Encode returns a receipt as it is in the trie under the receipts root, or nil where its type is none of EIP-2718.
// known is whether the type is known to be encoded so: all of Ethereum's so far are alike, and one of another chain,
// or to come, may have other fields. Arbitrum's types (0x64 to 0x6a) are encoded as Ethereum's are
// (OffchainLabs/go-ethereum, core/types/receipt.go, EncodeIndex). Those of a deposit on the OP stack have its nonce and
// version behind them from Canyon on, where the node gives both; the nonce alone, which Regolith added, is in no root
// (OP stack specification, deposits, "Deposit Receipt").
func (r *Receipt) Encode() (b []byte, known bool) {
	if r.Type > mostType {
		return nil, false
	}

	status := r.Root
	if status == nil && r.Status != 0 {
		status = []byte{1}
	}

	fields := []any{status, r.Gas, r.Bloom, r.Logs}
	if r.Type == Deposit {
		for _, n := range r.Deposit {
			fields = append(fields, n)
		}
	}

	if r.Type != types.LegacyTxType {
		b = append(b, byte(r.Type))
	}

	known = r.Type <= types.SetCodeTxType || r.Type == Deposit || r.Type >= arbitrumDeposit && r.Type <= arbitrumInternal

	return append(b, encode(fields)...), known
}

// Transaction returns a transaction as it is in the trie under the transactions root, and its hash, of one
// as eth_getBlockByHash lists it. Of an unknown type, and of a list of hashes, it is the hash alone that the node
// gives.
func Transaction(b []byte) (encoded []byte, hash common.Hash) {
	var tx types.Transaction
	if tx.UnmarshalJSON(b) == nil {
		if encoded, err := tx.MarshalBinary(); err == nil {
			return encoded, tx.Hash()
		}
	}

	if json.Unmarshal(b, &hash) == nil {
		return nil, hash
	}

	var of rollup
	if json.Unmarshal(b, &of) != nil {
		var said struct{ Hash common.Hash }
		_ = json.Unmarshal(b, &said)

		return nil, said.Hash
	}

	return of.encode(), of.Hash
}

// Root returns the root of the trie of values by their indexes.
func Root(values [][]byte) common.Hash {
	if len(values) == 0 {
		return types.EmptyRootHash
	}

	keys := make([][]byte, len(values))
	for i := range values {
		keys[i] = nibbles(rlp.AppendUint64(nil, uint64(i)))
	}

	order := make([]int, 0, len(values)) // by key: 0 is 0x80, behind 0x7f
	for i := 1; i < min(len(values), 128); i++ {
		order = append(order, i)
	}

	order = append(order, 0)
	for i := 128; i < len(values); i++ {
		order = append(order, i)
	}

	return crypto.Keccak256Hash((&index{keys, values}).node(order, 0))
}

// index is a Merkle Patricia trie (Yellow Paper, appendix D) in which no key begins with another.
type index struct{ keys, values [][]byte }

// node encodes the node over some keys, in order, that agree in their first depth nibbles.
func (t *index) node(some []int, depth int) []byte {
	first := t.keys[some[0]]
	if len(some) == 1 {
		return encode([][]byte{compact(first[depth:], true), t.values[some[0]]})
	}

	last, end := t.keys[some[len(some)-1]], depth
	for first[end] == last[end] {
		end++
	}

	if end > depth {
		return encode([]any{compact(first[depth:end], false), t.reference(some, end)})
	}

	children := make([]rlp.RawValue, 0, 17)
	for nibble := range byte(16) {
		n := 0
		for n < len(some) && t.keys[some[n]][depth] == nibble {
			n++
		}

		if n == 0 {
			children = append(children, rlp.EmptyString)
			continue
		}

		children = append(children, t.reference(some[:n], depth+1))
		some = some[n:]
	}

	return encode(append(children, rlp.EmptyString))
}

// reference is how a node stands in the one above it: by its hash, or itself where that is no longer.
func (t *index) reference(some []int, depth int) rlp.RawValue {
	b := t.node(some, depth)
	if len(b) < common.HashLength {
		return b
	}

	return encode(crypto.Keccak256(b))
}

func nibbles(b []byte) (list []byte) {
	for _, x := range b {
		list = append(list, x>>4, x&15)
	}

	return list
}

// compact packs nibbles of a leaf, or of an extension.
func compact(nibbles []byte, leaf bool) []byte {
	flag := byte(0)
	if leaf {
		flag = 2
	}

	if len(nibbles)%2 == 1 {
		nibbles = append([]byte{flag | 1}, nibbles...)
	} else {
		nibbles = append([]byte{flag, 0}, nibbles...)
	}

	b := make([]byte, len(nibbles)/2)
	for i := range b {
		b[i] = nibbles[2*i]<<4 | nibbles[2*i+1]
	}

	return b
}
