package outbox

import (
	"context"
	"fmt"
	"time"
)

// Doubt is the one record of what may have been sent although its row is still in the outbox: of
// each slot, a seq. A row of the slot up to that seq may have been handed to Pub/Sub by somebody
// who does not know how it ended; a row behind it was handed over by nobody but the present owner's
// process, which knows what of it is under way. So once nothing of a slot is under way, a row
// behind the slot's doubt is a proof that its message was never published.
//
// It is written only where doubt arises, and never taken back: it ends with the rows. Whoever takes
// a slot from an owner that did not release it, and whoever comes back as an instance that died,
// raises it to the highest seq there is (package partition, in the transaction that takes the
// slot). An owner raises it by Doubt for requests that ended without an answer, before the slot is
// at rest and before their rows are read again.

const raiseDoubt = `
	update slot_ownership s set doubt_seq = t.seq
	from unnest($2::smallint[], $3::bigint[]) as t(slot, seq)
	where s.chain_id = $1 and s.slot = t.slot and s.doubt_seq < t.seq`

// doubtTimeout bounds one attempt to write it down.
const doubtTimeout = 5 * time.Second

// Doubt raises the doubt of slots, each to a seq.
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
