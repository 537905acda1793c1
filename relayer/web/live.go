package web

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"time"
)

const (
	// maxStreams bounds the concurrent viewers of one instance.
	maxStreams = 50
	// streamWrite bounds one write: a client that stops reading is cut off.
	streamWrite = 10 * time.Second
	// streamRetry is a browser's wait before it reconnects, in milliseconds.
	streamRetry = 3000
)

// update is one event of /live.
type update struct {
	Title string            `json:"title"`
	Read  string            `json:"read"` // when the fleet was read
	Parts map[string]string `json:"parts"`
}

// serveLive streams the changed parts of the page, with every sample, until the client or the
// server ends.
func (s *Server) serveLive(w http.ResponseWriter, r *http.Request) {
	end, ok := s.board.watch()
	if !ok {
		w.Header().Set("Retry-After", retryAfter)
		writeProblem(w, problem{Status: http.StatusServiceUnavailable,
			Detail: fmt.Sprintf("%d streams are open already: reload the page now and then instead", maxStreams)})

		return
	}

	defer end()
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // proxies that buffer would hold the events back
	if r.Method == http.MethodHead {
		return
	}

	rc := http.NewResponseController(w)
	// The server's read timeout would end the stream: its deadline also ends the read that notices
	// a client hang up.
	if err := rc.SetReadDeadline(time.Time{}); err != nil {
		return
	}

	sent := map[string]string{}
	for first := true; ; first = false {
		tick := s.board.ticked()
		data, err := s.changes(r.Context(), sent)
		if err != nil {
			s.cfg.Log.ErrorContext(r.Context(), "status page not rendered", slog.String("err", s.cfg.Mask(err.Error())))
			return
		}

		if err := send(w, rc, data, first); err != nil {
			return
		}

		select {
		case <-tick:
			if !s.cfg.Admits(r) { // it was replaced
				return
			}
		case <-r.Context().Done():
			return
		case <-s.stop:
			return
		}
	}
}

// send sends one event; the first one sets a client's wait before it reconnects.
func send(w http.ResponseWriter, rc *http.ResponseController, data []byte, first bool) error {
	if err := rc.SetWriteDeadline(time.Now().Add(streamWrite)); err != nil {
		return err
	}

	retry := ""
	if first {
		retry = fmt.Sprintf("retry: %d\n", streamRetry)
	}

	if _, err := fmt.Fprintf(w, "%sdata: %s\n\n", retry, data); err != nil {
		return err
	}

	return rc.Flush()
}

// changes returns the parts that differ from those sent, and records them as sent.
func (s *Server) changes(ctx context.Context, sent map[string]string) ([]byte, error) {
	all, err := s.parts.get(s.draws, func() (*update, error) { return s.drawParts(ctx) })
	if err != nil {
		return nil, err
	}

	u := update{Title: all.Title, Read: all.Read, Parts: map[string]string{}}
	for name, html := range all.Parts {
		if was, once := sent[name]; !once || was != html { // an empty part must be sent once too
			u.Parts[name], sent[name] = html, html
		}
	}

	return json.Marshal(u)
}

// drawParts renders all parts.
func (s *Server) drawParts(ctx context.Context) (*update, error) {
	v := s.view(ctx)
	u := &update{Title: v.Title, Read: v.Read, Parts: map[string]string{}}
	for _, name := range fragments {
		var err error
		if u.Parts[name], err = s.page.fragment(name, v); err != nil {
			return nil, fmt.Errorf("render %s: %w", name, err)
		}
	}

	return u, nil
}
