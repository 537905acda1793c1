package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// The methods that are used; they are also the values of a metric's label.
const (
	chainIDMethod   = "eth_chainId"
	codeMethod      = "eth_getCode"
	numberMethod    = "eth_getBlockByNumber"
	hashMethod      = "eth_getBlockByHash"
	logsMethod      = "eth_getLogs"
	subscribeMethod = "eth_subscribe"
	otherMethod     = "other" // in metrics only
)

var methods = []string{chainIDMethod, codeMethod, numberMethod, hashMethod, logsMethod, subscribeMethod, otherMethod}

// call is one request of a batch, and its answer.
type call struct {
	method string
	params string // JSON
	result []byte
	err    error
}

// decode unmarshals the result. null is ErrBehind: it is the answer to a question about a block that the node does not have.
func (c *call) decode(to any) error {
	if c.err != nil {
		return c.err
	}
	if string(c.result) == "null" {
		return ErrBehind
	}
	if err := json.Unmarshal(c.result, to); err != nil {
		return fmt.Errorf("%w to %s: %w", errInvalid, c.method, err)
	}
	return nil
}

func byNumber(n uint64) *call {
	return &call{method: numberMethod, params: `["` + quantity(n) + `",false]`}
}

func byTag(tag string) *call { return &call{method: numberMethod, params: `["` + tag + `",false]`} }

func byHash(hash interface{ Hex() string }) *call {
	return &call{method: hashMethod, params: `["` + hash.Hex() + `",false]`}
}

func quantity(n uint64) string { return "0x" + strconv.FormatUint(n, 16) }

// transport carries batches to one endpoint. It may be used concurrently.
type transport interface {
	// exchange sends the calls as one batch and fills in their answers. An error means that there are none.
	exchange(ctx context.Context, calls []*call) (sent, received int, err error)
	close()
}

// encode writes a batch whose ids count from first.
func encode(calls []*call, first uint64) []byte {
	n := 2
	for _, c := range calls {
		n += len(c.params) + 80
	}
	b := make([]byte, 0, n)
	for i, c := range calls {
		if len(calls) > 1 {
			b = append(b, "[,"[min(i, 1)])
		}
		b = append(b, `{"jsonrpc":"2.0","id":`...)
		b = strconv.AppendUint(b, first+uint64(i), 10)
		b = append(b, `,"method":"`...)
		b = append(b, c.method...)
		b = append(b, `","params":`...)
		b = append(b, c.params...)
		b = append(b, '}')
	}
	if len(calls) > 1 {
		b = append(b, ']')
	}
	return b
}

// answer puts a response where it belongs.
func (c *call) answer(r *response) {
	switch {
	case r.fault != nil:
		c.err = parseFault(r.fault)
	case r.result == nil:
		c.err = fmt.Errorf("%w to %s: neither result nor error", errInvalid, c.method)
	default:
		c.result = r.result
	}
}

// rpcError is an error that a node answered with.
type rpcError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
}

func (e *rpcError) Error() string { return fmt.Sprintf("node says %q (code %d)", e.Message, e.Code) }

func parseFault(b []byte) error {
	e := &rpcError{}
	if err := json.Unmarshal(b, e); err != nil {
		e.Message = string(b)
	}
	e.Message = e.Message[:min(len(e.Message), 300)]
	return e
}

// statusError is an HTTP status that carries no answer.
type statusError struct {
	status int
	retry  time.Duration // Retry-After; zero: none given
}

func (e *statusError) Error() string { return "HTTP status " + strconv.Itoa(e.status) }

// errTooMuch is an answer larger than this process is willing to hold.
var errTooMuch = errors.New("response is too big")

// outcome classifies errors; it is also a metric's label.
type outcome string

const (
	succeeded    outcome = "ok"
	failed       outcome = "error"
	timedOut     outcome = "timeout"
	rateLimited  outcome = "rate_limited"
	tooLarge     outcome = "range_too_large"
	lagging      outcome = "behind"
	rejected     outcome = "invalid"
	tooManyAddrs outcome = "too_many_addresses" // counted as range_too_large
)

var outcomes = []outcome{succeeded, failed, timedOut, rateLimited, tooLarge, lagging, rejected}

// What nodes and providers say when they will not answer for so many blocks or results. Collected from the documentation and the issue
// trackers of geth, erigon, nethermind, besu, anvil, Alchemy, Infura, QuickNode, Ankr, Chainstack, Cloudflare, dRPC, Tenderly and others.
var tooLargeWords = []string{
	"query returned more than", "more than 10000 results", "log response size exceeded", "response size exceeded", "response size should not",
	"response is too big", "response too large", "result is too large", "results are too large", "too many results", "too many logs", "max results",
	"exceeds max results", "logs matched by query exceeds", "result set", "block range", "blocks range", "range is too", "range too", "range limit",
	"max range", "maximum range", "exceed max range", "exceeds the range", "exceeded max allowed range", "too many blocks", "block count", "blocks distance",
	"ranges over", "limited to", "limit the query", "query timeout", "query exceeds", "query is too", "try with this", "reduce the range", "narrow",
	"eth_getlogs is limited", "max block", "exceeds limit", "execution timeout", "exceed maximum", "exceeds maximum", "backend response too large",
}

var tooManyAddressesWords = []string{"exceed max addresses", "too many addresses", "addresses per search", "max addresses", "address limit", "number of addresses"}

var behindWords = []string{
	"beyond current head", "unknown block", "header not found", "block not found", "header for hash not found", "not found: block", "after last accepted block",
	"unfinalized", "block is not available", "block is out of range", "from block is greater than latest", "cannot be found", "higher than latest",
	"greater than latest", "future block", "requested block number", "invalid block range params",
}

var rateWords = []string{
	"rate limit", "rate-limit", "ratelimit", "too many request", "throughput", "compute units", "capacity", "request limit", "daily request", "request count",
	"quota", "credits", "usage limit", "requests per second", "call rate", "throttl",
}

func lower(text string) string { return strings.ToLower(text) }

func says(text string, words []string) bool {
	for _, w := range words {
		if strings.Contains(text, w) {
			return true
		}
	}
	return false
}

// classify says what an error means for what to do next.
func classify(err error) outcome {
	if err == nil {
		return succeeded
	}
	if e, is := errors.AsType[*statusError](err); is {
		switch e.status {
		case 429, 402:
			return rateLimited
		case 413:
			return tooLarge
		case 408, 504, 524:
			return timedOut
		}
		return failed
	}
	if e, is := errors.AsType[*rpcError](err); is {
		text := strings.ToLower(e.Message)
		switch {
		case e.Code == 429 || e.Code == -32029 || says(text, rateWords):
			return rateLimited
		case says(text, behindWords):
			return lagging
		case says(text, tooManyAddressesWords):
			return tooManyAddrs
		case says(text, tooLargeWords) || e.Code == -32005: // EIP-1474: limit exceeded; about rates it would have said so
			return tooLarge
		}
		return failed
	}
	var timeout net.Error
	switch {
	case errors.Is(err, ErrBehind):
		return lagging
	case errors.Is(err, errInvalid):
		return rejected
	case errors.Is(err, errTooMuch):
		return tooLarge
	case errors.Is(err, errSlow), errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return timedOut
	}
	return failed
}

// errSlow is the cause of a request's end after Config.Timeout.
var errSlow = errors.New("no answer in time")
