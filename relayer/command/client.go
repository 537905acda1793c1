package command

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/ethereum/go-ethereum/common"
)

// Client sends commands to a relayer over HTTP. Its methods may be called concurrently.
type Client struct {
	// URL of the relayer, without /commands; with /chains/ID if it is PORT of one that follows several. Where it
	// asks for a token (HTTP_TOKEN_FILE), as the password of any user: https://any:TOKEN@host.
	URL  string
	HTTP *http.Client // nil: http.DefaultClient. Give each request a deadline by its context
}

// RefusedError is a relayer's refusal. Sending the same command again gets the same answer.
type RefusedError struct {
	Status    int       `json:"status"` // of HTTP
	Detail    string    `json:"detail,omitempty"`
	Code      string    `json:"code,omitempty"` // Code…
	CommandID string    `json:"command_id,omitempty"`
	Winner    string    `json:"winner,omitempty"`
	Problems  []Problem `json:"problems,omitempty"`
}

func (e *RefusedError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "the relayer refuses the command (%d %s): %s", e.Status, e.Code, e.Detail)
	if e.Winner != "" {
		b.WriteString(": " + e.Winner)
	}

	for _, p := range e.Problems {
		b.WriteString("; " + p.Field + " " + p.Detail)
	}

	return b.String()
}

// maxAnswer bounds what is read of a relayer's answer.
const maxAnswer = 1 << 20

// Send hands a command over. It returns when the relayer has stored it, or known it. Any error that
// is not a *RefusedError leaves open whether it was stored: send the same command again, which is
// harmless.
func (c *Client) Send(ctx context.Context, s *Signed) (Answer, error) {
	body, err := json.Marshal(s)
	if err != nil {
		return Answer{}, fmt.Errorf("encode command %s: %w", s.ID(), err)
	}

	a, err := c.do(ctx, http.MethodPost, "/commands", body)
	if err != nil {
		return a, fmt.Errorf("send command %s: %w", s.ID(), err)
	}

	if a.CommandID != s.ID().Hex() {
		return a, fmt.Errorf("send command %s: %w: it is about %s", s.ID(), ErrAnswer, a.CommandID)
	}

	return a, nil
}

// Show asks what is known of a command.
func (c *Client) Show(ctx context.Context, id common.Hash) (Answer, error) {
	a, err := c.do(ctx, http.MethodGet, "/commands/"+id.Hex(), nil)
	if err != nil {
		return a, fmt.Errorf("ask for command %s: %w", id, err)
	}

	return a, nil
}

func (c *Client) do(ctx context.Context, method, path string, body []byte) (a Answer, err error) {
	request, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(c.URL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return a, err
	}

	request.Header.Set("Content-Type", "application/json")
	response, err := cmp.Or(c.HTTP, http.DefaultClient).Do(request)
	if err != nil {
		return a, err
	}

	defer func() { _ = response.Body.Close() }() // was read, or is of no use
	content, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return a, err
	}

	if response.StatusCode == http.StatusAccepted || response.StatusCode == http.StatusOK {
		return DecodeAnswer(content)
	}

	refused := &RefusedError{}
	if json.Unmarshal(content, refused) != nil || refused.Status == 0 || response.StatusCode >= 500 ||
		response.StatusCode == http.StatusTooManyRequests {
		return a, fmt.Errorf("HTTP status %d; send it again later", response.StatusCode)
	}

	return a, refused
}
