// Package rpc sends one JSON-RPC request, or one batch, to one URL, and says what the answer means.
// It is about that alone: package endpoint keeps an endpoint's books,
// package chain makes a chain of several nodes.
//
//	Call ── Client (HTTP or WS) ── answer ── Classify: what a refusal means for what to do next
//
// Why not go-ethereum's rpc.Client, the README of package chain says.
package rpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/rlp"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/proof"
)

// The methods that the relayer reads with.
const (
	ChainID     = "eth_chainId"
	GetCode     = "eth_getCode"
	GetNonce    = "eth_getTransactionCount"
	GetByNumber = "eth_getBlockByNumber"
	GetByHash   = "eth_getBlockByHash"
	GetLogs     = "eth_getLogs"
	GetReceipts = "eth_getBlockReceipts"
	GetReceipt  = "eth_getTransactionReceipt"
	GetRaw      = "eth_getRawTransactionByHash"
	Subscribe   = "eth_subscribe"
)

// Client carries batches to one URL. It may be used concurrently.
type Client interface {
	// Exchange sends the calls as one batch, one call without an array, and fills in their answers. An
	// error is about the batch as a whole; ErrUnanswered alone means that some calls have their
	// answers. An answer of more than limit bytes is ErrTooLarge. ctx must have a deadline.
	// arrived is called when it begins to arrive, unless nil.
	Exchange(ctx context.Context, calls []*Call, limit int64, arrived func()) (Traffic, error)
	// Close ends all connections. The next Exchange opens new ones.
	Close()
}

// late reports whether a context ended because its time was over.
func late(ctx context.Context) bool {
	return errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(context.Cause(ctx), ErrSlow)
}

// Traffic of an exchange, in bytes, uncompressed.
type Traffic struct{ Sent, Received int }

// Call is one request of a batch, and its answer.
type Call struct {
	Method string
	Params string // JSON
	// Keep says which logs of the answer are wanted; nil: all. It may still be called when Exchange has
	// returned an error.
	Keep func(*types.Log) bool
	// Encode has what a block's hash vouches for be kept: receipts, and the transactions of a GetByHash.
	Encode bool

	Answer
}

// Answer is what came of a request. Of GetLogs and GetReceipts the logs are decoded while they arrive,
// so that memory holds the wanted ones alone.
type Answer struct {
	Result   []byte      // JSON; of GetLogs and GetReceipts nil, unless it is null
	Logs     []types.Log // that are wanted
	All      int         // logs, wanted or not
	Receipts int         // of GetReceipts
	Block    common.Hash // that the receipts are of
	// Where Call.Encode is set: the receipts or transactions as the trie under their root has them, the
	// hashes of the transactions as they say, and of each of Logs its place.
	Encoded [][]byte
	Hashes  []common.Hash
	Places  []Place
	Unfit   bool // they are too large to be held, or of a type that is not known: they may make another root
	held    int  // bytes of memory that Logs have
	Bytes   int  // that logs or receipts had as they came
	Err     error

	Subscription *Subscription // of Subscribe, over WebSocket

	header *Header        // the result, once it was decoded as one
	own    []rlp.RawValue // the logs of the receipt that is being read
	size   int            // of Encoded, in bytes
}

// Place of a log in its block: its own, and its transaction's.
type Place struct{ Log, Tx uint }

// ByNumber asks for the header at a height.
func ByNumber(n uint64) *Call {
	return &Call{Method: GetByNumber, Params: `["` + Quantity(n) + `",false]`}
}

// ByTag asks for a header by latest, safe or finalized.
func ByTag(tag string) *Call { return &Call{Method: GetByNumber, Params: `["` + tag + `",false]`} }

// ByHash asks for a header by its hash.
func ByHash(hash common.Hash) *Call {
	return &Call{Method: GetByHash, Params: `["` + hash.Hex() + `",false]`}
}

// Quantity is a number as JSON-RPC writes it, without quotes.
func Quantity(n uint64) string { return "0x" + strconv.FormatUint(n, 16) }

