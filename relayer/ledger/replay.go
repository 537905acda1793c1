package ledger

import (
	"context"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// Selection is the set of stored events that a replay publishes again. Zero fields are
// unrestricted; From and To are blocks, inclusive.
type Selection struct {
	From, To int64
	Escrow   common.Address
	EventID  string // as Event.ID formats it
	// WholeEscrows widens a range to the whole history of each escrow that has an event in it: a
	// consumer that is not idempotent can only rebuild an escrow from its first event.
	WholeEscrows bool
}

// escrowsPerReplayStep is how many escrows a step of a replay requests.
const escrowsPerReplayStep = 500

// replay requests the events of a selection, step by step: see Ledger.Replay.
func replay(ctx context.Context, cfg *Config, s Selection, progress func(events int)) (total int, err error) {
	args, err := s.args(cfg)
	if err != nil {
		return 0, err
	}

	rows, _ := cfg.DB.Query(ctx, `select distinct escrow from (`+selectReplay+`) p order by escrow`, args)
	escrows, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		return 0, fmt.Errorf("list the escrows to replay: %w", err)
	}

	for some := range slices.Chunk(escrows, escrowsPerReplayStep) {
		args["escrows"] = some
		queued := 0
		if _, err := transact(ctx, cfg, nil, func(t *transaction) error {
			tag, err := t.Exec(ctx, requestReplay, args)
			if queued = int(tag.RowsAffected()); err != nil {
				return err
			}

			return t.notify(ctx, RequestsChannel)
		}); err != nil {
			return total, fmt.Errorf("request a replay of %d escrows (%d events are requested already): %w", len(some), total, err)
		}

		if total += queued; progress != nil {
			progress(total)
		}
	}

	return total, nil
}

// args are the arguments of selectReplay.
func (s Selection) args(cfg *Config) (pgx.StrictNamedArgs, error) {
	var names []string
	for _, n := range cfg.EventNames {
		if cfg.Publishes(n) {
			names = append(names, n)
		}
	}

	args := pgx.StrictNamedArgs{"chain": cfg.ChainID, "from": s.From, "to": s.To, "whole": s.WholeEscrows,
		"names": names, "escrow": []byte(nil), "tx": []byte(nil), "index": 0, "occurrence": 0}
	if s.Escrow != (common.Address{}) {
		args["escrow"] = s.Escrow[:]
	}

	if s.EventID != "" {
		tx, index, occurrence, err := contract.ParseID(s.EventID)
		if err != nil {
			return nil, err
		}

		args["tx"], args["index"], args["occurrence"] = tx[:], int32(index), occurrence
	}

	return args, nil
}

// selectReplay lists the events of a Selection, without a further announcement of an escrow: nobody was told of it.
const selectReplay = `
	with kinds as (select id from event_types where name = any(@names)),
	hit as (
		select escrow, block_number, log_index from events
		where chain_id = @chain and type in (select id from kinds)
		  and (@from::bigint = 0 or block_number >= @from) and (@to::bigint = 0 or block_number <= @to)
		  and (@escrow::bytea is null or escrow = @escrow)
		  and (@tx::bytea is null or tx_hash = @tx and log_index = @index::integer and occurrence = @occurrence::smallint))
	select p.slot, p.escrow, p.block_number, p.log_index, p.type from events p
	where p.chain_id = @chain and p.type in (select id from kinds)
	  and (p.type <> 1 or p.told or exists (select from escrows e where e.chain_id = @chain and e.address = p.escrow
		and e.discovered_block_number = p.block_number and e.log_index = p.log_index))
	  and (@whole::boolean and p.escrow in (select escrow
		from hit) or (p.block_number, p.log_index) in (select block_number, log_index from hit))`

// requestReplay adds the requests. EscrowDeployed comes before the earlier events of its
// transaction.
const requestReplay = `
	insert into requests (chain_id, block_number, log_index, slot, escrow, kind)
	select @chain, block_number, log_index, slot, escrow, 2 from (` + selectReplay + `) p
	where escrow = any(@escrows::bytea[]) order by escrow, type <> 1, block_number, log_index`
