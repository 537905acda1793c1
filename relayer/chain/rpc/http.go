package rpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// An HTTP/2 connection on which nothing came for so long is asked whether it lives, and ended when
	// it does not answer: else a connection that swallows packets is used for ever, since all requests
	// share it.
	h2Silence, h2Answer = 5 * time.Second, 3 * time.Second
	// headerLimit bounds an answer's HTTP headers, in bytes.
	headerLimit = 64 << 10
	// maxRetry bounds what a node may ask to wait: more would be a mistake or an attack.
	maxRetry = 10 * time.Minute
	// idleTimeout is how long an unused connection is kept. Balancers have been seen to forget
	// one after 60 s without a word, and to swallow what comes over it then.
	idleTimeout = 30 * time.Second
)

// HTTP sends batches by POST. Connections are kept and shared.
type HTTP struct {
	url    string
	client *http.Client
	base   *http.Transport
	ids    atomic.Uint64
}

// NewHTTP returns a client of an http or https URL and connects to nothing. dial may be nil.
func NewHTTP(url string, dial Dial) *HTTP {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxIdleConnsPerHost = 16
	base.IdleConnTimeout = idleTimeout
	base.MaxResponseHeaderBytes = headerLimit
	base.DialContext = orNetwork(dial)
	base.HTTP2 = &http.HTTP2Config{SendPingTimeout: h2Silence, PingTimeout: h2Answer}

	return &HTTP{url: url, base: base, client: &http.Client{
		Transport: base,
		// A redirect would carry a batch, and maybe a key, to a place outside the configuration.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close closes the unused connections.
func (t *HTTP) Close() { t.base.CloseIdleConnections() }

// Exchange implements Client.
func (t *HTTP) Exchange(ctx context.Context, calls []*Call, limit int64, arrived func()) (Traffic, error) {
	first := t.ids.Add(uint64(len(calls))) - uint64(len(calls)) + 1
	body := encode(calls, first)
	traffic := Traffic{Sent: len(body)}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url, bytes.NewReader(body))
	if err != nil {
		return Traffic{}, err
	}

	req.Header.Set("Content-Type", "application/json")
	resp, err := t.client.Do(req)
	if err != nil {
		t.Close() // the idle connections may have died with its own, and a second try must not meet one
		return traffic, err
	}

	defer func() { _ = resp.Body.Close() }()
	retry := retryAfter(resp.Header.Get("Retry-After"), time.Now())
	m := newMessage(resp.Body, limit)
	m.arrived = arrived
	switch {
	case resp.ContentLength > limit:
		return traffic, fmt.Errorf("%w: %d bytes", ErrTooLarge, resp.ContentLength)
	case resp.StatusCode != http.StatusOK:
		err = m.refusal(resp.StatusCode)
		if to, none := resp.Location(); none == nil { // its path may hold a key
			err = &Page{Status: resp.StatusCode, Text: "it sends to " + short(to.Scheme+"://"+to.Host) +
				", which is not followed: name the place in RPC_URLS itself"}
		}
	default:
		err = m.deliver(calls, first)
	}

	traffic.Received = int(m.read)
	if m.broken != nil {
		t.Close()
		return traffic, m.broken
	}

	for _, c := range calls {
		noteRetry(c.Err, retry)
	}

	noteRetry(err, retry)

	return traffic, err
}

// refusal reads an answer under another status than 200. Some providers send a JSON-RPC error under one;
// it says more than the status does.
func (m *message) refusal(status int) error {
	list, _, err := m.responses(maxResponses, func(uint64, bool) *Call { return nil })
	if err == nil && len(list) > 0 && list[0].fault != nil {
		fault := parseFault(list[0].fault)
		if e, is := errors.AsType[*Error](fault); is && e.Message != "" {
			e.Status = status
			return e
		}
	}

	return &Page{Status: status, Text: pageText(m.begin)}
}

func noteRetry(err error, retry time.Duration) {
	if said, is := errors.AsType[words](err); is && *said.retry() == 0 {
		*said.retry() = retry
	}
}

var (
	markup = regexp.MustCompile(`(?s)<(?:script|style)\b.*?</(?:script|style)>|<[^>]*>`)
	spaces = regexp.MustCompile(`\s+`)
)

// maxPage is how much of a page is looked at, in bytes.
const maxPage = 4 << 10

// pageText is the first words of a page, without markup.
func pageText(b []byte) string {
	b = b[:min(len(b), maxPage)]
	text := string(b)
	var j struct { // as many gateways say it
		Message string          `json:"message"`
		Error   json.RawMessage `json:"error"`
		Result  json.RawMessage `json:"result"` // Etherscan: besides "NOTOK"
	}
	if json.Unmarshal(b, &j) == nil {
		text = j.Message + " " + strings.Trim(string(j.Error), `"`) + " " + strings.Trim(string(j.Result), `"`)
	}

	return short(spaces.ReplaceAllString(markup.ReplaceAllString(text, " "), " "))
}

// short is the beginning of what somebody else has written.
func short(text string) string {
	text = strings.ToValidUTF8(strings.TrimSpace(text), "")
	return text[:min(len(text), maxReason)]
}

// retryAfter reads the header: seconds, or a date.
func retryAfter(v string, now time.Time) time.Duration {
	v = strings.TrimSpace(v)
	if v == "" {
		return 0
	}

	d := time.Duration(0)
	if seconds, err := strconv.ParseFloat(v, 64); err == nil {
		d = time.Duration(min(max(seconds, 0), maxRetry.Seconds()) * float64(time.Second))
	} else if at, err := http.ParseTime(v); err == nil {
		d = at.Sub(now)
	}

	return min(max(d, 0), maxRetry)
}
