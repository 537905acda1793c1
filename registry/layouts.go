package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Layouts are the event layouts that an ABI decodes.
type Layouts struct {
	Deployments []string // of the factories
	Others      []string // of the escrows
}

func (l Layouts) all() []string { return append(slices.Clone(l.Deployments), l.Others...) }

// ReadWith notes the layouts with which the leader of an epoch reads, before it reads anything, and returns those
// that what was read so far lacks. It is read again with them: the deployments of each factory from its first block
// on, as its past; and by the second reading what its escrows have emitted. ErrUnknown: the epoch is over.
func ReadWith(ctx context.Context, db *pgxpool.Pool, chainID, epoch int64, knows Layouts) (gained []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err = pgx.BeginTxFunc(ctx, db, Durable, func(tx pgx.Tx) error {
		var before []string
		var began bool
		err := tx.QueryRow(ctx, readBefore, chainID, epoch).Scan(&before, &began)
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrUnknown
		}

		if err != nil {
			return err
		}

		lacks := func(l string) bool { return began && !slices.Contains(before, l) }
		gained = slices.DeleteFunc(knows.all(), func(l string) bool { return !lacks(l) })
		made := int64(0)
		if slices.ContainsFunc(knows.Deployments, lacks) {
			tag, err := tx.Exec(ctx, readPastsAgain, chainID)
			if err != nil {
				return err
			}

			made = tag.RowsAffected()
		}

		// Where a past is read again, its end moves the second reading back.
		_, err = tx.Exec(ctx, noteLayouts, chainID, epoch, knows.all(), len(gained) > 0, made == 0)
		if err != nil || len(gained) == 0 {
			return err
		}

		if _, err := tx.Exec(ctx, settleFindings, chainID); err != nil {
			return err
		}

		return lookAgain(ctx, tx, chainID) // an owner that lacks them stores nothing from now on: see Lacking
	})
	if err != nil {
		return nil, fmt.Errorf("note what epoch %d of chain %d reads with: %w", epoch, chainID, err)
	}

	return gained, nil
}

// Lacking returns the layouts with which the leader reads, beside all that an owner knows, and that the owner lacks: it
// gives its slots to one that has them. Until a leader notes what it reads with, that of the term before counts.
func Lacking(ctx context.Context, db DB, chainID int64, knows Layouts) (layouts []string, err error) {
	err = db.QueryRow(ctx, `
		select coalesce((
			select array(select unnest(layouts) except select unnest($2::text[])) from leadership
			where chain_id = $1 and read_epoch >= epoch - 1 and layouts @> $2::text[]), '{}')`,
		chainID, knows.all()).Scan(&layouts)
	if err != nil {
		return nil, fmt.Errorf("compare event layouts with those of the leader: %w", err)
	}

	return layouts, nil
}

const (
	readBefore = `
	select case when read_epoch >= epoch - 1 then coalesce(layouts, '{}') else '{}' end, next_block > start_block
	from leadership where chain_id = $1 and epoch = $2 for update`

	// readPastsAgain begins the past of each factory again, up to what has been read. A past that is under way ends
	// there too: since it began, leaders without these layouts may have gone on.
	readPastsAgain = `
	update factories f
	set past_block = f.start_block, until_block = greatest(f.until_block, least(l.next_block, f.retired_block))
	from leadership l
	where l.chain_id = $1 and f.chain_id = $1
	  and f.start_block < greatest(f.until_block, least(l.next_block, f.retired_block))`

	// settleFindings is for what the ABI did not know: the second reading finds again what it still does not.
	settleFindings = `
	update findings set settled_at = now()
	where chain_id = $1 and settled_at is null and kind in ('undecodable_event', 'unannounced_contract')`

	noteLayouts = `
	update leadership l
	set layouts = $3, read_epoch = $2,
	    again_block = case when $4 then greatest(again_block, next_block - 1,
	        (select max(next_block) - 1 from cursors where chain_id = $1)) else again_block end,
	    verified_block = case when $4 and $5 then least(verified_block, f.first - 1) else verified_block end
	from (select coalesce(min(start_block), 0) as first from factories where chain_id = $1) f
	where l.chain_id = $1`
)
