package contract

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
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
	topics     int           // indexed arguments
	data       abi.Arguments // the arguments that are not indexed
	static     bool          // each argument of data is one word
	size       int           // of the encoded arguments, approximately, in bytes
}

// key names the layout, given topic 0 of its logs.
func (l *layout) key(topic common.Hash) string { return topic.Hex() + ":" + strconv.Itoa(l.topics) }

type field struct {
	key     string // "name":
	typ     abi.Type
	indexed bool
	word    bool // the type fits one word: address, uintN, intN, bool, bytesN
	escrow  bool // the argument of EscrowDeployed that says what was deployed
}

// sizeHint is a length that an encoded argument seldom exceeds: a quoted address has 44 bytes,
// 10^27 wei have 30.
const sizeHint = 44

// decode encodes the arguments of a log as JSON and returns the argument escrow; false if the log
// has another layout.
func (l *layout) decode(log *types.Log) (args []byte, escrow common.Address, ok bool) {
	if len(log.Topics)-1 != l.topics || l.static && len(log.Data) != 32*len(l.data) {
		return nil, escrow, false
	}

	var values []any
	if !l.static {
		if values, ok = l.unpack(log.Data); !ok {
			return nil, escrow, false
		}
	}

	args = append(make([]byte, 0, l.size), '{')
	topic, arg := 1, 0
	for i := range l.fields {
		f := &l.fields[i]
		if i > 0 {
			args = append(args, ',')
		}

		args = append(args, f.key...)
		var word []byte
		switch {
		case f.indexed:
			word = log.Topics[topic][:]
			topic++
		case l.static:
			word = log.Data[32*arg : 32*arg+32]
			arg++
		default:
			args = appendValue(args, &f.typ, reflect.ValueOf(values[arg]))
			if f.escrow {
				escrow = values[arg].(common.Address)
			}

			arg++

			continue
		}

		if f.escrow {
			escrow = common.Address(word[12:])
		}

		if !f.word {
			args = appendHex(args, word) // the hash of an indexed value of a dynamic type
		} else if args, ok = appendWord(args, &f.typ, word); !ok {
			return nil, escrow, false
		}
	}

	return append(args, '}'), escrow, true
}

// unpack decodes data with dynamic types; false unless it is the canonical encoding, which every
// compiler produces. Encoding again is the check: go-ethereum's decoder tolerates gaps, overlaps
// and trailing bytes.
func (l *layout) unpack(data []byte) ([]any, bool) {
	values, err := l.data.Unpack(data)
	if err != nil {
		return nil, false
	}

	again, err := l.data.Pack(values...)

	return values, err == nil && bytes.Equal(again, data)
}

// fitsWord reports whether values of a type take one word.
func fitsWord(t abi.Type) bool {
	switch t.T {
	case abi.AddressTy, abi.UintTy, abi.IntTy, abi.BoolTy, abi.FixedBytesTy:
		return true
	}

	return false
}

// appendWord encodes a value of one word; false if the padding is not canonical.
func appendWord(out []byte, t *abi.Type, word []byte) ([]byte, bool) {
	switch t.T {
	case abi.AddressTy:
		if !allZero(word[:12]) {
			return nil, false
		}

		return appendAddress(out, common.Address(word[12:])), true
	case abi.UintTy, abi.IntTy:
		return appendInteger(out, word, t.Size/8, t.T == abi.IntTy)
	case abi.BoolTy:
		if !allZero(word[:31]) || word[31] > 1 {
			return nil, false
		}

		return strconv.AppendBool(out, word[31] == 1), true
	default: // bytesN
		if !allZero(word[t.Size:]) {
			return nil, false
		}

		return appendHex(out, word[:t.Size]), true
	}
}

// appendInteger encodes a number of size bytes, extended to the word by zeros or, if it is signed,
// by its sign in two's complement.
func appendInteger(out, word []byte, size int, signed bool) ([]byte, bool) {
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

// appendValue encodes what go-ethereum unpacked. It is slower, and used only for events with
// dynamic types, which the built-in ABIs lack.
func appendValue(out []byte, t *abi.Type, v reflect.Value) []byte {
	switch t.T {
	case abi.AddressTy:
		return appendAddress(out, v.Interface().(common.Address))
	case abi.BoolTy:
		return strconv.AppendBool(out, v.Bool())
	case abi.StringTy:
		// A contract may emit bytes that are not UTF-8: those are replaced. Marshal cannot fail for
		// a string.
		text, _ := json.Marshal(strings.ToValidUTF8(v.String(), "\uFFFD"))
		return append(out, text...)
	case abi.UintTy, abi.IntTy: // a *big.Int, or a number of Go's
		return fmt.Appendf(out, `"%d"`, v.Interface())
	case abi.BytesTy:
		return appendHex(out, v.Bytes())
	case abi.FixedBytesTy, abi.FunctionTy:
		fixed := make([]byte, v.Len())
		reflect.Copy(reflect.ValueOf(fixed), v)
		return appendHex(out, fixed)
	case abi.TupleTy:
		out = append(out, '{')
		for i, elem := range t.TupleElems {
			if i > 0 {
				out = append(out, ',')
			}

			name, _ := json.Marshal(t.TupleRawNames[i]) // cannot fail for a string
			out = append(append(out, name...), ':')
			out = appendValue(out, elem, v.Field(i))
		}

		return append(out, '}')
	default: // SliceTy, ArrayTy
		out = append(out, '[')
		for i := range v.Len() {
			if i > 0 {
				out = append(out, ',')
			}

			out = appendValue(out, t.Elem, v.Index(i))
		}

		return append(out, ']')
	}
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