// Decode unmarshals the result. null is ErrBehind: it is the answer to a question about a block
// that the node lacks.
func (c *Call) Decode(to any) error {
	switch {
	case c.Err != nil:
		return c.Err
	case c.Null():
		return ErrBehind
	}

	h, isHeader := to.(*Header)
	if isHeader && c.header != nil {
		*h = *c.header
		return nil
	}

	if err := json.Unmarshal(c.Result, to); err != nil {
		return fmt.Errorf("%w to %s: %w", ErrInvalid, c.Method, err)
	}

	if isHeader {
		c.header = new(*h)
	}

	return nil
}

// IsHeader reports whether the result is a header.
func (c *Call) IsHeader() bool { return c.Method == GetByNumber || c.Method == GetByHash }

// Null reports whether the answer is null.
func (c *Call) Null() bool { return c.Err == nil && string(c.Result) == "null" }

// Header decodes a header and tests that it is the one that was asked for.
func (c *Call) Header(n uint64) (h Header, err error) {
	if err := c.Decode(&h); err != nil {
		return h, AsBehind(err)
	}

	if h.Number != n {
		return h, fmt.Errorf("%w: block %d instead of %d", ErrInvalid, h.Number, n)
	}

	return h, nil
}

// AsBehind marks a node's words for a missing block with ErrBehind.
func AsBehind(err error) error {
	if err != nil && Classify(err) == Behind && !errors.Is(err, ErrBehind) {
		return fmt.Errorf("%w: %w", ErrBehind, err)
	}

	return err
}

// answer puts a response where it belongs.
func (c *Call) answer(r *response) {
	switch {
	case r.fault != nil:
		c.Err = parseFault(r.fault)
	case !r.answered:
		c.Err = fmt.Errorf("%w to %s: neither result nor error", ErrInvalid, c.Method)
	default:
		c.Answer = r.answer
	}

	held := c.Result
	if c.Err != nil || held == nil || !c.Streams() || c.IsHeader() && c.Encoded != nil {
		return
	}

	c.Answer = Answer{} // it came before its id
	m := newMessage(bytes.NewReader(held), int64(len(held)))
	m.longest = int64(len(held))
	if c.IsHeader() {
		c.Result, _ = m.header(&c.Answer, c)
	} else {
		_ = c.stream(m, c) // it is JSON
	}
}

// Header is what the relayer needs of a block's header. The hash is as the node gave it: chains
// differ in how they compute it. Where it is proved, it vouches for number, parent, time, bloom filter and roots.
type Header struct {
	Number       uint64
	Hash, Parent common.Hash
	Time         uint64 // unix, seconds
	Bloom        types.Bloom
	Transactions int // as many as it lists; zero: none, or it does not say

	Proved         bool        // the hash is Ethereum's of all that the node gave
	Receipts, Body common.Hash // the roots of receipts and transactions, where it is proved
}

// maxNumber bounds block numbers: they are signed in the database.
const maxNumber = 1 << 62

// UnmarshalJSON takes a block as eth_getBlockByNumber and newHeads give it. Unknown
// fields are passed over, of whatever type they are.
func (h *Header) UnmarshalJSON(b []byte) error {
	var j struct {
		Number       *number         `json:"number"`
		Hash         *common.Hash    `json:"hash"`
		ParentHash   *common.Hash    `json:"parentHash"` // some chains' first block has none
		Timestamp    *number         `json:"timestamp"`
		LogsBloom    json.RawMessage `json:"logsBloom"`    // some chains have none, or one of another form
		Transactions json.RawMessage `json:"transactions"` // or anything
	}
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}

	if j.ParentHash == nil && j.Number != nil && *j.Number == 0 {
		j.ParentHash = &common.Hash{}
	}

	if j.Number == nil || j.Hash == nil || j.ParentHash == nil || j.Timestamp == nil {
		return errors.New("block lacks number, hash, parentHash or timestamp")
	}

	if *j.Number > maxNumber {
		return fmt.Errorf("block number %d is absurd", *j.Number)
	}

	if err := checkTime(uint64(*j.Timestamp)); err != nil {
		return err
	}

	*h = Header{Number: uint64(*j.Number), Hash: *j.Hash, Parent: *j.ParentHash, Time: uint64(*j.Timestamp)}
	if json.Unmarshal(j.LogsBloom, &h.Bloom) != nil {
		h.Bloom = types.Bloom{}
	}

	h.Transactions = count(j.Transactions)
	h.prove(b)

	return nil
}

