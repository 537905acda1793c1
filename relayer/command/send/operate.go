package send

import (
	"context"
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/registry"
)

// What operators do goes around the epoch: they decide. It takes the lock of the sender's row, so
// it comes before or after what the owner does, and the owner, which remembers nothing, acts on it
// in its next round.

// ErrOperation means that what an operator asks for contradicts the sender's state.
var ErrOperation = errors.New("not possible now")

// AdoptNonce has the owner read the next nonce from the chain again, as before the first one: above all that an
// endpoint knows, and above those that commands were given, for which something may be signed. A halted sender goes on
// with it, once all below are final and every endpoint answers.
func AdoptNonce(ctx context.Context, db *pgxpool.Pool, chainID int64, sender common.Address) error {
	const adopt = `update senders set wait_final = -1, stranger = null,
		       state = case state when 'halted' then 'active' else state end,
		       reason = case state when 'halted' then null else reason end, updated_at = now()
		where chain_id = $1 and address = $2`

	return operate(ctx, db, chainID, sender, "false", "", adopt)
}

// Pause keeps a sender from taking new commands until Resume. What is under way is followed, replaced and answered. It
// takes the place of a halt that would end by itself: the sender would go on then.
func Pause(ctx context.Context, db *pgxpool.Pool, chainID int64, sender common.Address, reason string) error {
	return operate(ctx, db, chainID, sender, "stranger is not null", ", which is more than paused", setState, "paused",
		reason)
}

// Resume ends a pause. A halted sender needs AdoptNonce.
func Resume(ctx context.Context, db *pgxpool.Pool, chainID int64, sender common.Address) error {
	return operate(ctx, db, chainID, sender, "state = 'halted'",
		"; `status` says why, and `sender adopt-nonce` lets it go on", setState, "active", nil)
}

const setState = `update senders set state = $3, reason = $4, updated_at = now() where chain_id = $1 and address = $2`

// operate changes a sender's row, unless the condition holds by which it is halted for this; why completes the refusal.
func operate(ctx context.Context, db *pgxpool.Pool, chainID int64, sender common.Address, halted, why, statement string,
	args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		var refused bool
		err := tx.QueryRow(ctx, `select `+halted+` from senders where chain_id = $1 and address = $2 for update`,
			chainID, registry.Text(sender)).Scan(&refused)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return fmt.Errorf("%w: no instance has ever had it; is it configured?", ErrOperation)
		case err != nil:
			return err
		case refused:
			return fmt.Errorf("%w: the sender is halted%s", ErrOperation, why)
		}

		if _, err := tx.Exec(ctx, statement, append([]any{chainID, registry.Text(sender)}, args...)...); err != nil {
			return err
		}

		_, err = tx.Exec(ctx, Notify, Channel, chainID)

		return err
	})
	if err != nil {
		return fmt.Errorf("sender %s: %w", sender, err)
	}

	return nil
}

// Cancel asks for a command to be given up. One without a nonce stays without; one with a nonce
// is voided if the void is mined first. The state that it was in is returned.
func Cancel(ctx context.Context, db *pgxpool.Pool, chainID int64, id common.Hash) (state string, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	const cancelCommand = `update commands set cancel_requested = true where chain_id = $1 and command_id = $2
		and answered_at is null
		returning state, pg_notify($3, chain_id::text)`
	err = db.QueryRow(ctx, cancelCommand, chainID, id.Hex(), Channel).Scan(&state, nil)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", fmt.Errorf("cancel command %s: %w: there is none that is open", id, ErrOperation)
	}

	if err != nil {
		return "", fmt.Errorf("cancel command %s: %w", id, err)
	}

	return state, nil
}
