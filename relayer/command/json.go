package command

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ethereum/go-ethereum/common"
	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Limits of a message.
const (
	// Version of the message.
	Version = 1
	// MaxCommands is how many commands one message may hold.
	MaxCommands = 100
	// MaxBytes is how long a message may be: 100 commands with the longest texts need about half of it.
	MaxBytes = 256 << 10

	maxText = 128
	maxTime = math.MaxInt32 * 100
)

// Problem is one thing that is wrong with a command.
type Problem struct {
	Field  string `json:"field"`
	Detail string `json:"detail"`
}

// Problems is everything that is wrong with one.
type Problems []Problem

func (p Problems) Error() string {
	texts := make([]string, len(p))
	for i, x := range p {
		texts[i] = x.Field + " " + x.Detail
	}

	return "malformed command: " + strings.Join(texts, "; ")
}

// wire is a command as in JSON. A pointer tells whether the field is there; the others may be missing.
type wire struct {
	Version   *int      `json:"version"`
	ChainID   *string   `json:"chain_id"`
	Factory   *string   `json:"factory"`
	Kind      *string   `json:"kind"`
	Sender    *string   `json:"sender"`
	Escrow    *string   `json:"escrow"`
	Args      *wireArgs `json:"args,omitempty"`
	NotBefore uint64    `json:"not_before,omitempty"`
	ExpiresAt *uint64   `json:"expires_at"`
	MaxFee    *string   `json:"max_fee"`
	Reference string    `json:"reference,omitempty"`
	ReplyTo   string    `json:"reply_to,omitempty"`
	Salt      *string   `json:"salt,omitempty"`
	Signature *string   `json:"signature"`
}

type wireArgs struct {
	Payee             *string `json:"payee"`
	Amount            *string `json:"amount"`
	ReleaseDelay      *string `json:"releaseDelay"`
	ApprovalsRequired *uint8  `json:"approvalsRequired"`
	Arbiter           *string `json:"arbiter"`
	Salt              *string `json:"salt"`
}

// MarshalJSON writes the message. Addresses are in EIP-55 mixed case, amounts decimal strings.
func (s *Signed) MarshalJSON() ([]byte, error) {
	w := wire{
		Version: new(Version), ChainID: new(strconv.FormatUint(s.ChainID, 10)), Factory: new(s.Factory.Hex()),
		Kind: new(string(s.Kind)), Sender: new(s.Sender.Hex()), Escrow: new(s.Escrow.Hex()), NotBefore: s.NotBefore,
		ExpiresAt: &s.ExpiresAt, MaxFee: new(decimal(s.MaxFee)), Reference: s.Reference, ReplyTo: s.ReplyTo,
		Salt: new(s.Salt.Hex()), Signature: new("0x" + hex.EncodeToString(s.Signature[:])),
	}
	if a := s.Args; a != nil {
		w.Args = &wireArgs{
			Payee: new(a.Payee.Hex()), Amount: new(decimal(a.Amount)), ReleaseDelay: new(decimal(a.ReleaseDelay)),
			ApprovalsRequired: &a.ApprovalsRequired, Arbiter: new(a.Arbiter.Hex()), Salt: new(a.Salt.Hex()),
		}
	}

	return json.Marshal(w)
}

func decimal(n *big.Int) string {
	if n == nil {
		return "0"
	}

	return n.String()
}

// ErrTooLarge means that a message is longer than MaxBytes, or holds more than MaxCommands.
var ErrTooLarge = errors.New("message too large")

// Split takes a message apart: one command, or an array of up to MaxCommands. What readers understand differently is
// refused: a key that occurs twice, text that is not UTF-8, a second value after the first. Errors are Problems
// (of the message as a whole) or ErrTooLarge.
func Split(body []byte) (all []json.RawMessage, err error) {
	if len(body) > MaxBytes {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(body), MaxBytes)
	}

	if !utf8.Valid(body) {
		return nil, Problems{{"body", "is not UTF-8"}}
	}

	var one json.RawMessage
	if err := jsonv2.Unmarshal(body, &one); err != nil {
		return nil, malformed(err)
	}

	if one[0] != '[' {
		return []json.RawMessage{one}, nil
	}

	if err := jsonv2.Unmarshal(one, &all); err != nil {
		return nil, malformed(err)
	}

	switch {
	case len(all) == 0:
		return nil, Problems{{"body", "is an empty array"}}
	case len(all) > MaxCommands:
		return nil, fmt.Errorf("%w: %d commands, at most %d", ErrTooLarge, len(all), MaxCommands)
	}

	return all, nil
}

