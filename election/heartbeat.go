package election

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Vitals is what an instance reports of itself with each heartbeat.
type Vitals struct {
	CurrentBlock, HeadBlock int64     // blocks; 0: unknown
	HeadTime, TargetTime    time.Time // of HeadBlock, and of the newest block that may be processed; zero: unknown
	Trust                   string    // how it knows what it publishes; empty: unknown yet
	Escrows                 int
	Stopping                bool
}

// Heartbeat updates the instance's row, for people and alerts. The session's lock and the slot
// checks decide which instance is alive, so an instance found dead keeps its status and dead_since
// until it checks its slots again.
func Heartbeat(ctx context.Context, db *pgxpool.Pool, chainID int64, instanceID string, v Vitals) error {
	status := "active"
	if v.Stopping {
		status = "stopping"
	}

	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := db.Exec(ctx, heartbeat, pgx.StrictNamedArgs{
		"chain": chainID, "me": instanceID, "current": v.CurrentBlock, "head": v.HeadBlock, "escrows": v.Escrows,
		"status": status, "head_time": seconds(v.HeadTime), "target_time": seconds(v.TargetTime),
		"trust": v.Trust,
	})
	if err != nil {
		return fmt.Errorf("write the heartbeat of %s: %w", instanceID, err)
	}

	return nil
}

// seconds returns Unix seconds: 0 for the zero time, and for a chain's time outside the range of
// timestamptz.
func seconds(t time.Time) int64 {
	const most = 1 << 40 // the year 36812
	if t.IsZero() || t.Unix() < 0 || t.Unix() > most {
		return 0
	}

	return t.Unix()
}

const heartbeat = `
	update relayer_instances
	set last_heartbeat = now(), current_block = nullif(@current::bigint, 0), head_block = nullif(@head::bigint, 0),
	    head_time = to_timestamp(nullif(@head_time::bigint, 0)), target_time = to_timestamp(nullif(@target_time::bigint, 0)),
	    trust = nullif(@trust, ''),
	    escrows_monitored = @escrows, status = case when status = 'dead' then status else @status end
	where chain_id = @chain and instance_id = @me`
