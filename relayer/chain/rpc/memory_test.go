package rpc_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// answering starts a server that gives one answer to everything, in pieces, and returns a client of it.
func answering(t *testing.T, head string, piece []byte, pieces int, tail string) *rpc.HTTP {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, head)
		for range pieces {
			_, _ = w.Write(piece)
		}

		_, _ = io.WriteString(w, tail)
	}))
	client := rpc.NewHTTP(server.URL, nil)
	t.Cleanup(func() {
		client.Close()
		server.Close()
	})

	return client
}

// exchange asks for logs and their header, and returns what the answer allocated, in bytes, and the error.
func exchange(t *testing.T, client rpc.Client, limit int64) (allocated uint64, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	calls := []*rpc.Call{{Method: rpc.GetLogs, Params: "[{}]"}, rpc.ByNumber(1)}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = client.Exchange(ctx, calls, limit, nil)
	runtime.ReadMemStats(&after)

	return after.TotalAlloc - before.TotalAlloc, cmp.Or(err, calls[0].Err)
}

// An answer to two requests has two responses. One with millions of them, of three bytes each, takes
// no more memory than its own bytes.
func TestAnswerToMoreThanWasAsked(t *testing.T) {
	const size = 8 << 20
	piece := bytes.Repeat([]byte("{},"), 1<<10)
	client := answering(t, "[", piece, size/len(piece), "{}]")
	allocated, err := exchange(t, client, 2*size)
	require.ErrorIs(t, err, rpc.ErrInvalid)
	require.Lessf(t, allocated, uint64(5*size), "for an answer of %d MB", size>>20)
}

// Logs of three or five bytes each are none, and cost no memory beyond their answer's either.
func TestLogsThatAreNone(t *testing.T) {
	const size = 8 << 20
	for name, text := range map[string]string{"objects": "{},", "nulls": "null,", "numbers": "1,"} {
		t.Run(name, func(t *testing.T) {
			piece := bytes.Repeat([]byte(text), 1<<10)
			last := text[:len(text)-1] + `]},{"id":2,"result":null}]`
			client := answering(t, `[{"id":1,"result":[`, piece, size/len(piece), last)
			allocated, err := exchange(t, client, 2*size)
			require.Error(t, err)
			require.Lessf(t, allocated, uint64(5*size), "for an answer of %d MB", size>>20)
		})
	}
}

// A node's words are kept as an endpoint's last error for hours, so no more of them is kept than is shown.
func TestLongWordsAreNotKept(t *testing.T) {
	const size = 8 << 20
	words := bytes.Repeat([]byte("no"), 1<<19)
	for name, text := range map[string][2]string{
		"message": {`{"id":1,"error":{"code":-32000,"message":"`, `"}}`},
		"data":    {`{"id":1,"error":{"code":-32000,"message":"no","data":"`, `"}}`},
		"list":    {`{"id":1,"error":{"code":-32000,"message":"no","data":["`, `"]}}`},
		"page":    {"<html>", "</html>"},
	} {
		t.Run(name, func(t *testing.T) {
			client := answering(t, text[0], words, size/len(words), text[1])
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			_, err := exchange(t, client, 2*size)
			require.Error(t, err)
			client.Close()
			runtime.GC()
			runtime.GC()
			runtime.ReadMemStats(&after)
			kept := int64(after.HeapAlloc) - int64(before.HeapAlloc)
			require.Lessf(t, kept, int64(size/4), "of an answer of %d MB", size>>20)
			require.Less(t, len(err.Error()), 1000)
			runtime.KeepAlive(err)
		})
	}
}

// A revert's data is kept whole, longer data by its beginning, which is JSON too.
func TestLongDataOfAFault(t *testing.T) {
	for _, size := range []int{60 << 10, 100 << 10} {
		data := `"0x` + string(bytes.Repeat([]byte("ab"), size/2)) + `"`
		client := answering(t, `{"id":1,"error":{"code":3,"message":"execution reverted","data":`+data+"}}", nil, 0, "")
		_, err := exchange(t, client, 1<<20)
		fault, is := errors.AsType[*rpc.Error](err)
		require.True(t, is, "%v", err)
		require.Equal(t, 3, fault.Code)
		require.Equal(t, `node says "execution reverted" (code 3)`, fault.Error(), "a revert's data is not shown")
		var revert hexutil.Bytes
		require.NoError(t, json.Unmarshal(fault.Data, &revert))
		require.Equal(t, size <= 64<<10, string(fault.Data) == data)
		require.LessOrEqual(t, len(fault.Data), 64<<10)
	}
}