// malformed says what is wrong with JSON. Of the message it repeats only the name of an unknown field or of one that
// is there twice, and of that 60 bytes: a refusal stays small whatever was sent.
func malformed(err error) Problems {
	var text *jsontext.SyntacticError
	var value *jsonv2.SemanticError
	switch {
	case errors.As(err, &text) && errors.Is(text.Err, jsontext.ErrDuplicateName):
		return Problems{{"body", fmt.Sprintf("has the key %.60q twice", text.JSONPointer.LastToken())}}
	case !errors.As(err, &value):
		return Problems{{"body", "is not JSON"}}
	case errors.Is(value.Err, jsonv2.ErrUnknownName):
		return Problems{{"body", fmt.Sprintf("has the unknown field %.60q", value.JSONPointer.LastToken())}}
	case value.JSONPointer == "":
		return Problems{{"body", "must be a JSON object"}}
	}

	field := strings.Join(slices.Collect(value.JSONPointer.Tokens()), ".")

	return Problems{{field, "must be a " + jsonType(value.GoType)}}
}

// Parse reads one command. Its error is Problems: everything that is wrong. The signature stays unverified.
func Parse(raw []byte) (*Signed, error) {
	var w wire
	if err := jsonv2.Unmarshal(raw, &w, jsonv2.RejectUnknownMembers(true)); err != nil {
		return nil, malformed(err)
	}

	r, s := &reader{}, &Signed{}
	switch {
	case w.Version == nil:
		r.say("version", "is missing")
	case *w.Version != Version:
		r.say("version", fmt.Sprintf("%d is not known; this relayer understands %d", *w.Version, Version))
	}

	s.ChainID = r.uint("chain_id", w.ChainID)
	s.Factory = r.address("factory", w.Factory)
	s.Kind = Kind(present(r, "kind", w.Kind))
	s.Sender, s.Escrow = r.address("sender", w.Sender), r.address("escrow", w.Escrow)
	s.NotBefore, s.ExpiresAt = w.NotBefore, present(r, "expires_at", w.ExpiresAt)
	s.MaxFee = r.wei("max_fee", w.MaxFee)
	s.Reference, s.ReplyTo = w.Reference, w.ReplyTo
	if w.Salt != nil {
		r.hex("salt", w.Salt, s.Salt[:])
	}

	r.hex("signature", w.Signature, s.Signature[:])
	if w.Args != nil {
		s.Args = r.args(w.Args)
	}

	for _, p := range s.Check() {
		r.say(p.Field, p.Detail)
	}

	if len(r.problems) > 0 {
		return nil, r.problems
	}

	return s, nil
}

// args are the arguments of a create.
func (r *reader) args(w *wireArgs) *CreateArgs {
	a := &CreateArgs{
		Payee: r.address("args.payee", w.Payee), Amount: r.wei("args.amount", w.Amount),
		ReleaseDelay:      r.wei("args.releaseDelay", w.ReleaseDelay),
		Arbiter:           r.address("args.arbiter", w.Arbiter),
		ApprovalsRequired: present(r, "args.approvalsRequired", w.ApprovalsRequired),
	}
	r.hex("args.salt", w.Salt, a.Salt[:])

	return a
}

// jsonType is what a field of a Go type is in JSON.
func jsonType(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}

	switch kind := t.Kind().String(); {
	case strings.HasPrefix(kind, "uint"):
		return "whole number, 0 or more, in range"
	case strings.HasPrefix(kind, "int"):
		return "whole number"
	case kind == "struct":
		return "object"
	default:
		return kind
	}
}

