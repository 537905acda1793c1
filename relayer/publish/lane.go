package publish

import (
	"container/heap"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/fusion-prime/escrow-relayer/relayer/outbox"
)

// stage is where a lane stands.
type stage int8

const (
	idle    stage = iota // nothing is under way: lanes.proceed decides what comes next
	ready                // rows of it are in memory, and it waits for its turn to send them
	sending              // a request of it is under way; rows may wait behind that
	blocked              // its last request failed, and it waits for its delay to end
	wanted               // rows of it are to be read from the outbox, and it waits for the reader
	reading              // the reader is at it
	gone                 // forgotten: what still refers to it passes it by
)

var stageNames = [...]string{"idle", "ready", "sending", "blocked", "wanted", "reading", "gone"}

func (s stage) String() string { return stageNames[s] }

// transitions are the stages that may follow each. Whatever a lane does, it may be forgotten: its
// slot is given away.
var transitions = [...][]stage{
	idle:    {ready, wanted, gone}, // rows are in memory; rows were left in the outbox; neither
	ready:   {sending, gone},       // its turn
	sending: {idle, blocked, gone}, // acknowledged; failed
	blocked: {wanted, gone},        // the delay is over
	wanted:  {reading, gone},       // the reader's turn
	reading: {idle, wanted, gone},  // the rows came; the reading failed, or was of no use any more
	gone:    {},
}

// lane is an ordering key on a topic with something to do: a failure on one topic does not stop the
// same key on another. Its rows are sent in the order of their seq:
//
//   - queue is in that order, and empty unless the lane is ready or sending;
//   - left is the lowest seq of rows that are in the outbox only, and not in the reader's hands; 0:
//     there are none. All rows in queue are before it; so while there are such rows, or the reader
//     is at the lane, or its last request failed, nothing is queued but by the reader: see stuck;
//   - request is set exactly while it is sending;
//   - failures, code and retryAt are of the requests that have failed since one succeeded.
//
// It belongs to the goroutine of the loop.
type lane struct {
	id      outbox.Lane
	stage   stage
	queue   []row
	left    int64
	request *request

	failures int        // in a row
	code     codes.Code // of the last
	retryAt  time.Time
	retryPos int // in the heap of those that are blocked; -1: not there
}

// row is an outbox row in memory.
type row struct {
	outbox.Pending
	doubtful bool // somebody had it to send before, and perhaps did
}

// size is about what a row takes in memory, and twice in a request: arguments stand in the body twice.
func (r *row) size() int { return 1024 + 2*len(r.Event.Args) }

// request is a request under way: rows of one lane.
type request struct {
	lane    *lane
	rows    []row
	started time.Time
	cancel  context.CancelFunc
	err     error
}

// want is what to read of one lane: so many rows at most, from a seq on.
type want struct {
	lane  *lane
	from  int64
	limit int
}

// become changes the stage. One that may not follow is a bug that could turn the order of messages
// round: the process ends, and the next one reads from the outbox what there is.
func (n *lane) become(s stage) {
	if !slices.Contains(transitions[n.stage], s) {
		panic(fmt.Sprintf("publish: lane %+v is %s and was to become %s", n.id, n.stage, s))
	}

	n.stage = s
}

// stuck says whether rows that come now have to stay in the outbox, since earlier ones are there.
func (n *lane) stuck() bool {
	return n.failures > 0 || n.left > 0 || n.stage == wanted || n.stage == reading
}

// leave notes that rows from a seq on are in the outbox only.
func (n *lane) leave(seq int64) {
	if n.left == 0 || seq < n.left {
		n.left = seq
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

// retries is a heap of the lanes that are blocked, the one that is tried next first.
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
