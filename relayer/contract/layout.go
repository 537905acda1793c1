package contract

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/holiman/uint256"
)

// layout is one version of an event, prepared for decoding.
type layout struct {
	name       string
	definition string // in Solidity's form
	fields     []field
	topics     int // indexed arguments
	size       int // of the encoded arguments, approximately, in bytes
}

// key names the layout, given topic 0 of its logs.
func (l *layout) key(topic common.Hash) string { return topic.Hex() + ":" + strconv.Itoa(l.topics) }

type field struct {
	key     string // "name":
	typ     abi.Type
	indexed bool
	escrow  bool // the argument of EscrowDeployed that says what was deployed
}

// sizeHint is a length that an encoded argument seldom exceeds: a quoted address has 44 bytes,
// 10^27 wei have 30.
const sizeHint = 44

// decode encodes the arguments of a log as JSON and returns the argument escrow; false if the log
// has another layout.
func (l *layout) decode(log *types.Log) (args []byte, escrow common.Address, ok bool) {
	if len(log.Topics)-1 != l.topics {
		return nil, escrow, false
	}

	d := decoder{out: append(make([]byte, 0, l.size), '{'), most: unfolds * (len(log.Data) + l.size)}
	topic, at := 1, 0
	for i := range l.fields {
		f := &l.fields[i]
		if i > 0 {
			d.out = append(d.out, ',')
		}

		d.out = append(d.out, f.key...)
		data, begin := log.Data, at
		if f.indexed {
			data, begin = log.Topics[topic][:], 0
			topic++
		} else {
			at += headSize(&f.typ)
		}

		if f.indexed && !fitsWord(f.typ) {
			d.out = appendHex(d.out, data) // the hash of an indexed value of a dynamic type
		} else if !d.value(&f.typ, data, begin) {
			return nil, escrow, false
		}

		if f.escrow {
			escrow = common.Address(data[begin+12 : begin+32])
		}
	}

	return append(d.out, '}'), escrow, true
}

// unfolds bounds the arguments: their JSON has at most so many times the bytes of their log. Offsets may lead to the
// same bytes again and again, through each other, so that a short log could unfold to any size. What a compiler
// encodes stays far below.
const unfolds = 16

// decoder writes what is encoded as JSON. It reads as go-ethereum does, so gaps, overlaps and what is left over are
// no fault: a contract may be written by hand.
type decoder struct {
	out  []byte
	most int
}

// value adds the value of a type whose head is at a place of data; false if it is none.
func (d *decoder) value(t *abi.Type, data []byte, at int) (ok bool) {
	if at > len(data)-32 || len(d.out) > d.most {
		return false
	}

	word := data[at : at+32]
	switch t.T {
	case abi.StringTy, abi.BytesTy, abi.SliceTy:
		begin, length, ok := lengthAt(data, word)
		switch {
		case !ok:
			return false
		case t.T == abi.SliceTy:
			return d.list(t.Elem, data[begin:], length)
		case t.T == abi.BytesTy:
			d.out = appendHex(d.out, data[begin:begin+length])
		default:
			// A contract may emit bytes that are not UTF-8: those are replaced. Marshal cannot fail for a string.
			text, _ := json.Marshal(strings.ToValidUTF8(string(data[begin:begin+length]), "\uFFFD"))
			d.out = append(d.out, text...)
		}

		return true
	case abi.ArrayTy, abi.TupleTy:
		if isDynamic(t) {
			if t.T == abi.ArrayTy {
				word = word[24:] // go-ethereum looks at no more of it
			}

			if at, ok = offsetAt(word, len(data)); !ok {
				return false
			}
		}

		if t.T == abi.ArrayTy {
			return d.list(t.Elem, data[at:], t.Size)
		}

		return d.tuple(t, data[at:])
	}

	d.out, ok = appendWord(d.out, t, word)

	return ok
}

// list adds n values with heads one after the other.
func (d *decoder) list(t *abi.Type, data []byte, n int) bool {
	if n > len(data)/32 {
		return false
	}

	d.out = append(d.out, '[')
	step := headSize(t)
	for i := range n {
		if i > 0 {
			d.out = append(d.out, ',')
		}

		if !d.value(t, data, i*step) {
			return false
		}
	}

	d.out = append(d.out, ']')

	return true
}