// Check says everything that is wrong with a command in itself. Whether it is expired, or allowed,
// is for the relayer to say.
func (c *Command) Check() Problems {
	r := &reader{}
	if c.ChainID == 0 || c.ChainID > math.MaxInt64 {
		r.say("chain_id", "must be 1 to 9223372036854775807")
	}

	for _, a := range []struct {
		field string
		value common.Address
	}{{"factory", c.Factory}, {"sender", c.Sender}, {"escrow", c.Escrow}} {
		if a.value == (common.Address{}) {
			r.say(a.field, "must not be the zero address")
		}
	}

	switch c.Kind {
	case Approve, Release, Refund:
		if c.Args != nil {
			r.say("args", "belongs to create only")
		}
	case Create:
		c.checkArgs(r)
	default:
		r.say("kind", "must be approve, release, refund or create")
	}

	if c.ExpiresAt == 0 || c.ExpiresAt > maxTime {
		r.say("expires_at", "must be a time in unix seconds")
	}

	if c.NotBefore > maxTime {
		r.say("not_before", "must be a time in unix seconds")
	} else if c.NotBefore >= c.ExpiresAt {
		r.say("not_before", "must be before expires_at")
	}

	r.uint256("max_fee", c.MaxFee)
	if c.MaxFee != nil && c.MaxFee.Sign() == 0 {
		r.say("max_fee", "must be more than 0")
	}

	if utf8.RuneCountInString(c.Reference) > maxText || !utf8.ValidString(c.Reference) ||
		strings.ContainsFunc(c.Reference, unicode.IsControl) {
		r.say("reference", "must be at most 128 characters, without control characters")
	}

	if len(c.ReplyTo) > maxText || strings.ContainsFunc(c.ReplyTo, func(x rune) bool { return x < ' ' || x > '~' }) {
		r.say("reply_to", "must be at most 128 printable ASCII characters")
	}

	return r.problems
}

func (c *Command) checkArgs(r *reader) {
	a := c.Args
	if a == nil {
		r.say("args", "is missing: create needs them")
		return
	}

	if a.Payee == (common.Address{}) {
		r.say("args.payee", "must not be the zero address")
	}

	r.uint256("args.amount", a.Amount)
	r.uint256("args.releaseDelay", a.ReleaseDelay)
	if a.ReleaseDelay != nil && (!a.ReleaseDelay.IsUint64() || a.ReleaseDelay.Uint64() > maxTime) {
		r.say("args.releaseDelay", "must be seconds")
	}

	if a.ApprovalsRequired == 0 {
		r.say("args.approvalsRequired", "must be 1 to 255")
	}
}

// reader collects problems. The first one of a field counts: what is missing is not wrong as well.
type reader struct {
	problems Problems
}

func (r *reader) say(field, detail string) {
	if !slices.ContainsFunc(r.problems, func(p Problem) bool { return p.Field == field }) {
		r.problems = append(r.problems, Problem{field, detail})
	}
}

// present is the value of a field that must be there.
func present[T any](r *reader, field string, value *T) (v T) {
	if value == nil {
		r.say(field, "is missing")
		return v
	}

	return *value
}

func (r *reader) uint256(field string, n *big.Int) {
	if n == nil || n.Sign() < 0 || n.BitLen() > 256 {
		r.say(field, "must be 0 to 2^256-1")
	}
}

func (r *reader) uint(field string, value *string) uint64 {
	text := present(r, field, value)
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || strconv.FormatUint(n, 10) != text {
		r.say(field, "must be a decimal number in a string, without sign or leading zeros")
	}

	return n
}

// ParseWei reads an amount: digits only, as many as the largest uint256 has.
func ParseWei(text string) (n *big.Int, ok bool) {
	if text == "" || len(text) > 78 || strings.Trim(text, "0123456789") != "" {
		return nil, false
	}

	return new(big.Int).SetString(text, 10)
}

func (r *reader) wei(field string, value *string) *big.Int {
	text := present(r, field, value)
	n, ok := ParseWei(text)
	if !ok || n.String() != text {
		r.say(field, "must be a decimal number in a string, without sign or leading zeros, at most 78 digits")
		return nil
	}

	return n
}

// address takes lower case, and mixed case with the right EIP-55 checksum.
func (r *reader) address(field string, value *string) (a common.Address) {
	if !r.hex(field, value, a[:]) {
		return a
	}

	if digits := (*value)[2:]; digits != strings.ToLower(digits) && *value != a.Hex() {
		r.say(field, "has a wrong EIP-55 checksum; write it in lower case if it has none")
	}

	return a
}

func (r *reader) hex(field string, value *string, to []byte) bool {
	digits, prefixed := strings.CutPrefix(present(r, field, value), "0x")
	decoded, err := hex.DecodeString(digits)
	if !prefixed || err != nil || len(decoded) != len(to) {
		r.say(field, fmt.Sprintf("must be 0x and %d hexadecimal digits", 2*len(to)))
		return false
	}

	copy(to, decoded)

	return true
}
