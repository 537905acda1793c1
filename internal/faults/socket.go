package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// socket is one WebSocket connection and the one behind it. Subscriptions go through; everything
// else is answered like a request over HTTP.
func (n *Node) socket(w http.ResponseWriter, r *http.Request) {
	list, _ := n.faults.active()
	if i := find(list, Down, Limited, Failing); i != nil && n.chance(i.Share) {
		i.hits.Add(1)
		status, refused := map[Mode]int{Limited: http.StatusTooManyRequests, Failing: http.StatusBadGateway}[i.Mode]
		if !refused {
			panic(http.ErrAbortHandler)
		}

		http.Error(w, http.StatusText(status), status)

		return
	}

	behind, resp, err := websocket.DefaultDialer.DialContext(n.base, n.upWS, nil)
	if err != nil {
		panic(http.ErrAbortHandler)
	}

	if resp.Body != nil {
		resp.Body.Close()
	}

	up := websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }}
	front, err := up.Upgrade(w, r, nil)
	if err != nil {
		_ = behind.Close()
		return
	}

	ctx, cancel := context.WithCancel(n.base)
	s := &socket{n: n, front: front, behind: behind, cancel: cancel, ctx: ctx}
	front.SetPingHandler(func(data string) error {
		if s.has(Silent) {
			return nil
		}

		s.mu.Lock()
		defer s.mu.Unlock()

		return front.WriteControl(websocket.PongMessage, []byte(data), time.Now().Add(time.Second))
	})
	n.wg.Go(s.watch)
	n.wg.Go(s.down)
	n.wg.Go(s.up)
}

type socket struct {
	n             *Node
	front, behind *websocket.Conn
	ctx           context.Context
	cancel        context.CancelFunc
	mu            sync.Mutex // writes to the front
	upMu          sync.Mutex // writes to the one behind
}

// has reports whether a fault is in force, and counts that.
func (s *socket) has(modes ...Mode) bool {
	list, _ := s.n.faults.active()
	i := find(list, modes...)
	if i != nil {
		i.hits.Add(1)
	}

	return i != nil
}

// watch ends the connection when the node goes down or closes, and when it has been open for long enough.
func (s *socket) watch() {
	defer func() { _, _ = s.front.Close(), s.behind.Close() }()
	opened := time.Now()
	for {
		list, changed := s.n.faults.active()
		var old <-chan time.Time
		closing := find(list, Closing)
		if closing != nil {
			old = time.After(closing.Delay - time.Since(opened))
		}

		if i := find(list, Down); i != nil && i.Share == 0 {
			i.hits.Add(1)
			s.cancel()
		}

		select {
		case <-s.ctx.Done():
			return
		case <-old:
			closing.hits.Add(1)
			s.cancel()
		case <-changed:
		}
	}
}

func (s *socket) send(b []byte) {
	if s.has(Silent, Deaf) {
		return
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.front.SetWriteDeadline(time.Now().Add(10*time.Second)) != nil ||
		s.front.WriteMessage(websocket.TextMessage, b) != nil {
		s.cancel()
	}
}

// up takes what the client sends.
func (s *socket) up() {
	defer s.cancel()
	var asked sync.WaitGroup
	defer asked.Wait()
	defer s.cancel()
	for {
		_, body, err := s.front.ReadMessage()
		if err != nil {
			return
		}

		if s.has(Silent, Deaf) {
			continue
		}

		if strings.Contains(string(body), `"eth_subscribe"`) || strings.Contains(string(body), `"eth_unsubscribe"`) {
			s.upMu.Lock()
			err := s.behind.WriteMessage(websocket.TextMessage, body)
			s.upMu.Unlock()
			if err != nil {
				return
			}

			continue
		}

		asked.Go(func() {
			a := s.n.answer(s.ctx, body)
			switch {
			case s.ctx.Err() != nil:
			case a.drop:
				s.cancel()
			case a.status == http.StatusTooManyRequests:
				s.send(each(body, refusal))
			case a.status != http.StatusOK:
				s.send(each(body, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32603,"message":"internal error"}}`))
			default:
				s.send(a.body)
			}
		})
	}
}

// each answers every request of a message with the same.
func each(body []byte, format string) []byte {
	list, single, err := parse[request](body)
	if err != nil {
		return body
	}

	var parts []string
	for _, r := range list {
		parts = append(parts, fmt.Sprintf(format, r.ID))
	}

	if single {
		return []byte(parts[0])
	}

	return []byte("[" + strings.Join(parts, ",") + "]")
}

// down takes what comes from the node behind: answers to subscriptions, and notifications.
func (s *socket) down() {
	defer s.cancel()
	for {
		_, body, err := s.behind.ReadMessage()
		if err != nil {
			return
		}

		var note notification
		if json.Unmarshal(body, &note) != nil || note.Method != "eth_subscription" {
			s.send(body)
			continue
		}

		if note.Params.Result = s.announced(note.Params.Result); note.Params.Result != nil {
			body, _ = json.Marshal(note) // it was read from JSON
			s.send(body)
		}
	}
}

// notification is what a subscription sends: for newHeads, a header.
type notification struct {
	JSONRPC string `json:"jsonrpc"`
	Method  string `json:"method"`
	Params  struct {
		Subscription json.RawMessage `json:"subscription"`
		Result       json.RawMessage `json:"result"`
	} `json:"params"`
}

// announced is what the faults make of what a subscription tells: a head passes through the lies about headers, and is
// an older one where the node is behind; nil: nothing comes.
func (s *socket) announced(head json.RawMessage) json.RawMessage {
	list, _ := s.n.faults.active()
	if i := find(list, Mute); i != nil {
		i.hits.Add(1)
		return nil
	}

	v, err := &view{Node: s.n, ctx: s.ctx, list: list}, error(nil)
	number, isHead := blockNumber(head)
	if i := find(list, Behind, Split); isHead && i != nil && s.n.chance(i.Share) {
		if number <= i.N {
			return nil
		}

		i.hits.Add(1)
		head, err = s.n.call(s.ctx, "eth_getBlockByNumber", hex(number-i.N), "false")
	}

	if i := find(list, Own); err == nil && i != nil {
		a, answered, failed := v.ofTail(i, &request{Method: "eth_getBlockByNumber",
			Params: []json.RawMessage{[]byte(`"latest"`), []byte("false")}})
		if err = failed; answered {
			head = a.Result
		}
	}

	if err == nil {
		head, err = v.deceive(request{Method: "eth_getBlockByHash"}, head)
	}

	if err != nil || string(head) == "null" {
		return nil
	}

	return head
}
