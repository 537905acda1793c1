package faults

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// TCP passes connections on to a server, until told otherwise. Its methods may be called concurrently.
type TCP struct {
	addr   string
	mu     sync.Mutex
	proxy  *toxiproxy.Proxy
	faults map[string]int // how often each was injected
	toxics int
	cuts   int
}

// NewTCP listens on a free port of 127.0.0.1 for a server at an address host:port.
func NewTCP(upstream string) (*TCP, error) {
	quiet := zerolog.Nop()
	p := toxiproxy.NewProxy(toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), quiet), "tcp", "127.0.0.1:0", upstream)
	if err := p.Start(); err != nil {
		return nil, fmt.Errorf("listen for %s: %w", upstream, err)
	}
	return &TCP{addr: p.Listen, proxy: p, faults: map[string]int{}}, nil
}

// Addr is where it listens.
func (t *TCP) Addr() string { return t.addr }

// ProxyURL returns a proxy for the host of a URL, and the URL with the proxy in its place.
func ProxyURL(raw string) (*TCP, string, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, "", fmt.Errorf("parse the URL to proxy: %w", err)
	}
	t, err := NewTCP(u.Host)
	if err != nil {
		return nil, "", err
	}
	u.Host = t.Addr()
	return t, u.String(), nil
}

// Cut ends all connections and refuses new ones, until all cuts are undone.
func (t *TCP) Cut() (undo func() error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults["cut"]++
	t.cuts++
	t.proxy.Stop()
	return once(func() error {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.cuts--; t.cuts > 0 {
			return nil
		}
		return t.proxy.Start()
	})
}

// Freeze lets no byte through, in either direction, as a network does that has lost its route. Undone, the connections end: what was lost
// on the way is lost.
func (t *TCP) Freeze() (undo func() error, err error) {
	return t.toxic("freeze", "timeout", `{"timeout":0}`)
}

// Slow delays what comes from the server.
func (t *TCP) Slow(by time.Duration) (undo func() error, err error) {
	return t.toxic("slow", "latency", fmt.Sprintf(`{"latency":%d}`, by.Milliseconds()))
}

// Injected is how often a fault (cut, freeze, slow) was injected.
func (t *TCP) Injected(fault string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.faults[fault]
}

func (t *TCP) toxic(fault, kind, attributes string) (func() error, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults[fault]++
	t.toxics++
	var names []string
	for _, stream := range []string{"upstream", "downstream"} {
		if kind == "latency" && stream == "upstream" {
			continue
		}
		name := fmt.Sprintf("%s-%s-%d", fault, stream, t.toxics)
		if _, err := t.proxy.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(`{"name":%q,"type":%q,"stream":%q,"attributes":%s}`, name, kind, stream, attributes))); err != nil {
			return nil, fmt.Errorf("%s the connections: %w", fault, err)
		}
		names = append(names, name)
	}
	return once(func() error {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, name := range names {
			if err := t.proxy.Toxics.RemoveToxic(context.Background(), name); err != nil {
				return fmt.Errorf("end %s: %w", name, err)
			}
		}
		return nil
	}), nil
}

func once(f func() error) func() error { return sync.OnceValue(f) }

// Close ends the proxy and its connections.
func (t *TCP) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.proxy.Stop()
	return nil
}
