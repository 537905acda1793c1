package outbox

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// answerWithin is how long a server may take to say that it has ended a statement whose time was over.
const answerWithin = 2 * time.Second

// Sent is a row that was acknowledged, or need not be sent.
type Sent struct {
	Seq  int64
	Slot int16
}

// Delete deletes rows, in one round trip and one transaction.
//
// The server ends the deletion after limit: what it deleted until then comes back, and nothing of
// it holds up the next attempt. A server that does not answer is waited for answerWithin longer.
func (b *Box) Delete(ctx context.Context, rows []Sent, limit time.Duration) error {
	seqs := make([]int64, len(rows))
	for i := range rows {
		seqs[i] = rows[i].Seq
	}

	ctx, cancel := context.WithTimeout(ctx, limit+answerWithin)
	defer cancel()
	var batch pgx.Batch
	batch.Queue(`select set_config('statement_timeout', $1, true)`, strconv.FormatInt(limit.Milliseconds(), 10))
	batch.Queue(`delete from outbox where chain_id = $1 and seq = any($2)`, b.ChainID, seqs)
	if err := b.DB.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("delete %d acknowledged rows of the outbox: %w", len(rows), err)
	}

	return nil
}
