package rpc

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unsafe"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/proof"
)

// Streams reports whether a result is decoded while it arrives.
func (c *Call) Streams() bool { return c.Method == GetLogs || c.Method == GetReceipts || c.Encode }

// stream decodes the result of such a request. What it cannot decode is its error; that of the whole
// message is found by reading on.
func (a *Answer) stream(m *message, q *Call) error {
	d := m.Decoder
	begin := d.InputOffset()
	if q.Method == GetReceipt && d.PeekKind() == jsontext.KindBeginObject {
		if err := a.receipt(m, q); err != nil {
			a.Err = fmt.Errorf("%w to %s: %w", ErrInvalid, q.Method, err)
			return err
		}

		return nil
	}

	if d.PeekKind() != jsontext.KindBeginArray {
		v, err := d.ReadValue()
		if a.Result = bytes.Clone(v); err == nil && string(v) != "null" {
			a.Err = fmt.Errorf("%w to %s: it is no list", ErrInvalid, q.Method)
		}

		return err
	}

	next := a.log
	if q.Method == GetReceipts {
		next = a.receipt
	}

	err := a.list(m, q, next)
	a.Bytes = int(d.InputOffset() - begin)

	return err
}

// list decodes an array by next. From the first element on that cannot be decoded the rest is passed over.
func (a *Answer) list(m *message, q *Call, next func(m *message, q *Call) error) error {
	d := m.Decoder
	if _, err := d.ReadToken(); err != nil {
		return err
	}

	depth := d.StackDepth()
	for more(d) {
		if a.Err != nil {
			if err := d.SkipValue(); err != nil {
				return err
			}

			continue
		}

		_, before := d.StackIndex(depth)
		if err := next(m, q); errors.Is(err, ErrTooLarge) {
			a.Err = err
		} else if err != nil {
			a.Err = fmt.Errorf("%w to %s: %w", ErrInvalid, q.Method, err)
		}

		for d.StackDepth() > depth { // it ended within the element
			if _, err := d.ReadToken(); err != nil {
				return err
			}
		}

		if _, after := d.StackIndex(depth); after == before { // or before it
			if err := d.SkipValue(); err != nil {
				return err
			}
		}
	}

	_, err := d.ReadToken()

	return err
}

// wireLog is a log with numbers as any node gives them.
type wireLog struct {
	Address        *common.Address `json:"address"`
	Topics         []common.Hash   `json:"topics"`
	Data           hexutil.Bytes   `json:"data"`
	BlockNumber    number          `json:"blockNumber"`
	TxHash         common.Hash     `json:"transactionHash"`
	TxIndex        number          `json:"transactionIndex"`
	BlockHash      common.Hash     `json:"blockHash"`
	Index          number          `json:"logIndex"`
	BlockTimestamp looseNumber     `json:"blockTimestamp"`
	Removed        bool            `json:"removed"`
}

const (
	// none stands for a missing number of a block or a log.
	none = math.MaxUint64
	// maxIndex bounds the indices of logs and transactions: log_index is an integer in the database.
	maxIndex = math.MaxInt32
	// maxTopics is how many topics a log has at most (LOG4).
	maxTopics = 4
	// maxLogs bounds the logs that are kept of one answer, in bytes of memory.
	maxLogs = 80 << 20
)

// check tests a log's numbers against the columns that they are stored in.
func (w *wireLog) check() error {
	switch {
	case w.Address == nil || w.Topics == nil || w.Data == nil || w.BlockNumber == none || w.Index == none:
		return errors.New("log lacks address, topics, data, blockNumber or logIndex")
	case len(w.Topics) > maxTopics:
		return fmt.Errorf("log %d of block %d has %d topics", w.Index, w.BlockNumber, len(w.Topics))
	case w.BlockNumber > maxNumber || w.Index > maxIndex || w.TxIndex > maxIndex:
		return fmt.Errorf("log %d of transaction %d of block %d: the number is absurd", w.Index, w.TxIndex, w.BlockNumber)
	}

	if err := checkTime(uint64(w.BlockTimestamp)); err != nil {
		return fmt.Errorf("log %d of block %d: %w", w.Index, w.BlockNumber, err)
	}

	return nil
}

