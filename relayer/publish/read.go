package publish

import (
	"context"
	"encoding/hex"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
)

// read publishes the next page of the outbox, and says whether there may be more at once.
func (l *loop) read(ctx context.Context) (more bool, err error) {
	var keys []string
	if !l.cfg.BySlot && len(l.blocked) <= 1000 {
		for key := range l.blocked {
			keys = append(keys, key[len(key)-42:])
		}
	}
	limit := min(pageRows, windowRows-len(l.inFlight))
	rows, _ := l.cfg.DB.Query(ctx, readOutbox, pgx.StrictNamedArgs{
		"chain": l.cfg.ChainID, "owner": l.cfg.Owner, "last": l.last, "limit": limit, "blocked": keys,
	})
	page, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return false, fmt.Errorf("read the outbox: %w", err)
	}
	for i := range page {
		if err := l.send(&page[i]); err != nil {
			return false, err
		}
		l.last = page[i].Seq
	}
	l.caughtUp = len(page) < limit
	return !l.caughtUp && l.room(), nil
}

// readOutbox returns the rows of the owner's slots behind a seq, in order, without those of blocked keys and of events that a
// reorganisation has taken back.
const readOutbox = `
	select o.seq, o.slot, o.kind, p.event_id, p.event_type, p.contract_address, p.escrow, p.block_number, p.log_index, p.block_hash,
	       p.block_timestamp, p.args
	from outbox o
	join slot_ownership s on s.chain_id = o.chain_id and s.slot = o.slot and s.owner = @owner
	join processed_events p on p.chain_id = o.chain_id and p.event_id = o.event_id
	where o.chain_id = @chain and o.seq > @last and p.state <> 'orphaned' and (@blocked::text[] is null or o.escrow <> all(@blocked::text[]))
	order by o.seq limit @limit`

func scan(row pgx.CollectableRow) (p Pending, err error) {
	var id, emitter, escrow, hash string
	e := &p.Event
	err = row.Scan(&p.Seq, &p.Slot, &p.Kind, &id, &e.Name, &emitter, &escrow, &e.BlockNumber, &e.LogIndex, &hash, &e.BlockTime, &e.Args)
	if err != nil {
		return p, err
	}
	e.TxHash, e.BlockHash = common.HexToHash(id[:min(66, len(id))]), common.HexToHash(hash)
	e.Emitter, e.Escrow = common.HexToAddress(emitter), common.HexToAddress(escrow)
	return p, nil
}

func lowerHex(a common.Address) string {
	var b [42]byte
	copy(b[:], "0x")
	hex.Encode(b[2:], a[:])
	return string(b[:])
}
