package outbox

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Sent is a row that was acknowledged, or need not be sent.
type Sent struct {
	Seq     int64
	Slot    int16
	EventID string // of an event that was published for the first time, else empty
}

// deleteRows deletes outbox rows, and returns those which were there.
const deleteRows = `delete from outbox where chain_id = $1 and seq = any($2) returning seq`

// retractSent queues retractions for events that were retracted without one, because their rows were still in the outbox.
const retractSent = `
	insert into outbox (chain_id, slot, escrow, event_id, event_type, kind)
	select p.chain_id, p.slot, p.escrow, p.event_id, p.event_type, 1 from processed_events p
	where p.chain_id = $1 and p.event_id = any($2) and p.state = 'retracted'
	  and not exists (select from outbox o where o.chain_id = p.chain_id and o.event_id = p.event_id and o.kind = 1)
	order by p.block_number, p.log_index`

// Delete deletes the rows of acknowledged messages and returns how many retractions it queued. A row that is gone already was taken away
// while its message was under way, by a rollback that took it for unsent: such an event has been published, and has to be retracted.
func (b *Box) Delete(ctx context.Context, sent []Sent) (retractions int64, err error) {
	if len(sent) == 0 {
		return 0, nil
	}
	seqs := make([]int64, len(sent))
	for i := range sent {
		seqs[i] = sent[i].Seq
	}
	rows, _ := b.DB.Query(ctx, deleteRows, b.ChainID, seqs)
	deleted, err := pgx.CollectRows(rows, pgx.RowTo[int64])
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
	var ids []string
	for _, s := range sent {
		if !there[s.Seq] && s.EventID != "" {
			ids = append(ids, s.EventID)
		}
	}
	tag, err := b.DB.Exec(ctx, retractSent, b.ChainID, ids)
	if err != nil {
		return 0, fmt.Errorf("retract %d events whose rows were gone when they were acknowledged: %w", len(ids), err)
	}
	return tag.RowsAffected(), nil
}
