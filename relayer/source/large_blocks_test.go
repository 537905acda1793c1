package source_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/source"
)

// largeBlocks is a node whose blocks have so many logs of the wanted topic each, as somebody can
// make them with 60 million gas, and full bloom filters.
type largeBlocks struct{ head, logs uint64 }

func (l largeBlocks) header(n uint64) map[string]any {
	return map[string]any{"number": hexutil.Uint64(n), "hash": blockHash(n), "parentHash": blockHash(n - 1),
		"timestamp": hexutil.Uint64(1_700_000_000 + n), "logsBloom": "0x" + strings.Repeat("ff", 256)}
}

func (l largeBlocks) answer(w *bufio.Writer, method string, params []json.RawMessage) {
	var result any
	switch method {
	case "eth_chainId":
		result = "0x1"
	case "eth_getBlockByNumber":
		var tag string
		_ = json.Unmarshal(params[0], &tag)
		n, err := hexutil.DecodeUint64(tag)
		switch {
		case tag == "finalized":
			n = 1
		case err != nil:
			n = l.head
		}

		result = l.header(n)
	case "eth_getLogs":
		var q struct{ BlockHash common.Hash }
		_ = json.Unmarshal(params[0], &q)
		l.writeLogs(w, q.BlockHash)

		return
	}

	text, _ := json.Marshal(result)
	_, _ = w.Write(text)
}

func (l largeBlocks) writeLogs(w *bufio.Writer, hash common.Hash) {
	n := uint64(1)
	for blockHash(n) != hash {
		n++
	}

	_ = w.WriteByte('[')
	for i := range l.logs {
		if i > 0 {
			_ = w.WriteByte(',')
		}

		_, _ = fmt.Fprintf(w, `{"address":"0x%040x","topics":["%s","0x%064x"],"data":"0x","blockNumber":"0x%x",`+
			`"transactionHash":"%s","transactionIndex":"0x1","blockHash":"%s","logIndex":"0x%x","removed":false}`,
			i, wantedTopic, i, n, hash, hash, i)
	}

	_ = w.WriteByte(']')
}

func (l largeBlocks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	type request struct {
		ID     json.RawMessage
		Method string
		Params []json.RawMessage
	}
	body, _ := io.ReadAll(r.Body)
	var list []request
	single := json.Unmarshal(body, &list) != nil
	if single {
		list = make([]request, 1)
		_ = json.Unmarshal(body, &list[0])
	}

	out := bufio.NewWriterSize(w, 64<<10)
	defer func() { _ = out.Flush() }()
	for i, q := range list {
		if !single {
			_ = out.WriteByte("[,"[min(i, 1)])
		}

		_, _ = fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,"result":`, q.ID)
		l.answer(out, q.Method, q.Params)
		_ = out.WriteByte('}')
	}

	if !single {
		_ = out.WriteByte(']')
	}
}

// watchMemory notes how much memory the process has at most, until stop is called, in bytes.
func watchMemory() (stop func() uint64) {
	ctx, cancel := context.WithCancel(context.Background())
	peak := make(chan uint64)
	go func() {
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		var m runtime.MemStats
		for most := uint64(0); ; {
			runtime.ReadMemStats(&m)
			most = max(most, m.Sys-m.HeapReleased)
			select {
			case <-ctx.Done():
				peak <- most
				return
			case <-ticker.C:
			}
		}
	}()

	return func() uint64 { cancel(); return <-peak }
}

// Blocks above finality are read one by one, however large: what is in flight, and what is remembered
// of them for other readers, is bounded in bytes. The container has 512 MiB.
func TestLargeBlocksAtTheHead(t *testing.T) {
	const blocks, logs = 24, 50_000 // 21 MB each
	defer debug.SetGCPercent(debug.SetGCPercent(40))
	server := httptest.NewServer(largeBlocks{head: 100, logs: logs})
	s, err := source.New(source.Config{URLs: []string{server.URL}, ChainID: 1, Finality: source.Latest,
		Timeout: time.Minute})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	defer func() {
		cancel()
		require.NoError(t, <-done)
		server.Close()
	}()
	for changed := s.Changed(); s.View().Head != 100; changed = s.Changed() {
		<-changed
	}

	debug.FreeOSMemory()
	peak := watchMemory()
	read := 0
	for b, err := range s.Read(ctx, 101-blocks, 100, wanted()) {
		require.NoError(t, err)
		read += len(b.Logs)
	}

	most := peak()
	require.Equal(t, blocks*logs, read)
	debug.FreeOSMemory()
	var after runtime.MemStats
	runtime.ReadMemStats(&after)
	t.Logf("peak %d MiB, kept %d MiB", most>>20, after.HeapAlloc>>20)
	require.Less(t, most>>20, uint64(256))
	require.Less(t, after.HeapAlloc>>20, uint64(64))
}