// log decodes one log, and keeps it if it is wanted.
func (a *Answer) log(m *message, q *Call) error {
	w := wireLog{BlockNumber: none, Index: none}
	err := m.within(m.longest+maxJunk, fmt.Errorf("%w: one log", ErrOversized),
		func() error { return jsonv2.UnmarshalDecode(m.Decoder, &w) })
	if err == nil {
		err = w.check()
	}

	if err != nil {
		return err
	}

	l := types.Log{Address: *w.Address, Topics: w.Topics, Data: w.Data, BlockNumber: uint64(w.BlockNumber),
		TxHash: w.TxHash, TxIndex: uint(w.TxIndex), BlockHash: w.BlockHash, BlockTimestamp: uint64(w.BlockTimestamp),
		Index: uint(w.Index), Removed: w.Removed}
	if q.Encode {
		a.own = append(a.own, proof.Log(&l))
	}

	place := Place{Log: uint(a.All), Tx: uint(a.Receipts)}
	a.All++
	if q.Keep != nil && !q.Keep(&l) {
		return nil
	}

	a.Logs = append(a.Logs, l)
	if q.Encode {
		a.Places = append(a.Places, place)
	}

	a.held += int(unsafe.Sizeof(l)) + len(l.Topics)*common.HashLength + len(l.Data)
	if a.held > maxLogs {
		return fmt.Errorf("%w: %d logs with more than %d bytes", ErrTooLarge, len(a.Logs), maxLogs)
	}

	return nil
}

// receipt decodes one receipt: the logs in it, and its block.
func (a *Answer) receipt(m *message, q *Call) error {
	var r struct {
		BlockHash common.Hash  `json:"blockHash"`
		Logs      receiptLogs  `json:"logs"`
		TxHash    common.Hash  `json:"transactionHash"`
		Type      looseNumber  `json:"type"`
		Root      looseBytes   `json:"root"` // before Byzantium, instead of the status
		Status    *looseNumber `json:"status"`
		Gas       looseNumber  `json:"cumulativeGasUsed"`
		Bloom     looseBytes   `json:"logsBloom"`
		Nonce     *looseNumber `json:"depositNonce"` // of a deposit on the OP stack
		Version   *looseNumber `json:"depositReceiptVersion"`
	}
	a.own = a.own[:0]
	r.Logs = receiptLogs{a, m, q}
	if err := jsonv2.UnmarshalDecode(m.Decoder, &r); err != nil {
		return err
	}

	if q.Encode {
		p := proof.Receipt{Type: uint64(r.Type), Gas: uint64(r.Gas), Bloom: types.BytesToBloom(r.Bloom[:min(len(r.Bloom),
			types.BloomByteLength)]), Logs: a.own}
		if r.Status != nil {
			p.Status = uint64(*r.Status)
		} else if len(r.Root) == common.HashLength {
			p.Root = r.Root
		}

		if r.Nonce != nil && r.Version != nil {
			p.Deposit = []uint64{uint64(*r.Nonce), uint64(*r.Version)}
		}

		item, known := p.Encode()
		a.Unfit = a.Unfit || !known
		a.encoded(item, r.TxHash)
	}

	if a.Receipts++; a.Receipts > 1 && r.BlockHash != a.Block {
		return fmt.Errorf("receipts of block %s and of block %s", a.Block, r.BlockHash)
	}

	a.Block = r.BlockHash

	return nil
}

// maxEncoded bounds what is held of a block in order to prove it, in bytes.
const maxEncoded = 48 << 20