func (d *decoder) tuple(t *abi.Type, data []byte) bool {
	d.out = append(d.out, '{')
	at := 0
	for i, elem := range t.TupleElems {
		if i > 0 {
			d.out = append(d.out, ',')
		}

		name, _ := json.Marshal(t.TupleRawNames[i]) // cannot fail for a string
		d.out = append(append(d.out, name...), ':')
		if !d.value(elem, data, at) {
			return false
		}

		at += headSize(elem)
	}

	d.out = append(d.out, '}')

	return true
}

// lengthAt returns where a value begins that a word leads to, and its length, which is the word before it.
func lengthAt(data, word []byte) (begin, length int, ok bool) {
	if begin, ok = offsetAt(word, len(data)-32); !ok {
		return 0, 0, false
	}

	begin += 32
	length, ok = offsetAt(data[begin-32:begin], len(data)-begin)

	return begin, length, ok
}

// offsetAt is the number in a word, unless it is above most.
func offsetAt(word []byte, most int) (int, bool) {
	n := binary.BigEndian.Uint64(word[len(word)-8:])
	if most < 0 || n > uint64(most) || !allZero(word[:len(word)-8]) {
		return 0, false
	}

	return int(n), true
}

// isDynamic reports whether the head of a value is the offset of what it holds.
func isDynamic(t *abi.Type) bool {
	switch t.T {
	case abi.StringTy, abi.BytesTy, abi.SliceTy:
		return true
	case abi.ArrayTy:
		return isDynamic(t.Elem)
	}

	return slices.ContainsFunc(t.TupleElems, isDynamic)
}

// headSize is how many bytes a value has among its neighbours.
func headSize(t *abi.Type) (size int) {
	switch {
	case isDynamic(t):
		return 32
	case t.T == abi.ArrayTy:
		return t.Size * headSize(t.Elem)
	case t.T == abi.TupleTy:
		for _, elem := range t.TupleElems {
			size += headSize(elem)
		}

		return size
	}

	return 32
}

// fitsWord reports whether values of a type take one word.
func fitsWord(t abi.Type) bool {
	switch t.T {
	case abi.AddressTy, abi.UintTy, abi.IntTy, abi.BoolTy, abi.FixedBytesTy:
		return true
	}

	return false
}

// appendWord encodes a value of one word; false where it is no value of the type. As in go-ethereum, what is beside
// an address or bytesN does not count.
func appendWord(out []byte, t *abi.Type, word []byte) ([]byte, bool) {
	switch t.T {
	case abi.AddressTy:
		return appendAddress(out, common.Address(word[12:])), true
	case abi.UintTy, abi.IntTy:
		return appendInteger(out, word, t.Size/8, t.T == abi.IntTy)
	case abi.BoolTy:
		return strconv.AppendBool(out, word[31] == 1), allZero(word[:31]) && word[31] <= 1
	case abi.FunctionTy:
		return appendHex(out, word[:24]), allZero(word[24:])
	default: // bytesN
		return appendHex(out, word[:t.Size]), true
	}
}

// appendInteger encodes a number. One of 8, 16, 32 or 64 bits must be in its range; others may have all of the word.
func appendInteger(out, word []byte, size int, signed bool) ([]byte, bool) {
	switch size {
	case 1, 2, 4, 8:
	default:
		size = 32
	}

	negative := signed && word[32-size]&0x80 != 0
	sign := byte(0)
	if negative {
		sign = 0xff
	}

	for _, b := range word[:32-size] {
		if b != sign {
			return nil, false
		}
	}

	n := new(uint256.Int).SetBytes32(word)
	out = append(out, '"')
	if negative {
		out = append(out, '-')
		n.Neg(n)
	}

	return append(append(out, n.Dec()...), '"'), true
}

func appendHex(out, b []byte) []byte {
	out = append(out, `"0x`...)
	out = hex.AppendEncode(out, b)
	return append(out, '"')
}

func allZero(b []byte) bool {
	var or byte
	for _, c := range b {
		or |= c
	}

	return or == 0
}
