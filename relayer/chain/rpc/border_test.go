package rpc_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// bombs are answers to one request, of which the middle is repeated up to 256 MB, and whether no
// honest node sends them.
var bombs = map[string]struct {
	call             func() *rpc.Call
	head, unit, tail string
	oversized        bool
}{
	"unknown member": {logsCall, `{"id":1,"junk":"`, "A", `","result":[]}`, true},
	"unknown list":   {logsCall, `{"id":1,"junk":[0`, ",0", `],"result":[]}`, true},
	"blanks":         {logsCall, `{"id":1,`, " ", `"result":[]}`, false},
	"number":         {logsCall, `{"id":1,"result":`, "1", `}`, false},
	"list of a log":  {logsCall, `{"id":1,"result":[{"junk":[0`, ",0", `]}]}`, true},
	"data of a log":  {logsCall, `{"id":1,"result":[{"data":"0x`, "00", `"}]}`, false},
	"transactions":   {headerCall, `{"id":1,"result":{"transactions":[0`, ",0", `]}}`, false},
	"extra data":     {headerCall, `{"id":1,"result":{"extraData":"0x`, "00", `"}}`, true},
	"code":           {codeCall, `{"id":1,"result":"0x`, "00", `"}`, true},
	"words":          {codeCall, `{"id":1,"error":{"code":1,"message":"`, "no", `"}}`, false},
	"depth":          {logsCall, `{"id":1,"result":`, "[", ``, false},
}

func logsCall() *rpc.Call   { return &rpc.Call{Method: rpc.GetLogs, Params: "[{}]"} }
func headerCall() *rpc.Call { return rpc.ByNumber(1) }
func codeCall() *rpc.Call   { return &rpc.Call{Method: rpc.GetCode, Params: "[]"} }

// An answer takes memory in proportion to its request, compressed or over WebSocket too.
func TestBombs(t *testing.T) {
	const size, limit = 256 << 20, 32 << 20
	for name, b := range bombs {
		unit := bytes.Repeat([]byte(b.unit), 64<<10/len(b.unit))
		write := func(w io.Writer) {
			_, _ = io.WriteString(w, b.head)
			for range size / len(unit) {
				if _, err := w.Write(unit); err != nil {
					return
				}
			}

			_, _ = io.WriteString(w, b.tail)
		}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if websocket.IsWebSocketUpgrade(r) {
				c, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
				if err != nil {
					return
				}

				defer func() { _ = c.Close() }()
				if _, _, err = c.ReadMessage(); err == nil {
					m, _ := c.NextWriter(websocket.TextMessage)
					write(m)
					_ = m.Close()
					_, _, _ = c.ReadMessage()
				}

				return
			}

			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			write(z)
			_ = z.Close()
		}))
		ws := rpc.NewWS("ws"+strings.TrimPrefix(server.URL, "http"), nil,
			func(context.Context, func(context.Context, *rpc.Call) error) error { return nil })
		for kind, client := range map[string]rpc.Client{"http": rpc.NewHTTP(server.URL, nil), "ws": ws} {
			t.Run(name+" over "+kind, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				call := b.call()
				_, err := client.Exchange(ctx, []*rpc.Call{call}, limit, nil)
				runtime.ReadMemStats(&after)
				if err == nil {
					err = call.Err
				}

				require.Error(t, err)
				require.Equal(t, b.oversized, errorsIsOversized(err), "%v", err)
				require.Less(t, (after.TotalAlloc-before.TotalAlloc)>>20, uint64(48))
			})
			client.Close()
		}

		server.Close()
	}
}

func errorsIsOversized(err error) bool {
	return strings.Contains(fmt.Sprint(err), rpc.ErrOversized.Error())
}

// A number that no column takes is the answer's error, whatever number it is.
func TestNumbersThatNoColumnTakes(t *testing.T) {
	h := func(digit string) string { return `"0x` + strings.Repeat(digit, 64) + `"` }
	log := `{"address":"0x` + strings.Repeat("1", 40) + `","topics":[` + h("2") + `],"data":"0x","blockNumber":"0x1",` +
		`"transactionHash":` + h("3") + `,"transactionIndex":"0x2","blockHash":` + h("4") + `,"logIndex":"0x3",` +
		`"blockTimestamp":"0x5"}`
	header := `{"number":"0x1","hash":` + h("1") + `,"parentHash":` + h("2") + `,"timestamp":"0x5"}`
	for name, c := range map[string]struct{ good, member, value string }{
		"log index":                 {log, `"logIndex":"0x3"`, `"logIndex":"0x7fffffffff"`},
		"log index, negative":       {log, `"logIndex":"0x3"`, `"logIndex":-1`},
		"transaction index":         {log, `"transactionIndex":"0x2"`, `"transactionIndex":"0x80000000"`},
		"block of a log":            {log, `"blockNumber":"0x1"`, `"blockNumber":"0x8000000000000000"`},
		"block of a log, 65 bits":   {log, `"blockNumber":"0x1"`, `"blockNumber":"0x10000000000000000"`},
		"time of a log":             {log, `"blockTimestamp":"0x5"`, `"blockTimestamp":"0x7fffffffffff"`},
		"block number":              {header, `"number":"0x1"`, `"number":"0x8000000000000000"`},
		"block number, a fraction":  {header, `"number":"0x1"`, `"number":1.5`},
		"time of a block":           {header, `"timestamp":"0x5"`, `"timestamp":"0x7fffffffffff"`},
		"time of a block, negative": {header, `"timestamp":"0x5"`, `"timestamp":-5`},
	} {
		t.Run(name, func(t *testing.T) {
			call, open, end := logsCall(), "[", "]"
			if c.good == header {
				call, open, end = headerCall(), "", ""
			}

			for _, text := range []string{c.good, strings.Replace(c.good, c.member, c.value, 1)} {
				answer := `{"id":1,"result":` + open + text + end + `}`
				call.Answer = rpc.Answer{}
				require.NoError(t, rpc.Fill(strings.NewReader(answer), 1<<20, []*rpc.Call{call}, 1))
				err := call.Err
				if c.good == header {
					_, err = call.Header(1)
				}

				if text == c.good {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, rpc.ErrInvalid)
				}
			}
		})
	}
}
