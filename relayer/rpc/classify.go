package rpc

import (
	"context"
	"errors"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Kind is what an answer means for what to do next.
type Kind string

// The kinds. Only the node's own words and codes are classified: what any other refusal of a certain
// request means is up to the caller.
const (
	OK               Kind = "ok"
	Failed           Kind = "error"              // something else
	TimedOut         Kind = "timeout"            // too slow, or too much to do
	RateLimited      Kind = "rate_limited"       // too many requests: wait
	RangeTooLarge    Kind = "range_too_large"    // too many blocks, logs or bytes: ask for fewer blocks
	Behind           Kind = "behind"             // it does not have the block yet
	Invalid          Kind = "invalid"            // no answer to the question
	TooManyAddresses Kind = "too_many_addresses" // name fewer addresses
	AddressRequired  Kind = "address_required"   // logs only of named contracts
	BatchRefused     Kind = "batch_refused"      // fewer requests at once
	Pruned           Kind = "pruned"             // it has thrown the block away
	Unsupported      Kind = "unsupported"        // not this method, or not for this customer
)

// Kinds in the order of a metric's documentation.
var Kinds = []Kind{OK, Failed, TimedOut, RateLimited, RangeTooLarge, Behind, Invalid, TooManyAddresses,
	AddressRequired, BatchRefused, Pruned, Unsupported}

// What nodes and providers say, in lower case. The table in classify_test.go has each text in full,
// with its source. First match wins, in the order of words below: a rate's wording may mention a
// limit or a range, and a batch's may mention both.
var (
	batchWords = []string{"batch", "too many requests in", "rpc calls in"}
	rateWords  = []string{
		"rate limit", "rate-limit", "ratelimit", "limit rate", "rate exceeded", "request rate", "too many request",
		"throughput", "compute unit", "capacity limit", "capacity exceeded",
		"request limit", "requests limit", "daily request", "request count", "request quota", "quota", "credits",
		"usage limit", "requests per", "request/s", "req/s", "per second",
		"/second", "/sec", "rps limit", "cu limit", "call rate", "throttl", "slow down", "too fast", "try again later",
		"concurrent", "simultaneous", "connection limit",
		"connections limited", "monthly", "over limit", "exceeded the allowed", "limit for your", "per minute",
		"being rate limited",
	}
	addressWords = []string{
		"exceed max addresses", "too many addresses", "addresses per search", "max addresses", "address limit",
		"number of addresses", "addresses limit", "addresses in filter",
		"addresses exceed", "addresses at most", "maximum addresses", "filter addresses", "addresses or topics",
	}
	needsAddressWords = []string{
		"specify an address", "specify address", "address is required", "address required",
		"must specify at least one address", "missing address", "without address", "address filter is required",
		"requires an address", "contract address is required", "provide an address", "address must be specified",
		"include an address",
	}
	behindWords = []string{
		"beyond current head", "unknown block", "header not found", "block not found", "header for hash not found",
		"not found: block", "after last accepted block", "unfinalized",
		"block is not available", "block is out of range", "from block is greater than latest", "could not be found",
		"cannot be found", "higher than latest", "greater than latest",
		"future block", "requested block number", "invalid block range params", "doesn't exist yet", "does not exist yet",
		"exceeds latest block", "exceeds the latest",
		"after the latest", "block does not exist", "no block found", "resource not found", "invalid block height",
		"toblock is greater", "block number out of range", "head block",
		"ahead of the chain", "block requested not found", "unknown parent", "one of the blocks specified in filter",
		"not yet available",
	}
	prunedWords = []string{
		"pruned", "missing trie node", "history unavailable", "history is not available", "historical state",
		"state not available", "state is not available", "archive", "no state available",
		"old data not available", "ancient", "state at block", "world state", "distance to target block exceeds",
		"before the earliest", "earliest available", "historical block",
		"logs are not available", "block too old", "transaction indexing is in progress",
	}
	// Free tiers say of a range or a slow request that a paid one would do: rangeWords go before them.
	unsupportedWords = []string{
		"method not found", "method is not", "does not exist/is not available", "not supported", "unsupported method",
		"is not whitelisted", "not allowed", "paid plan", "upgrade your plan",
		"not available on", "unauthorized", "forbidden", "invalid api key", "access denied", "method handler crashed",
		"must be authenticated", "api key", "disabled",
	}
	rangeWords = []string{
		"query returned more than", "more than 10000 results", "response size", "response is too big", "response too large",
		"result is too large", "results are too large",
		"too many results", "too many logs", "max results", "matched by query", "matched logs", "result set", "block range",
		"blocks range", "range is too", "range too", "range limit", "max range",
		"maximum range", "range exceeds", "exceeds the range", "exceeded max allowed range", "requested range",
		"max allowed", "maximum allowed", "too many blocks", "block count",
		"blocks distance", "ranges over", "limited to", "limit the query", "query timeout", "query timed out",
		"query exceeds", "query is too", "query must be smaller", "try with this", "reduce the range",
		"reduce your", "narrow", "smaller range", "max block", "exceeds limit", "exceed limit", "exceed maximum",
		"exceeds maximum", "too large", "too big", "larger than", "larger range",
		"at most", "up to a", "range of blocks", "number of blocks", "blocks at a time", "logs per", "exceeded block",
		"entity too large", "max is", "spans more than", "interval", "gap between",
	}
	slowWords = []string{"timed out", "timeout", "deadline exceeded", "took too long", "execution aborted",
		"canceled due to", "context canceled", "time limit", "expired"}
)

func says(text string, words []string) bool {
	for _, w := range words {
		if strings.Contains(text, w) {
			return true
		}
	}

	return false
}

// Classify says what an error means.
func Classify(err error) Kind {
	if err == nil {
		return OK
	}

	if e, is := errors.AsType[*Error](err); is {
		return e.kind()
	}

	if e, is := errors.AsType[*Page](err); is {
		return e.kind()
	}

	var timeout net.Error
	switch {
	case errors.Is(err, ErrBehind):
		return Behind
	case errors.Is(err, ErrUnanswered):
		return BatchRefused
	case errors.Is(err, ErrInvalid):
		return Invalid
	case errors.Is(err, ErrTooLarge):
		return RangeTooLarge
	case errors.Is(err, ErrSlow), errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return TimedOut
	}

	return Failed
}

func (e *Error) kind() Kind {
	text := strings.ToLower(e.Message + " " + e.reason())
	switch e.Code { // codes whose meaning their owners document
	case 429, -32029, -32097:
		return RateLimited
	case 4444: // EIP-4444
		return Pruned
	case -32601:
		return Unsupported
	case -32701: // PublicNode: logs of named contracts only
		return AddressRequired
	}

	if kind := fromWords(text); kind != Failed {
		return kind
	}

	if e.Code == -32005 { // EIP-1474: limit exceeded; about rates it would have said so
		return RangeTooLarge
	}

	return fromStatus(e.Status)
}

// fromWords judges a text in lower case.
func fromWords(text string) Kind {
	switch {
	case says(text, batchWords) && !says(text, []string{"triggered rate"}):
		return BatchRefused
	case says(text, addressWords):
		return TooManyAddresses
	case says(text, needsAddressWords):
		return AddressRequired
	case says(text, rateWords) && !says(text, []string{"block range", "blocks range", "response size"}):
		return RateLimited
	case says(text, behindWords):
		return Behind
	case says(text, prunedWords) && !says(text, []string{"larger range", "block range"}):
		return Pruned
	case says(text, []string{"paid plan", "paid tier only"}) && !says(text, []string{"range", "block", "timeout"}):
		return Unsupported
	case says(text, rangeWords):
		return RangeTooLarge
	case says(text, slowWords):
		return TimedOut
	case says(text, unsupportedWords):
		return Unsupported
	}

	return Failed
}

func (e *Page) kind() Kind {
	kind := fromStatus(e.Status)
	if kind != Failed {
		return kind
	}

	switch words := fromWords(strings.ToLower(e.Text)); {
	case words == RateLimited || words == BatchRefused || words == TimedOut || words == RangeTooLarge && e.Status != 0:
		return words
	case e.Retry > 0:
		return RateLimited // 503 with Retry-After
	case e.Status == 0:
		return Invalid
	}

	return Failed
}

func fromStatus(status int) Kind {
	switch status {
	case http.StatusTooManyRequests, http.StatusPaymentRequired:
		return RateLimited
	case http.StatusRequestEntityTooLarge:
		return RangeTooLarge
	case http.StatusRequestTimeout, http.StatusGatewayTimeout, 522, 524: // Cloudflare's: the origin is slow
		return TimedOut
	case http.StatusMethodNotAllowed, http.StatusUnauthorized:
		return Unsupported
	}

	return Failed
}

// RetryIn is how long the node asked to wait; zero: it did not say.
func RetryIn(err error) time.Duration {
	if e, is := errors.AsType[*Error](err); is {
		return e.Retry
	}

	if e, is := errors.AsType[*Page](err); is {
		return e.Retry
	}

	return 0
}

// Shrinks says whether a refusal of one eth_getLogs is met by asking for fewer blocks. Everything
// is that is not known as something else: a provider's new wording costs time, never progress.
func Shrinks(kind Kind) bool {
	switch kind {
	case RangeTooLarge, TimedOut, Failed:
		return true
	}

	return false
}

// Vague says whether a refusal does not say what it is for.
func Vague(err error) bool {
	if e, is := errors.AsType[*Error](err); is && e.Code == -32005 {
		return fromWords(strings.ToLower(e.Message+" "+e.reason())) == Failed
	}

	return Classify(err) == Failed || errors.Is(err, ErrGarbled)
}

// Overloaded says whether a node, or what is in front of it, says that it has too much to do, and no
// more: a bare 503. It may mean the rate as well as what was asked for.
func Overloaded(err error) bool {
	page, is := errors.AsType[*Page](err)
	return is && page.Status == http.StatusServiceUnavailable && page.kind() == Failed
}

var (
	// A count of blocks in a refusal: "up to a 10 block range", "ranges over 10000 blocks", "Max
	// range: 800", "limited to a 10,000 range".
	limitBefore = regexp.MustCompile(`([0-9][0-9,_]*)(k?)[ -]*(?:blocks?|range|rounds)\b`)
	limitAfter  = regexp.MustCompile(`(?:blocks?|range|rounds)[^0-9\[\]]{0,40}?([0-9][0-9,_]*)(k?)\b`)
	// A range that would work: Alchemy's "[0xc5dc00, 0xc614a7]".
	limitPair = regexp.MustCompile(`\[ ?0x([0-9a-f]+), ?0x([0-9a-f]+) ?\]`)
)

// SuggestedRange is how many blocks a refusal says would do, where it says so; zero: it does not.
// It is a hint: a wrong one costs time.
func SuggestedRange(err error) uint64 {
	text := ""
	if e, is := errors.AsType[*Error](err); is {
		text = strings.ToLower(e.Message + " " + e.reason())
	}

	if m := limitPair.FindStringSubmatch(text); m != nil {
		from, errFrom := strconv.ParseUint(m[1], 16, 64)
		to, errTo := strconv.ParseUint(m[2], 16, 64)
		if errFrom == nil && errTo == nil && to >= from && to-from < maxNumber {
			return to - from + 1
		}
	}

	for _, pattern := range []*regexp.Regexp{limitBefore, limitAfter} {
		for _, m := range pattern.FindAllStringSubmatch(text, -1) {
			n, err := strconv.ParseUint(strings.NewReplacer(",", "", "_", "").Replace(m[1]), 10, 40)
			if err != nil || n == 0 {
				continue
			}

			if m[2] == "k" {
				n *= 1000
			}

			return n
		}
	}

	return 0
}
