// Package outbox is the table of messages that are committed and not yet acknowledged by Pub/Sub:
// its rows, and the statements that read, count, delete and add them.
//
// The owner of a slot is the only writer of its rows, one commit after the other, so the order of seq
// is the order in which they were committed and have to be published. (What others want published
// they request: see package ledger.) A row names its event: the one at its place in events, or the
// one in orphaned_events; it is deleted once its message was acknowledged.
package outbox

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"

	"github.com/fusion-prime/escrow-relayer/relayer/column"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// ID names a row for ever. A server that has forgotten the last commits gives their numbers to other
// rows, whose tokens are others.
type ID struct {
	Seq   int64
	Token int64 // drawn by the commit
}

// Pending is an outbox row with its event.
type Pending struct {
	ID
	Slot  int16
	Kind  int16 // message.Kind
	Event contract.Event
	Trace *trace.SpanContext // of the commit; nil without tracing, and when the row was read from the outbox
}

// Topic says to which of the configured topics a row goes.
type Topic int8

// The topics.
const (
	DefaultTopic Topic = iota
	OtherTopic
	RetractionsTopic
)

// Topics is how many there are.
const Topics = 3

// Lane is an ordering key on a topic. Escrow is zero where the ordering key is the slot.
type Lane struct {
	Topic  Topic
	Slot   int16
	Escrow common.Address
}

// Box is the outbox as the owner of slots sees it: the rows of those slots. It is safe for concurrent use.
type Box struct {
	DB         *pgxpool.Pool
	ChainID    int64
	Owner      string          // instance id
	OtherNames map[string]bool // names of the events that go to OtherTopic
	BySlot     bool            // the ordering key is the slot, not the escrow
}

// LaneOf is the lane that a row belongs to.
func (b *Box) LaneOf(p *Pending) Lane {
	lane := Lane{Topic: DefaultTopic, Slot: p.Slot}
	switch {
	case message.Kind(p.Kind) == message.Retraction:
		lane.Topic = RetractionsTopic
	case b.OtherNames[p.Event.Name]:
		lane.Topic = OtherTopic
	}

	if !b.BySlot {
		lane.Escrow = p.Event.Escrow
	}

	return lane
}

// topicColumn is the Topic of a row.
const topicColumn = `case when o.kind = 1 then 2 when o.event_type = any(@others) then 1 else 0 end`

// mine says whether a row is in one of the slots that the reader knows to be the owner's, and that
// is. One that was taken since is left out: rows of it may come before those that were read. As a
// plain join, or with a plain "in", it is the planner's to turn around, and with the statistics of
// a queue, which are of another hour, it has read the whole outbox once per slot: a minute per
// page. With "any" of a parameter it compares each slot with each.
const mine = `(o.slot in (select slot from slot_ownership where chain_id = @chain and owner = @owner
	and (slot in (select unnest(@mine::smallint[]))) is true)) is true`

// answerWithin is how long a server may take to say that it has ended a statement whose time was over.
const answerWithin = 2 * time.Second

// Sent is a row that was acknowledged, or need not be sent.
type Sent struct {
	ID
	Slot int16
}

// Sent is the row as one that was acknowledged.
func (p *Pending) Sent() Sent { return Sent{p.ID, p.Slot} }

// Delete deletes rows, in one round trip and one transaction.
//
// The server ends the deletion after limit: what it deleted until then comes back, and nothing of
// it holds up the next attempt. A server that does not answer is waited for answerWithin longer.
func (b *Box) Delete(ctx context.Context, rows []Sent, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit+answerWithin)
	defer cancel()
	var batch pgx.Batch
	batch.Queue(`select set_config('statement_timeout', $1, true)`, strconv.FormatInt(limit.Milliseconds(), 10))
	batch.Queue(deleteRows, b.ChainID, column.Of(rows, func(s *Sent) int64 { return s.Seq }),
		column.Of(rows, func(s *Sent) int64 { return s.Token }))
	if err := b.DB.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("delete %d acknowledged rows of the outbox: %w", len(rows), err)
	}

	return nil
}

// deleteRows compares both parts of an ID with what was sent. That a number was given out again and
// has the token of another row that was sent is as unlikely as that two tokens are the same. Tokens are
// compared by a hash: as "any" of a parameter, Postgres compares each row with each token in a generic
// plan.
const deleteRows = `
	delete from outbox where chain_id = $1 and seq = any($2) and (token in (select unnest($3::bigint[]))) is true`

// Doubt raises the doubt of slots, each to a seq: a row of the slot up to there may have been handed to
// Pub/Sub by an owner that does not know how it ended. It is for a metric, relayer_republished_total,
// and nothing is decided by it. An owner that yields its slots calls this method; of slots that are
// taken from an owner that could not, every row is in doubt (package partition).
func (b *Box) Doubt(ctx context.Context, seqs map[int16]int64) error {
	ctx, cancel := context.WithTimeout(ctx, doubtTimeout)
	defer cancel()
	slots, highest := make([]int16, 0, len(seqs)), make([]int64, 0, len(seqs))
	for slot, seq := range seqs {
		slots, highest = append(slots, slot), append(highest, seq)
	}

	if _, err := b.DB.Exec(ctx, raiseDoubt, b.ChainID, slots, highest); err != nil {
		return fmt.Errorf("write down what may have been sent, of %d slots: %w", len(seqs), err)
	}

	return nil
}

// doubtTimeout bounds one attempt to write it down.
const doubtTimeout = 5 * time.Second

const raiseDoubt = `
	update slot_ownership s set doubt_seq = t.seq
	from unnest($2::smallint[], $3::bigint[]) as t(slot, seq)
	where s.chain_id = $1 and s.slot = t.slot and s.doubt_seq < t.seq`
