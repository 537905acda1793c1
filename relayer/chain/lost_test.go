package chain

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// lost are ways in which an answer does not arrive.
var lost = map[string]func(w http.ResponseWriter, answer []byte){
	"the connection is closed": func(http.ResponseWriter, []byte) { panic(http.ErrAbortHandler) },
	"nothing under 200":        func(http.ResponseWriter, []byte) {},
	"a page under 502": func(w http.ResponseWriter, _ []byte) {
		w.WriteHeader(http.StatusBadGateway)
		_, _ = io.WriteString(w, "<html><h1>502 Bad Gateway</h1></html>")
	},
	"a length that is too large": func(w http.ResponseWriter, answer []byte) {
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)+100))
		_, _ = w.Write(answer)
	},
	"compressed and cut off": func(w http.ResponseWriter, answer []byte) {
		var b bytes.Buffer
		g := gzip.NewWriter(&b)
		_, _ = g.Write(answer)
		_ = g.Close()
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(b.Bytes()[:b.Len()*2/3])
	},
}

// Behind a URL one machine of three does not work: a third of the answers are lost. That costs time,
// and is taken neither for a limit of the rate nor for one of the range, but where three in a row are
// lost. Of 50 readings half took up to 33 s, and the slowest 12 minutes of the virtual time.
func TestOneMachineOfThreeDoesNotWork(t *testing.T) {
	for name, lose := range lost {
		for _, final := range []uint64{3000, 2700} {
			t.Run(fmt.Sprintf("%s, final %d", name, final), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					const blocks = 3000
					chain := newChain(blocks, 10, 0)
					var p pipes
					n, _ := p.node(t, chain)
					n.finalized = final
					var mu sync.Mutex
					luck := rand.New(rand.NewPCG(1, 0))
					n.http = func(w http.ResponseWriter, r *http.Request) bool {
						b, _ := io.ReadAll(r.Body)
						mu.Lock()
						broken := luck.IntN(3) == 0
						mu.Unlock()
						if answer := n.serve(b, nil); broken {
							lose(w, answer)
						} else {
							_, _ = w.Write(answer)
						}

						return true
					}
					s := start(t, Config{URLs: []string{n.server.URL}, ChainID: 1, Finality: Latest, MaxRange: 100,
						PollInterval: time.Second, Dial: p.dial})
					await(t, s, func(v View) bool { return v.Final == final })
					from := uint64(1)
					if final < blocks {
						from = final + 1
					}

					next := backlog(t, s, chain, from, blocks, 2*time.Hour)
					require.EqualValues(t, blocks+1, next, "%+v", s.Endpoints())
				})
			})
		}
	}
}
