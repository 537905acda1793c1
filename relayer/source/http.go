package source

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

// maxResponse bounds an answer in memory: a range of 10,000 logs of 1 kB has 10 MB.
const maxResponse = 128 << 20

// httpTransport sends batches by POST. Connections are kept and shared.
type httpTransport struct {
	url    string
	client *http.Client
	base   *http.Transport
	ids    atomic.Uint64
}

func newHTTP(url string) *httpTransport {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxIdleConnsPerHost = 16
	return &httpTransport{url: url, base: base, client: &http.Client{
		Transport: base,
		// A redirect would carry a batch, and maybe a key, to a place that nobody configured.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (t *httpTransport) close() { t.base.CloseIdleConnections() }

func (t *httpTransport) exchange(ctx context.Context, calls []*call) (sent, received int, err error) {
	first := t.ids.Add(uint64(len(calls))) - uint64(len(calls)) + 1
	body := encode(calls, first)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url, bytes.NewReader(body))
	if err != nil {
		return 0, 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := t.client.Do(req)
	if err != nil {
		return len(body), 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	var buf bytes.Buffer
	if resp.ContentLength > 0 && resp.ContentLength <= maxResponse {
		buf.Grow(int(resp.ContentLength) + bytes.MinRead)
	}
	n, err := buf.ReadFrom(io.LimitReader(resp.Body, maxResponse+1))
	if err != nil {
		return len(body), int(n), err
	}
	if n > maxResponse {
		return len(body), int(n), errTooMuch
	}
	if resp.StatusCode != http.StatusOK {
		// Some providers send a JSON-RPC error under another status; it says more than the status does.
		if list, _, err := splitResponses(buf.Bytes()); err == nil && len(list) == 1 && list[0].fault != nil && resp.StatusCode != http.StatusTooManyRequests {
			return len(body), int(n), parseFault(list[0].fault)
		}
		return len(body), int(n), &statusError{status: resp.StatusCode, retry: retryAfter(resp.Header.Get("Retry-After"), time.Now())}
	}
	return len(body), int(n), deliver(buf.Bytes(), calls, first)
}

// deliver puts the answers of a batch where they belong.
func deliver(b []byte, calls []*call, first uint64) error {
	list, single, err := splitResponses(b)
	if err != nil {
		return fmt.Errorf("%w: %w", errGarbled, err)
	}
	if single && list[0].fault != nil && (len(calls) > 1 || !list[0].hasID) {
		return parseFault(list[0].fault) // of the batch as a whole
	}
	answered := make([]bool, len(calls))
	for i := range list {
		r := &list[i]
		at := r.id - first
		if !r.hasID || at >= uint64(len(calls)) || answered[at] {
			return fmt.Errorf("%w: an answer to nothing that was asked", errInvalid)
		}
		answered[at] = true
		calls[at].answer(r)
	}
	for i, c := range calls {
		if !answered[i] {
			return fmt.Errorf("%w: no answer to %s", errInvalid, c.method)
		}
	}
	return nil
}

// retryAfter reads the header: seconds, or a date.
func retryAfter(v string, now time.Time) time.Duration {
	const most = 10 * time.Minute // more would be a mistake or an attack
	if v == "" {
		return 0
	}
	d := time.Duration(0)
	if seconds, err := strconv.ParseFloat(v, 64); err == nil {
		d = time.Duration(min(max(seconds, 0), most.Seconds()) * float64(time.Second))
	} else if at, err := http.ParseTime(v); err == nil {
		d = at.Sub(now)
	}
	return min(max(d, 0), most)
}