// prove finds out whether the hash is that of the content, and takes the content as it was hashed.
func (h *Header) prove(b []byte) {
	p, ok := proof.Header(b, h.Hash)
	if !ok {
		return
	}

	h.Proved, h.Number, h.Parent, h.Time = true, p.Number.Uint64(), p.ParentHash, p.Time
	h.Bloom, h.Receipts, h.Body = p.Bloom, p.ReceiptHash, p.TxHash
}

// count is how many transactions a block lists; newHeads omits them.
func count(transactions []byte) int {
	n, err := strconv.Atoi(string(transactions)) // a message has had them counted
	if err != nil && len(transactions) > 0 && transactions[0] == '[' {
		n, _ = countList(jsontext.NewDecoder(bytes.NewReader(transactions)))
	}

	return n
}

// encode writes a batch with ids from first on.
func encode(calls []*Call, first uint64) []byte {
	list := make([]string, len(calls))
	for i, c := range calls {
		list[i] = fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"%s","params":%s}`, first+uint64(i), c.Method, c.Params)
	}

	body := strings.Join(list, ",")
	if len(calls) > 1 {
		body = "[" + body + "]"
	}

	return []byte(body)
}

// deliver reads the answer to a batch with ids from first on, and puts its parts where they belong.
func (m *message) deliver(calls []*Call, first uint64) error {
	list, single, err := m.responses(len(calls), func(id uint64, known bool) *Call {
		switch at := id - first; {
		case known && at < uint64(len(calls)):
			return calls[at]
		case !known && len(calls) == 1:
			return calls[0]
		}

		return nil
	})
	if err != nil {
		return err
	}

	return m.fill(list, single, calls, first)
}

// fill puts the parts of an answer to a batch with ids from first on where they belong.
func (m *message) fill(list []response, single bool, calls []*Call, first uint64) error {
	if single && list[0].fault != nil && (len(calls) > 1 || !list[0].hasID) {
		return parseFault(list[0].fault) // of the batch as a whole
	}

	if single && !list[0].hasID { // a gateway's object, whatever it calls its members
		return garbled(m.begin, errSyntax)
	}

	answered := make([]bool, len(calls))
	left := len(calls)
	for i := range list {
		r := &list[i]
		at := r.id - first
		if !r.hasID && r.fault != nil && len(calls) > 1 {
			return parseFault(r.fault)
		}

		if !r.hasID || at >= uint64(len(calls)) || answered[at] {
			return fmt.Errorf("%w: an answer to nothing that was asked", ErrInvalid)
		}

		answered[at] = true
		left--
		calls[at].answer(r)
	}

	if left == 0 {
		return nil
	}

	for i, c := range calls {
		if !answered[i] {
			c.Err = fmt.Errorf("%w: %s", ErrUnanswered, c.Method)
		}
	}

	return ErrUnanswered
}

// garbled is an answer other than JSON-RPC: cut off, or a proxy's page, which may say why.
func garbled(b []byte, err error) error {
	return &Page{Text: pageText(b), err: fmt.Errorf("%w: %w", ErrGarbled, err)}
}

var (
	// ErrBehind means that the node lacks the block as yet. The block's content stays open.
	ErrBehind = errors.New("the node does not have the block yet")
	// ErrInvalid means that a node's answer fails to fit the question.
	ErrInvalid = errors.New("invalid answer")
	// ErrGarbled is an ErrInvalid that cannot be read at all: cut off in transit, or a proxy's page.
	// That passes, while a node that answers legibly and wrongly is left alone for long.
	ErrGarbled = fmt.Errorf("garbled, %w", ErrInvalid)
	// ErrUnanswered means that a batch was answered in part: an endpoint that takes fewer requests at once.
	ErrUnanswered = fmt.Errorf("some requests of the batch have no answer, %w", ErrInvalid)
	// ErrOversized is an ErrInvalid out of all proportion to the request, which no honest node gives: what
	// was not asked for takes up more room than what was.
	ErrOversized = fmt.Errorf("oversized, %w", ErrInvalid)
	// ErrTooLarge is an answer larger than this process is willing to hold.
	ErrTooLarge = errors.New("response is too big")
	// ErrRate marks a refusal as one for the rate, whatever its words.
	ErrRate = errors.New("too many requests")
	// ErrSlow is the cause of a request's end when its own deadline passed.
	ErrSlow = errors.New("no answer in time")
	// ErrDisconnected means that the connection broke while an answer was awaited.
	ErrDisconnected = errors.New("the connection broke")
	// ErrAbandoned is an ErrDisconnected of our own making.
	ErrAbandoned = fmt.Errorf("%w: it had answered no request for too long", ErrDisconnected)
)

// words are what a node said instead of a result: an *Error or a *Page.
type words interface {
	error
	kind() Kind
	retry() *time.Duration
}

// Error is what a node answered instead of a result.
type Error struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
	Status  int             `json:"-"` // HTTP status that came with it; zero: 200, or no HTTP
	Retry   time.Duration   `json:"-"` // how long to wait, where it says; zero: it does not
}

func (e *Error) Error() string {
	text := fmt.Sprintf("node says %q (code %d)", e.Message, e.Code)
	if more := e.reason(); more != "" {
		text += ": " + more
	}

	return text
}

func (e *Error) retry() *time.Duration { return &e.Retry }

// Bounds of what is kept of a node's words, in bytes. An endpoint's last error lives for hours.
const (
	maxMessage, maxReason = 400, 200
	// maxData is for data, which may be a revert's. Of longer data only the first words are kept.
	maxData = 64 << 10
	// A fault of more than maxFault is taken for text: each decoding copies it.
	maxFault = 1 << 20
)

// reason is what data adds to the message; a revert's data stays out.
func (e *Error) reason() string {
	var text string
	if json.Unmarshal(e.Data, &text) != nil {
		text = string(e.Data)
	}

	if text == "null" || strings.HasPrefix(text, "0x") || text == e.Message {
		return ""
	}

	return text[:min(len(text), maxReason)]
}

// parseFault decodes what a node answered instead of a result. It keeps copies of what it needs.
func parseFault(b []byte) error {
	long := len(b) > maxFault
	if long {
		b = b[:maxPage]
	}

	e := &Error{}
	if long || json.Unmarshal(b, e) != nil {
		var loose struct { // a code that is a string, or no number that fits
			Message string `json:"message"`
		}
		if !long && json.Unmarshal(b, &loose) == nil && loose.Message != "" {
			e.Message = loose.Message
		} else {
			e.Message = strings.Trim(string(b), `"`)
		}

		e.Code, e.Data = 0, nil
	}

	e.Message = strings.Clone(e.Message[:min(len(e.Message), maxMessage)])
	if len(e.Data) > maxData { // as a string, so that it stays JSON; after a quote, whole bytes of hexadecimal
		e.Data, _ = json.Marshal(strings.Trim(string(e.Data[:1+maxPage]), `"`))
	}

	return e
}

// Page is an answer other than JSON-RPC: a proxy's page or a bare status.
type Page struct {
	Status int           // HTTP; zero: it came with 200
	Retry  time.Duration // Retry-After; zero: none given
	Text   string        // its first words
	err    error         // nil: the status is what is wrong
}

func (e *Page) Error() string {
	text := "HTTP status " + strconv.Itoa(e.Status)
	if e.err != nil {
		text = e.err.Error()
	}

	if e.Text != "" {
		text += fmt.Sprintf(" (%q)", e.Text)
	}

	return text
}

func (e *Page) Unwrap() error { return e.err }

func (e *Page) retry() *time.Duration { return &e.Retry }
