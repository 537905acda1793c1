package publish

import (
	"container/heap"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
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
	moving               // its last request failed, and the events of the log that it has get rows
	gone                 // forgotten: remaining references skip it
)

var stageNames = [...]string{"idle", "ready", "sending", "blocked", "moving", "gone"}

func (s stage) String() string { return stageNames[s] }

// transitions are the stages that may follow each. A lane may be forgotten in any stage: its slot
// is yielded.
var transitions = [...][]stage{
	idle:    {ready, gone},         // messages are in memory, or none are
	ready:   {sending, gone},       // its turn
	sending: {idle, blocked, gone}, // acknowledged; failed
	blocked: {ready, moving, gone}, // the delay is over; it holds up others
	moving:  {gone},                // they have rows
	gone:    {},
}

// lane is an ordering key on a topic with rows to send: a failure on one topic leaves the same key
// on another topic unaffected. Its events of the log are sent in their order, then its rows of the
// outbox in the order of their seq:
//
//   - queue is in that order. Events of the log stay in it until they are acknowledged, have rows, or
//     their slot is yielded. When a request fails, all rows of the outbox but the first leave it;
//   - left is the lowest seq of rows that are in the outbox only; 0: there are none. All rows in
//     queue precede it, and later ones are left, too. The outbox is read again from there once the
//     queue is empty;
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
	since    time.Time  // of the first
	code     codes.Code // of the last
	retryAt  time.Time
	retryPos int // in the heap of blocked lanes; -1: outside
}

// row is a message in memory: an event of the log, or a row of the outbox.
type row struct {
	outbox.Pending
	doubtful bool // it may have been published
}

// logged reports whether it is an event of the log.
func (r *row) logged() bool { return r.ID == outbox.ID{} }

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

// become changes the stage. A forbidden transition is a bug that could break the order of messages:
// the process ends, and the next one starts from the outbox.
func (n *lane) become(s stage) {
	if !slices.Contains(transitions[n.stage], s) {
		panic(fmt.Sprintf("publish: lane %+v is %s and was to become %s", n.id, n.stage, s))
	}

	n.stage = s
}

// escrows are those of its events of the log in memory.
func (n *lane) escrows() map[common.Address]struct{} {
	of := map[common.Address]struct{}{}
	for i := range n.queue {
		if r := &n.queue[i]; r.logged() {
			of[r.Event.Escrow] = struct{}{}
		}
	}

	return of
}

// leave records that rows from a seq on are in the outbox only.
func (n *lane) leave(seq int64) {
	if n.left == 0 || seq < n.left {
		n.left = seq
	}
}

// batch takes rows from the queue for a request: at least one, and as many as the limits allow; one, if the last
// request failed. Events of the log are not mixed with rows of the outbox.
func (n *lane) batch(rows, bytes int) []row {
	if n.failures > 0 {
		rows = 1
	}

	count, size := 1, n.queue[0].size()
	for count < min(len(n.queue), rows) && n.queue[count].logged() == n.queue[0].logged() {
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
