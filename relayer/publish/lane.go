package publish

import (
	"container/heap"
	"encoding/hex"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// lane is an ordering key with something to do: a failure on one topic does not stop the same key
// on another. The loop owns it.
type lane struct {
	id     outbox.Lane
	since  time.Time // it has had something to do, or its last message was acknowledged
	queue  []row     // in seq order, not handed over yet
	flight *flight   // at most one
	ready  bool      // in the list of those that may send
	gone   bool      // forgotten: whatever still refers to it passes it by

	failures int // in a row
	code     codes.Code
	retryAt  time.Time
	retryPos int // in the heap of those that wait for it; -1: not there

	behind bool  // it has rows from seq `from` on that are not in memory
	from   int64 //
	asked  bool  // waiting for the reader, or being read; then nothing of it is in memory
	missed int64 // lowest seq passed over meanwhile; 0: none
}

// row is an outbox row in memory.
type row struct {
	outbox.Pending
	doubtful bool // somebody had it to send before, and perhaps did
}

// size is about what a row takes in memory, and twice in a request: arguments stand in the body twice.
func (r *row) size() int { return 1024 + 2*len(r.Event.Args) }

// stuck says whether rows that come now have to stay in the outbox, since earlier ones are there.
func (n *lane) stuck() bool { return n.failures > 0 || n.behind || n.asked }

// pass notes that a row stays in the outbox.
func (n *lane) pass(seq int64) {
	if !n.behind || seq < n.from {
		n.from = seq
	}

	n.behind = true
	if n.asked && (n.missed == 0 || seq < n.missed) {
		n.missed = seq
	}
}

// batch takes rows from the queue for a request: one at least, and as many as the limits allow.
func (n *lane) batch(rows, bytes int) []row {
	count, size := 1, n.queue[0].size()
	for count < min(len(n.queue), rows) {
		if size += n.queue[count].size(); size > bytes {
			break
		}

		count++
	}

	batch := n.queue[:count:count]
	if n.queue = n.queue[count:]; len(n.queue) == 0 {
		n.queue = nil
	}

	return batch
}

// key is the ordering key: chain and escrow, or chain and slot.
func (c *Config) key(id outbox.Lane) string {
	b := strconv.AppendInt(make([]byte, 0, 64), c.ChainID, 10)
	b = append(b, ':')
	if c.BySlot {
		return string(strconv.AppendInt(b, int64(id.Slot), 10))
	}

	return string(hex.AppendEncode(append(b, '0', 'x'), id.Escrow[:]))
}

// retries is a heap of the lanes that wait for their next try, the earliest first.
type retries []*lane

func (r retries) Len() int           { return len(r) }
func (r retries) Less(i, j int) bool { return r[i].retryAt.Before(r[j].retryAt) }
func (r retries) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].retryPos, r[j].retryPos = i, j
}

// Push is for package heap.
func (r *retries) Push(x any) {
	n := x.(*lane)
	n.retryPos = len(*r)
	*r = append(*r, n)
}

// Pop is for package heap.
func (r *retries) Pop() any {
	last := len(*r) - 1
	n := (*r)[last]
	(*r)[last] = nil
	*r = (*r)[:last]
	n.retryPos = -1

	return n
}

func (r *retries) remove(n *lane) {
	if n.retryPos >= 0 {
		heap.Remove(r, n.retryPos)
	}
}
