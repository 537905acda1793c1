package chain

import (
	"encoding/json"
	"math/big"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/trie"
)

// sealed is a block whose hash proves what is in it.
type sealed struct {
	header       *types.Header
	transactions types.Transactions
	receipts     types.Receipts
}

// seal has the blocks hash as Ethereum's do. A block's logs are those of one transaction each per hash that they name.
func (c *testChain) seal() {
	c.sealed = map[common.Hash]*sealed{}
	logs := map[common.Hash][]types.Log{}
	parent := common.Hash{}
	for i := range c.headers {
		h := &c.headers[i]
		b, list := sealBlock(h, parent, c.logs[h.Hash])
		h.Hash, h.Parent, h.Bloom, h.Transactions = b.header.Hash(), parent, b.header.Bloom, len(b.transactions)
		for j := range list {
			list[j].BlockHash = h.Hash
		}

		for _, r := range b.receipts {
			r.BlockHash = h.Hash
			for _, l := range r.Logs {
				l.BlockHash = h.Hash
			}
		}

		parent, c.sealed[h.Hash], logs[h.Hash] = h.Hash, b, list
	}

	c.logs = logs
}

// sealBlock makes a block of logs, which it returns with their places in it.
func sealBlock(h *Header, parent common.Hash, logs []types.Log) (b *sealed, placed []types.Log) {
	b = &sealed{receipts: types.Receipts{}} // no receipts are a list, and null is a block that is not there
	named := common.Hash{}
	for i, l := range logs {
		if i == 0 || l.TxHash != named {
			named = l.TxHash
			b.transactions = append(b.transactions, types.NewTx(&types.LegacyTx{Nonce: h.Number, Gas: uint64(i),
				GasPrice: new(big.Int), Value: new(big.Int), V: big.NewInt(27), R: big.NewInt(1), S: big.NewInt(1)}))
			b.receipts = append(b.receipts, &types.Receipt{Status: 1, TxHash: b.transactions[len(b.transactions)-1].Hash(),
				BlockNumber: new(big.Int).SetUint64(h.Number), TransactionIndex: uint(len(b.receipts))})
		}

		r := b.receipts[len(b.receipts)-1]
		l.TxHash, l.TxIndex, l.Index = r.TxHash, r.TransactionIndex, uint(i)
		placed = append(placed, l)
		r.Logs = append(r.Logs, &l)
	}

	for i, r := range b.receipts {
		r.CumulativeGasUsed, r.GasUsed, r.EffectiveGasPrice = uint64(i+1), 1, new(big.Int)
		r.Bloom = types.CreateBloom(r)
	}

	b.header = &types.Header{ParentHash: parent, UncleHash: types.EmptyUncleHash, Number: new(big.Int).SetUint64(h.Number),
		Difficulty: new(big.Int), Time: h.Time, Bloom: types.MergeBloom(b.receipts), GasUsed: uint64(len(b.receipts)),
		TxHash: types.DeriveSha(b.transactions, trie.NewListHasher()), Extra: crypto.Keccak256([]byte("sealed")),
		ReceiptHash: types.DeriveSha(b.receipts, trie.NewListHasher())}

	return b, placed
}

// json is the block as a node gives it, with its transactions or their hashes.
func (b *sealed) json(whole bool) map[string]any {
	j := map[string]any{}
	if err := json.Unmarshal(marshal(b.header), &j); err != nil {
		panic(err)
	}

	hashes := []common.Hash{}
	for _, tx := range b.transactions {
		hashes = append(hashes, tx.Hash())
	}

	if j["transactions"] = hashes; whole {
		j["transactions"] = b.transactions
	}

	return j
}
