package publish

import (
	"container/heap"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/fusion-prime/escrow-relayer/relayer/message"
	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// stage is the state of a lane.
type stage int8

const (
	idle    stage = iota // between steps: lanes.proceed decides what comes next
	ready                // rows of it are in memory, and it waits for its turn to send them
	sending              // a request of it is in flight; rows may wait behind it
	blocked              // its last request failed, and it waits for its delay to end
	wanted               // its rows must be read from the outbox, and it waits for the reader
	reading              // the reader is reading it
	gone                 // forgotten: remaining references skip it
)

var stageNames = [...]string{"idle", "ready", "sending", "blocked", "wanted", "reading", "gone"}

func (s stage) String() string { return stageNames[s] }

// transitions are the stages that may follow each. A lane may be forgotten in any stage: its slot
// is yielded.
var transitions = [...][]stage{
	idle:    {ready, wanted, gone}, // rows are in memory; rows were left in the outbox; neither
	ready:   {sending, gone},       // its turn
	sending: {idle, blocked, gone}, // acknowledged; failed
	blocked: {wanted, gone},        // the delay is over
	wanted:  {reading, gone},       // the reader's turn
	reading: {idle, wanted, gone},  // the rows came; the reading failed or is void
	gone:    {},
}

// lane is an ordering key on a topic with rows to send: a failure on one topic leaves the same key
// on another topic unaffected. Its rows are sent in the order of their seq:
//
//   - queue is in that order, and empty unless the lane is ready or sending;
//   - left is the lowest seq of rows that are in the outbox only and outside the reader's current
//     reading; 0: there are none. All rows in queue precede it; so while there are such rows, or the
//     lane is being read, or its last request failed, only the reader queues rows: see stuck;
//   - request is set exactly while it is sending;
//   - failures, code and retryAt are of the requests that have failed since the last success.
//
// It belongs to the goroutine of the loop.
type lane struct {
	id      outbox.Lane
	stage   stage
	queue   []row
	left    int64
	request *request

	failures int        // consecutive
	code     codes.Code // of the last
	retryAt  time.Time
	retryPos int // in the heap of blocked lanes; -1: outside
}

// row is an outbox row in memory.
type row struct {
	outbox.Pending
	doubtful bool // an earlier owner may have published it
}

// size is the approximate size of a row in a request: the body has the arguments twice.
func (r *row) size() int {
	if r.Answer != nil {
		return 1024 + len(r.Answer.Body)
	}

	if len(r.Event.Args) > message.MaxArgs {
		return 1024
	}

	return 1024 + 2*len(r.Event.Args)
}

// request is a request in flight: rows of one lane.
type request struct {
	lane    *lane
	rows    []row
	started time.Time
	cancel  context.CancelFunc
	err     error
}

// want is what to read of one lane: at most limit rows, from a seq on.
type want struct {
	lane  *lane
	from  int64
	limit int
}

// become changes the stage. A forbidden transition is a bug that could break the order of messages:
// the process ends, and the next one starts from the outbox.
func (n *lane) become(s stage) {
	if !slices.Contains(transitions[n.stage], s) {
		panic(fmt.Sprintf("publish: lane %+v is %s and was to become %s", n.id, n.stage, s))
	}

	n.stage = s
}

// stuck reports whether new rows must stay in the outbox, behind earlier ones.
func (n *lane) stuck() bool {
	return n.failures > 0 || n.left > 0 || n.stage == wanted || n.stage == reading
}

// leave records that rows from a seq on are in the outbox only.
func (n *lane) leave(seq int64) {
	if n.left == 0 || seq < n.left {
		n.left = seq
	}
}

// batch takes rows from the queue for a request: at least one, and as many as the limits allow.
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

// retries is a heap of the blocked lanes, the next one to retry first.
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
