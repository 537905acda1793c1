package election

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Vitals is what an instance reports of itself with each heartbeat.
type Vitals struct {
	CurrentBlock, HeadBlock int64 // blocks; 0: not known yet
	Escrows                 int
	Stopping                bool
}

// Heartbeat updates the instance's row. People and alerts read it; who is alive is decided by the session's lock alone.
func Heartbeat(ctx context.Context, db *pgxpool.Pool, chainID int64, instanceID string, v Vitals) error {
	status := "active"
	if v.Stopping {
		status = "stopping"
	}

	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := db.Exec(ctx, heartbeat, pgx.StrictNamedArgs{
		"chain": chainID, "me": instanceID, "current": v.CurrentBlock, "head": v.HeadBlock, "escrows": v.Escrows,
		"status": status,
	})
	if err != nil {
		return fmt.Errorf("write the heartbeat of %s: %w", instanceID, err)
	}

	return nil
}

const heartbeat = `
	update relayer_instances
	set last_heartbeat = now(), current_block = nullif(@current::bigint, 0), head_block = nullif(@head::bigint, 0),
	    escrows_monitored = @escrows, status = @status, dead_since = null
	where chain_id = @chain and instance_id = @me`