// encoded holds an item of the block and the hash of its transaction.
func (a *Answer) encoded(item []byte, hash common.Hash) {
	if a.size += len(item); a.size > maxEncoded {
		a.Unfit, item = true, nil
	}

	a.Encoded, a.Hashes = append(a.Encoded, item), append(a.Hashes, hash)
}

// Append adds the answer for a receipt to those for the transactions before it in the block.
func (a *Answer) Append(r *Answer) {
	for i, p := range r.Places {
		a.Places = append(a.Places, Place{Log: p.Log + uint(a.All), Tx: uint(a.Receipts)})
		a.Logs = append(a.Logs, r.Logs[i])
	}

	if a.All += r.All; a.Receipts == 0 {
		a.Block = r.Block
	}

	a.Receipts += r.Receipts
	a.Unfit = a.Unfit || r.Unfit || a.Block != r.Block
	for i := range r.Encoded {
		a.encoded(r.Encoded[i], r.Hashes[i])
	}
}

// transactions reads those of a block: each as it is in the trie under the transactions root, if it is of a type that
// is known, and else its hash alone.
func (a *Answer) transactions(m *message) error {
	if _, err := m.ReadToken(); err != nil {
		return err
	}

	for more(m.Decoder) {
		v, err := m.ReadValue()
		if err != nil {
			return err
		}

		encoded, hash := proof.Transaction(v)
		a.Unfit = a.Unfit || encoded == nil
		a.encoded(encoded, hash)
	}

	_, err := m.ReadToken()

	return err
}

// receiptLogs are decoded into the answer.
type receiptLogs struct {
	to   *Answer
	from *message
	q    *Call
}

// UnmarshalJSONFrom decodes the logs of one receipt; null: none.
func (l *receiptLogs) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	if d.PeekKind() != jsontext.KindBeginArray {
		return d.SkipValue()
	}

	return l.to.list(l.from, l.q, l.to.log)
}

// number is one as any node gives it: hexadecimal, with leading zeros too, or a number of JSON. A
// string without 0x is none: it can be meant as either.
type number uint64

// UnmarshalJSON decodes a number; null leaves it as it was, as everywhere in encoding/json.
func (n *number) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}

	text, base := b, 10
	if len(b) > 4 && b[0] == '"' && b[1] == '0' && b[2]|0x20 == 'x' {
		text, base = b[3:len(b)-1], 16
	}

	v, err := strconv.ParseUint(string(text), base, 64)
	if err != nil {
		return fmt.Errorf("%.40s is no number: 0x and hexadecimal digits are", b)
	}

	*n = number(v)

	return nil
}

// Number is a number as any node gives it.
type Number = number

// looseNumber is a number that need not be there: one that cannot be read is none.
type looseNumber uint64

// UnmarshalJSON decodes a number, or leaves it as it was.
func (n *looseNumber) UnmarshalJSON(b []byte) error {
	_ = (*number)(n).UnmarshalJSON(b)
	return nil
}

// looseBytes need not be there: what cannot be read is none.
type looseBytes []byte

// UnmarshalJSON decodes hexadecimal bytes, or leaves none.
func (l *looseBytes) UnmarshalJSON(b []byte) error {
	*l = common.FromHex(strings.Trim(string(b), `"`))
	return nil
}

// lastTime is the end of the year 9999, in unix seconds: the last time that can be stored.
const lastTime = 253_402_300_799

// checkTime refuses a block's time that cannot be one in seconds.
func checkTime(t uint64) error {
	if t <= lastTime {
		return nil
	}

	const from, to = 946_684_800, 4_102_444_800 // the years 2000 to 2100
	for unit, perSecond := range map[string]uint64{"milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9} {
		if s := t / perSecond; from <= s && s < to {
			return fmt.Errorf("the block's time %d seems to be in %s instead of seconds", t, unit)
		}
	}

	return fmt.Errorf("the block's time %d is beyond the year 9999", t)
}
