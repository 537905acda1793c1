package outbox

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// answerWithin is how long a server may take to say that it has ended a statement whose time was over.
const answerWithin = 2 * time.Second

// deleteWithin deletes rows in one round trip, as one transaction, and returns the seqs of those which were there.
func (b *Box) deleteWithin(ctx context.Context, seqs []int64, limit time.Duration) (deleted []int64, err error) {
	var batch pgx.Batch
	batch.Queue(`select set_config('statement_timeout', $1, true)`, strconv.FormatInt(limit.Milliseconds(), 10))
	batch.Queue(deleteRows, b.ChainID, seqs).Query(func(rows pgx.Rows) error {
		deleted, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return err
	})
	return deleted, b.DB.SendBatch(ctx, &batch).Close()
}

// Sent is a row that was acknowledged, or need not be sent.
type Sent struct {
	Seq     int64
	Slot    int16
	EventID string // of an event that was published for the first time, else empty
}

// deleteRows deletes outbox rows, and returns those which were there.
const deleteRows = `delete from outbox where chain_id = $1 and seq = any($2) returning seq`

// retractSent queues retractions for events that were dropped because their rows were still in the outbox.
const retractSent = `
	with sent as (
		update orphaned_events x set state = 3
		from unnest($2::bytea[], $3::integer[], $4::smallint[]) as t(tx, index, occurrence)
		where x.chain_id = $1 and x.tx_hash = t.tx and x.log_index = t.index and x.occurrence = t.occurrence and x.state = 4
		returning x.*)
	insert into outbox (chain_id, block_number, log_index, orphan, slot, kind, escrow, event_type)
	select chain_id, block_number, log_index, id, slot, 1, escrow, (select name from event_types t where t.id = type)
	from sent order by block_number, log_index`

// Delete deletes the rows of acknowledged messages and returns how many retractions it queued. A row that is gone already was taken away
// while its message was under way, by a rollback that took it for unsent: such an event has been published, and has to be retracted.
//
// The server ends the deletion after limit: what it deleted until then comes back, and nothing of it holds up the next attempt. A server
// that does not answer is waited for answerWithin longer.
func (b *Box) Delete(ctx context.Context, sent []Sent, limit time.Duration) (retractions int64, err error) {
	if len(sent) == 0 {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, limit+answerWithin)
	defer cancel()
	seqs := make([]int64, len(sent))
	for i := range sent {
		seqs[i] = sent[i].Seq
	}
	deleted, err := b.deleteWithin(ctx, seqs, limit)
	if err != nil {
		return 0, fmt.Errorf("delete %d acknowledged rows of the outbox: %w", len(sent), err)
	}
	if len(deleted) == len(sent) {
		return 0, nil
	}

	there := make(map[int64]bool, len(deleted))
	for _, seq := range deleted {
		there[seq] = true
	}
	var txs [][]byte
	var indexes []int32
	var occurrences []int16
	for _, s := range sent {
		if !there[s.Seq] && s.EventID != "" {
			tx, index, occurrence, err := contract.ParseID(s.EventID)
			if err != nil {
				return 0, err
			}
			txs, indexes, occurrences = append(txs, tx[:]), append(indexes, int32(index)), append(occurrences, occurrence)
		}
	}
	tag, err := b.DB.Exec(ctx, retractSent, b.ChainID, txs, indexes, occurrences)
	if err != nil {
		return 0, fmt.Errorf("retract %d events whose rows were gone when they were acknowledged: %w", len(txs), err)
	}
	return tag.RowsAffected(), nil
}
