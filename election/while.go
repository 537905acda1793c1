package election

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
)

// Holder is the session that a lock belongs to; a *Session is one.
type Holder interface {
	Do(ctx context.Context, f func(context.Context, *pgx.Conn) error) error
}

// While contends for an advisory lock and runs f each time that it gets the lock, until ctx ends
// (nil). The lock is released when f returns, so that another instance can take it at once. wait is
// the pause before the next attempt. f handles its errors: only the loss of the session ends While.
func While(ctx context.Context, s Holder, lock Lock, log *slog.Logger, wait func() time.Duration,
	f func(context.Context)) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}

		if _, err := Try(ctx, s, lock, log, f); err != nil && ctx.Err() == nil {
			return err
		}

		timer.Reset(wait())
	}
}

// Try takes an advisory lock if it is free, runs f with it and releases it; taken is false if
// another session of ours holds it. The error is that of the session.
func Try(ctx context.Context, s Holder, lock Lock, log *slog.Logger, f func(context.Context)) (taken bool, err error) {
	var key int64
	err = s.Do(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		key, err = lock.try(ctx, conn, log)
		return err
	})
	if err != nil || key == 0 {
		return false, err
	}

	f(ctx)

	return true, release(ctx, s, key)
}

// releaseWithin bounds the release of a lock. The end of the session frees it anyway.
const releaseWithin = time.Second

func release(ctx context.Context, s Holder, key int64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	err := s.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `select pg_advisory_unlock($1)`, key)
		return err
	})
	if err != nil {
		return fmt.Errorf("give the advisory lock %d back: %w", key, err)
	}

	return nil
}
