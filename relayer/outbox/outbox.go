// Package outbox is what was committed and waits for Pub/Sub's acknowledgement: messages of events
// (Box) and answers to commands (Answers). It has the statements that read it, and that note what
// was acknowledged.
//
// The message of an event has no row of its own. The log is the events that are told and not apart,
// in the order of the chain, and each slot has a place, sent: every event of its log at or before it
// is acknowledged. See log.go.
//
// The table outbox is for what the log cannot say: retractions, replays, what was read later than
// its slot, keys that fail. Its rows are in the order of seq. While an escrow has rows, its new
// events get rows behind them. So of each escrow the log comes first, and then its rows. A row names
// its event: the one at its place in events, or the one in orphaned_events; it is deleted once its
// message was acknowledged.
//
// The owner of a slot alone adds to its log and its rows, one commit after the other. (Others request what they want
// published: see package ledger.)
package outbox

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
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

// ID identifies a row for ever. A server that lost its last commits reuses their numbers, but with
// other tokens.
type ID struct {
	Seq   int64
	Token int64 // drawn by the commit
}

// FirstRow is the lowest seq of rows that come last. Rows that go ahead of all that are there have lower ones: 2^40.
const FirstRow = 1 << 40

// Pending is an event of the log, or an outbox row with its event.
type Pending struct {
	ID     // zero: it is of the log
	Slot   int16
	Kind   int16 // message.Kind
	Event  contract.Event
	Answer *Answer            // to a command, in place of the event; nil: it is an event
	Trace  *trace.SpanContext // of the commit; nil without tracing, and when the row was read from the outbox
}

// Topic selects one of the configured topics.
type Topic int8

// The topics.
const (
	DefaultTopic Topic = iota
	OtherTopic
	RetractionsTopic
)

// Topics is their number.
const Topics = 3

// Lane is an ordering key on a topic. Escrow is zero if the ordering key is the slot.
type Lane struct {
	Topic   Topic
	Slot    int16
	Escrow  common.Address
	Command string // id of the command, where the rows are answers
}

// Box is the owner's view of the outbox: the rows of its slots. It is safe for concurrent use.
type Box struct {
	DB      *pgxpool.Pool
	ChainID int64
	Owner   string // instance id
	BySlot  bool   // the ordering key is the slot, not the escrow
}

// LaneOf is the lane that a row belongs to.
func (b *Box) LaneOf(p *Pending) Lane {
	lane := Lane{Topic: DefaultTopic, Slot: p.Slot}
	switch {
	case message.Kind(p.Kind) == message.Retraction:
		lane.Topic = RetractionsTopic
	case !slices.Contains(contract.DefaultEvents, p.Event.Name): // whatever EVENT_NAMES says by now
		lane.Topic = OtherTopic
	}

	if !b.BySlot {
		lane.Escrow = p.Event.Escrow
	}

	return lane
}

// Key is a lane's ordering key: chain and escrow, or chain and slot.
func (b *Box) Key(lane Lane) string {
	key := strconv.AppendInt(make([]byte, 0, 64), b.ChainID, 10)
	key = append(key, ':')
	if b.BySlot {
		return string(strconv.AppendInt(key, int64(lane.Slot), 10))
	}

	return string(hex.AppendEncode(append(key, '0', 'x'), lane.Escrow[:]))
}

// topicColumn is the Topic of a row.
const topicColumn = `case when o.kind = 1 then 2 when o.event_type = any(@default) then 0 else 1 end`

// mine is the condition that a row is in a slot that the owner has and that the reader knows about.
// A slot taken since is left out: its rows may precede those already read. The form is deliberate:
// a plain join, or a plain "in", lets the planner reverse it, and with outdated statistics of the
// queue it has read the whole outbox once per slot: a minute per page. With "any" of a parameter it
// compares each slot with each.
const mine = `(o.slot in (select slot from slot_ownership where chain_id = @chain and owner = @owner
	and (slot in (select unnest(@mine::smallint[]))) is true)) is true`

// answerWithin is how long a server may take to report that it has ended a statement after its
// limit.
const answerWithin = 2 * time.Second

// Sent is a row that was acknowledged, or is skipped.
type Sent struct {
	ID
	Slot int16
}

// Sent converts the row.
func (p *Pending) Sent() Sent { return Sent{p.ID, p.Slot} }

// Delete deletes rows, in one round trip and one transaction.
//
// The server ends the deletion after limit: its rows stay, and its locks are gone before the next
// attempt. A silent server is given answerWithin more.
func (b *Box) Delete(ctx context.Context, rows []Sent, limit time.Duration) error {
	return remove(ctx, b.DB, "outbox", b.ChainID, rows, limit)
}

func remove(ctx context.Context, db *pgxpool.Pool, table string, chainID int64, rows []Sent,
	limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit+answerWithin)
	defer cancel()
	var batch pgx.Batch
	batch.Queue(`select set_config('statement_timeout', $1, true)`, strconv.FormatInt(limit.Milliseconds(), 10))
	batch.Queue(`delete from `+table+deleteRows, chainID, column.Of(rows, func(s *Sent) int64 { return s.Seq }),
		column.Of(rows, func(s *Sent) int64 { return s.Token }))
	if err := db.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("delete %d acknowledged rows of table %s: %w", len(rows), table, err)
	}

	return nil
}

// deleteRows matches seq and token separately: a reused number with the token of another sent row
// is as unlikely as two equal tokens. Tokens are compared by a hash: with "any" of a parameter,
// Postgres compares each row with each token in a generic plan.
const deleteRows = ` where chain_id = $1 and seq = any($2) and (token in (select unnest($3::bigint[]))) is true`

// Doubt notes that what is committed of slots may have been published by an owner that lost the
// outcome. It only feeds a metric, relayer_republished_total. An owner that yields its slots calls
// this method; if slots are taken from an owner that could not call it, everything is in doubt
// (package partition).
func (b *Box) Doubt(ctx context.Context, slots []int16) error {
	ctx, cancel := context.WithTimeout(ctx, doubtTimeout)
	defer cancel()
	if _, err := b.DB.Exec(ctx, `
		update slot_ownership set doubt = clock_timestamp() where chain_id = $1 and slot = any($2)`, b.ChainID,
		slots); err != nil {
		return fmt.Errorf("record the messages in doubt of %d slots: %w", len(slots), err)
	}

	return nil
}

// doubtTimeout bounds one attempt to record it.
const doubtTimeout = 5 * time.Second
