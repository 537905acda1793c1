package rpc

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/proof"
)

// Streams says whether a result is decoded while it arrives.
func (c *Call) Streams() bool { return c.Method == GetLogs || c.Method == GetReceipts }

// stream decodes the result of such a request. What it cannot decode is its error; that of the whole
// message is found by whoever reads on.
func (a *Answer) stream(d *jsontext.Decoder, q *Call) error {
	begin := d.InputOffset()
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

	err := a.list(d, q, next)
	a.Bytes = int(d.InputOffset() - begin)

	return err
}

// list decodes an array by next. From the first element on that cannot be decoded the rest is passed over.
func (a *Answer) list(d *jsontext.Decoder, q *Call, next func(d *jsontext.Decoder, q *Call) error) error {
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
		if err := next(d, q); err != nil {
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

// none is no number of a block or a log.
const none = math.MaxUint64

// log decodes one log, and keeps it if it is wanted.
func (a *Answer) log(d *jsontext.Decoder, q *Call) error {
	w := wireLog{BlockNumber: none, Index: none}
	if err := jsonv2.UnmarshalDecode(d, &w); err != nil {
		return err
	}

	if w.Address == nil || w.Topics == nil || w.Data == nil || w.BlockNumber == none || w.Index == none {
		return errors.New("log lacks address, topics, data, blockNumber or logIndex")
	}

	if err := checkTime(uint64(w.BlockTimestamp)); err != nil {
		return fmt.Errorf("log %d of block %d: %w", w.Index, w.BlockNumber, err)
	}

	l := types.Log{Address: *w.Address, Topics: w.Topics, Data: w.Data, BlockNumber: uint64(w.BlockNumber),
		TxHash: w.TxHash, TxIndex: uint(w.TxIndex), BlockHash: w.BlockHash, BlockTimestamp: uint64(w.BlockTimestamp),
		Index: uint(w.Index), Removed: w.Removed}
	if q.Encode {
		a.own = proof.AppendLog(a.own, l.Address, l.Topics, l.Data)
		a.Displaced = a.Displaced || l.Index != uint(a.All) || l.TxIndex != uint(a.Receipts)
	}

	a.All++
	if q.Keep != nil {
		a.Bloom.Add(l.Address.Bytes())
		for _, t := range l.Topics {
			a.Bloom.Add(t.Bytes())
		}
	}

	if q.Keep == nil || q.Keep(&l) {
		a.Logs = append(a.Logs, l)
	}

	return nil
}

// receipt decodes one receipt: the logs in it, and whose block it is of.
func (a *Answer) receipt(d *jsontext.Decoder, q *Call) error {
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
	r.Logs = receiptLogs{a, q}
	if err := jsonv2.UnmarshalDecode(d, &r); err != nil {
		return err
	}

	if q.Encode {
		p := proof.Receipt{Type: uint8(r.Type), Gas: uint64(r.Gas), Bloom: types.BytesToBloom(r.Bloom[:min(len(r.Bloom),
			types.BloomByteLength)]), Logs: a.own}
		if r.Status != nil {
			p.Status = uint64(*r.Status)
		} else {
			p.Root = r.Root
		}

		if r.Nonce != nil && r.Version != nil {
			p.Deposit = []uint64{uint64(*r.Nonce), uint64(*r.Version)}
		}

		a.Encoded, a.Hashes = append(a.Encoded, p.Encode()), append(a.Hashes, r.TxHash)
	}

	if a.Receipts++; a.Receipts > 1 && r.BlockHash != a.Block {
		return fmt.Errorf("receipts of block %s and of block %s", a.Block, r.BlockHash)
	}

	a.Block = r.BlockHash

	return nil
}

// DecodeReceipts fills in the answer to a GetReceipts from receipts that were asked for one by one.
func (c *Call) DecodeReceipts(list [][]byte) error {
	b := slices.Concat([]byte("["), bytes.Join(list, []byte(",")), []byte("]"))
	c.Answer = Answer{}
	if err := c.stream(newMessage(bytes.NewReader(b), int64(len(b))).Decoder, c); err != nil {
		return err
	}

	return c.Err
}

// receiptLogs are decoded into the answer.
type receiptLogs struct {
	to *Answer
	q  *Call
}

// UnmarshalJSONFrom decodes the logs of one receipt; null: none.
func (l *receiptLogs) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	if d.PeekKind() != jsontext.KindBeginArray {
		return d.SkipValue()
	}

	return l.to.list(d, l.q, l.to.log)
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

// lastTime is the end of the year 9999, in unix seconds: no later time can be stored.
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
