package lab

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/fusion-prime/escrow-relayer/internal/child"
)

// Process is a relayer.
type Process struct {
	*child.Process
	URL string // of its HTTP server
}

// StartRelayer starts one that listens at a port of this machine, and does not wait for it to be ready.
func StartRelayer(id, bin string, environ []string, port, logFile string) (*Process, error) {
	p, err := child.Start(id, bin, []string{"run"}, append(environ, "PORT="+port), logFile)
	return &Process{p, "http://127.0.0.1:" + port}, err
}

// Ready waits until the process says that it is ready, or has ended.
func (p *Process) Ready(ctx context.Context) error {
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with this call: somebody else may hold the port, and not answer
		select {
		case <-p.Exited():
			cancel()
		case <-running.Done():
		}
	}()
	err := Until(running, 20*time.Millisecond, p.ID+" to be ready", func() bool {
		code, _, err := p.Get(running, "/readyz")
		return err == nil && code == http.StatusOK
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s ended before it was ready, see %s", p.ID, p.LogFile)
	}

	return err
}

// Get asks the relayer for a path.
func (p *Process) Get(ctx context.Context, path string) (code int, said []byte, err error) {
	return p.ask(ctx, http.MethodGet, path, nil)
}

// Post sends the relayer a body.
func (p *Process) Post(ctx context.Context, path string, body []byte) (code int, said []byte, err error) {
	return p.ask(ctx, http.MethodPost, path, body)
}

// client keeps the connections of a benchmark, which asks sixteen things at once.
var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 32}}

func (p *Process) ask(ctx context.Context, method, path string, body []byte) (code int, said []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, method, p.URL+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}

	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	said, err = io.ReadAll(resp.Body)

	return resp.StatusCode, said, err
}
