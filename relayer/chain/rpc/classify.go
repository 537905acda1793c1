package rpc

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
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

// What nodes and providers say, in lower case; a*b is a somewhere before b. The table in
// classify_test.go has each text in full, with its source, and tests that each word is needed. The
// first kind that matches wins, in the order of fromWords. A wrong RangeTooLarge costs time; a
// wrong kind of the others may cost progress, so their words are narrower.
var (
	batchWords        = []string{"batch"}
	addressWords      = []string{"addresses", "filters*limit", "body too large"}
	needsAddressWords = []string{"specify*address"}
	rateWords         = []string{
		"rate limit", "rate exceeded", "call limit", "usage limit", "rps limit", "cu limit", "/sec", "per second",
		"throttl", "too many request", "too busy", "capacity", "quota", "connections limited",
		"concurren", "queued",
	}
	behindWords = []string{
		"unknown block", "head block", "block *not found", "header*not found", "be found", "not find block", "exist yet",
		"block *not exist", "block *not yet", "block *out of range", "block range params", "ahead of current", "after last",
		"after latest", "exceeds latest", "future", "unfinalized",
	}
	prunedWords = []string{
		"prun", "missing trie node", "historical state", "before earliest", "data before", "older than", "lookback",
		"receipt not available",
	}
	paidWords  = []string{"paid plan"}
	rangeWords = []string{"range", "too large", "too many", "more than", "exceed", "max", "size", "at most"}
	slowWords  = []string{"timed out", "timeout", "deadline", "cancel"}
	// An old block, where no range is spoken of.
	archiveWords     = []string{"archive"}
	unsupportedWords = []string{"method not", "unauthorized", "api key"}
)

// says looks for any of the words in a text.
func says(text string, words []string) bool {
	return slices.ContainsFunc(words, func(word string) bool {
		before, after, _ := strings.Cut(word, "*")
		_, rest, found := strings.Cut(text, before)

		return found && strings.Contains(rest, after)
	})
}

// Classify says what an error means.
func Classify(err error) Kind {
	if err == nil {
		return OK
	}

	if errors.Is(err, ErrRate) {
		return RateLimited
	}

	if said, is := errors.AsType[words](err); is {
		return said.kind()
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
	case strings.Contains(err.Error(), "ENHANCE_YOUR_CALM"): // HTTP/2's code for a limit of the rate
		return RateLimited
	}

	return Failed
}

func (e *Error) kind() Kind {
	text := strings.ToLower(e.Message + " " + e.reason())
	switch e.Code { // codes whose meaning their owners document
	case 402, 429, -32029, -32097:
		return RateLimited
	case 4444: // EIP-4444
		return Pruned
	case -32601:
		return Unsupported
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
	case says(text, batchWords) && !says(text, []string{"rate limit"}):
		return BatchRefused
	case says(text, addressWords):
		return TooManyAddresses
	case says(text, needsAddressWords):
		return AddressRequired
	case says(text, rateWords):
		return RateLimited
	case says(text, behindWords) && !says(text, unsupportedWords):
		return Behind
	case says(text, prunedWords):
		return Pruned
	case says(text, paidWords) && !says(text, []string{"range", "block", "timeout"}):
		return Unsupported
	case says(text, slowWords) && !says(text, []string{"range"}):
		return TimedOut
	case says(text, rangeWords):
		return RangeTooLarge
	case says(text, archiveWords):
		return Pruned
	case says(text, unsupportedWords):
		return Unsupported
	}

	return Failed
}

// kind of a page: of words about what was asked for only those count that come with a status which
// says that the request was at fault.
func (e *Page) kind() Kind {
	if kind := fromStatus(e.Status); kind != Failed {
		return kind
	}

	switch words := fromWords(strings.ToLower(e.Text)); {
	case words == RateLimited || words == BatchRefused || words == TimedOut:
		return words
	case e.Status/100 == 4 && words != Behind:
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
	if said, is := errors.AsType[words](err); is {
		return *said.retry()
	}

	return 0
}

// Shrinks reports whether a refusal of one eth_getLogs is met by asking for fewer blocks. Everything
// is that is not known as something else: a provider's new wording costs time, never progress.
func Shrinks(kind Kind) bool {
	switch kind {
	case RangeTooLarge, TimedOut, Failed:
		return true
	}

	return false
}

// Vague reports whether a refusal does not say what it is for.
func Vague(err error) bool {
	if errors.Is(err, ErrRate) {
		return false // it has been found out
	}

	if e, is := errors.AsType[*Error](err); is && e.Code == -32005 {
		text := strings.ToLower(e.Message + " " + e.reason())
		return fromWords(strings.Replace(text, "limit exceeded", "", 1)) == Failed // EIP-1474's own words for any limit
	}

	return Classify(err) == Failed || errors.Is(err, ErrGarbled)
}
