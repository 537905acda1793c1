//go:build long

package chain

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/crypto"
)

// crowd serves a chain whose blocks strangers have filled with logs, as anybody can for the price of
// the gas: 60 million of it pay for some 80,000 logs of one topic. It makes its answers as it writes
// them, so that it needs no memory for them. Every bloom filter allows for everything.
type crowd struct {
	ChainID     uint64
	Head, Final uint64 // numbers of blocks
	Logs        uint64 // in each block, of some 500 bytes each
	Topic       common.Hash
}

// Hash of a block.
func (crowd) Hash(n uint64) common.Hash {
	return crypto.Keccak256Hash(binary.BigEndian.AppendUint64(nil, n))
}

// number of a block. One that is not on the chain is behind its end.
func (c crowd) number(hash common.Hash) (n uint64) {
	for n <= c.Head && c.Hash(n) != hash {
		n++
	}

	return n
}

// ServeHTTP answers a request or a batch.
func (c crowd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	type request struct {
		ID     json.RawMessage
		Method string
		Params []json.RawMessage
	}
	body, _ := io.ReadAll(r.Body)
	var list []request
	single := json.Unmarshal(body, &list) != nil
	if single {
		list = make([]request, 1)
		_ = json.Unmarshal(body, &list[0])
	}

	out := bufio.NewWriterSize(w, 64<<10)
	defer func() { _ = out.Flush() }()
	for i, q := range list {
		if !single {
			_ = out.WriteByte("[,"[min(i, 1)])
		}

		_, _ = fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,`, q.ID)
		c.answer(out, q.Method, q.Params)
		_ = out.WriteByte('}')
	}

	if !single {
		_ = out.WriteByte(']')
	}
}

func (c crowd) answer(w *bufio.Writer, method string, params []json.RawMessage) {
	var result any
	switch method {
	case "eth_chainId":
		result = hexutil.Uint64(c.ChainID)
	case "eth_getBlockByNumber":
		result = c.header(params[0])
	case "eth_getBlockByHash":
		var hash common.Hash
		_ = json.Unmarshal(params[0], &hash)
		result = c.header(json.RawMessage(strconv.Quote(hexutil.EncodeUint64(c.number(hash)))))
	case "eth_getLogs":
		_, _ = w.WriteString(`"result":`)
		c.logs(w, params[0])

		return
	default:
		_, _ = fmt.Fprintf(w, `"error":{"code":-32601,"message":"the method %s does not exist/is not available"}`, method)
		return
	}

	text, _ := json.Marshal(result)
	_, _ = fmt.Fprintf(w, `"result":%s`, text)
}

func (c crowd) header(block json.RawMessage) any {
	var tag string
	_ = json.Unmarshal(block, &tag)
	n, err := hexutil.DecodeUint64(tag)
	switch {
	case tag == "latest":
		n = c.Head
	case err != nil:
		n = c.Final
	case n > c.Head:
		return nil
	}

	return map[string]any{"number": hexutil.Uint64(n), "hash": c.Hash(n), "parentHash": c.Hash(n - 1),
		"timestamp": hexutil.Uint64(1_700_000_000 + 12*n), "logsBloom": "0x" + strings.Repeat("ff", 256)}
}

func (c crowd) logs(w *bufio.Writer, query json.RawMessage) {
	var q struct {
		FromBlock, ToBlock hexutil.Uint64
		BlockHash          *common.Hash
		Topics             [][]common.Hash
	}
	_ = json.Unmarshal(query, &q)
	if q.BlockHash != nil {
		q.FromBlock = hexutil.Uint64(c.number(*q.BlockHash))
		q.ToBlock = q.FromBlock
	}

	logs := c.Logs
	if len(q.Topics) > 0 && !slices.Contains(q.Topics[0], c.Topic) {
		logs = 0
	}

	_ = w.WriteByte('[')
	for n, first := uint64(q.FromBlock), true; n <= uint64(q.ToBlock); n++ {
		hash := c.Hash(n).Hex()
		for i := range logs {
			if !first {
				_ = w.WriteByte(',')
			}

			first = false
			_, _ = fmt.Fprintf(w, `{"address":"0x%040x","topics":["%s","0x%064x"],"data":"0x","blockNumber":"0x%x",`+
				`"transactionHash":"%s","transactionIndex":"0x1","blockHash":"%s","logIndex":"0x%x","removed":false,`+
				`"blockTimestamp":"0x%x"}`, i, c.Topic, i, n, hash, hash, i, 1_700_000_000+12*n)
		}
	}

	_ = w.WriteByte(']')
}
