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

// AdoptNonce makes nonce the next one of a halted sender, and lets it go on when all below are
// final.
//
// A sender that got a nonce too high by mistake, and so waits for a transaction that will never come, may be given a
// lower one above those that commands were given: something may be signed for them. Whether the chain knows
// the nonce already is checked when commands get nonces, as it always is.
func AdoptNonce(ctx context.Context, db *pgxpool.Pool, chainID int64, sender common.Address, nonce uint64) error {
	return operate(ctx, db, chainID, sender, func(tx pgx.Tx, state string, next *int64) error {
		lower := next != nil && nonce < uint64(*next)
		if state != "halted" && !lower {
			return fmt.Errorf("%w: the sender is %s; only a halted one adopts a nonce that is not lower than its next one",
				ErrOperation, state)
		}

		if lower {
			const unused = `select coalesce(greatest(
				(select max(nonce) from commands where chain_id = $1 and sender = $2),
				(select max(nonce) from used_nonces where chain_id = $1 and sender = bytes($2))) + 1, 0)`
			var lowest int64
			if err := tx.QueryRow(ctx, unused, chainID, registry.Text(sender)).Scan(&lowest); err != nil {
				return err
			}

			if nonce < uint64(lowest) {
				return fmt.Errorf("%w: nonces up to %d were given to commands; choose %d or more", ErrOperation, lowest-1, lowest)
			}
		}

		const adopt = `update senders set next_nonce = $3, first_nonce = least(first_nonce, $3), wait_final = $3, stranger = null,
			       state = case state when 'halted' then 'active' else state end,
			       reason = case state when 'halted' then null else reason end, updated_at = now()
			where chain_id = $1 and address = $2`
		_, err := tx.Exec(ctx, adopt, chainID, registry.Text(sender), int64(nonce))

		return err
	})
}

// Pause keeps a sender from taking new commands. What is under way is followed, replaced and answered.
func Pause(ctx context.Context, db *pgxpool.Pool, chainID int64, sender common.Address, reason string) error {
	return setState(ctx, db, chainID, sender, "paused", &reason, ", which is more than paused")
}

// Resume ends a pause. A halted sender needs AdoptNonce.
func Resume(ctx context.Context, db *pgxpool.Pool, chainID int64, sender common.Address) error {
	return setState(ctx, db, chainID, sender, "active", nil,
		"; `sender status` says why, and `sender adopt-nonce` lets it go on")
}

// setState pauses or resumes a sender; ifHalted completes the refusal for one that is halted.
func setState(ctx context.Context, db *pgxpool.Pool, chainID int64, sender common.Address, to string, reason *string,
	ifHalted string) error {
	return operate(ctx, db, chainID, sender, func(tx pgx.Tx, state string, _ *int64) error {
		if state == "halted" {
			return fmt.Errorf("%w: the sender is halted%s", ErrOperation, ifHalted)
		}

		_, err := tx.Exec(ctx,
			`update senders set state = $3, reason = $4, updated_at = now() where chain_id = $1 and address = $2`,
			chainID, registry.Text(sender), to, reason)

		return err
	})
}

func operate(ctx context.Context, db *pgxpool.Pool, chainID int64, sender common.Address,
	f func(tx pgx.Tx, state string, next *int64) error) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		var state string
		var next *int64
		err := tx.QueryRow(ctx, `select state, next_nonce from senders where chain_id = $1 and address = $2 for update`,
			chainID, registry.Text(sender)).Scan(&state, &next)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("%w: no instance has ever had it; is it configured?", ErrOperation)
		}

		if err != nil {
			return err
		}

		if err := f(tx, state, next); err != nil {
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
