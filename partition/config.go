package partition

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Channel is the notification channel on which a change of ownership is announced; the payload is
// the chain id. A notification is a hint: Run checks the fleet every checkEvery anyway.
const Channel = "relayer_slots"

// checkEvery is the pause between two checks of the fleet.
const checkEvery = time.Second

// ErrFenced means that another instance has claimed this one's slots: every right of this one is
// void, and it must join again.
var ErrFenced = errors.New("fenced: another instance claimed this instance's slots; its session was seen as dead")

// ErrUnseen means that this instance's session counts as dead where its slots are kept. After a
// failover the old primary may still answer the session while new connections reach the new
// primary.
var ErrUnseen = errors.New("this instance's session does not hold its lock in the database that new connections reach")

// ErrStale means that every check of the slots has failed for Config.StaleAfter: the others see
// this instance as dead.
var ErrStale = errors.New("the slots could not be checked")

// Settings are what the instances of a fleet must agree on, by the name of the variable. Each
// instance shows its settings in its row.
type Settings struct {
	// Stream holds what decides what is published, where, and in which order: if live instances
	// differed, a consumer's messages would depend on which of them serves an escrow. An instance
	// that differs is refused.
	Stream map[string]string `json:"stream,omitempty"`
	// Other holds settings that may differ without harm, or for a while; they are shown.
	Other map[string]string `json:"other,omitempty"`
	// Events are the definitions of the events that the instance decodes, by their layouts. An instance with further
	// ones may join: those that lack them leave their slots and the leadership to it.
	Events map[string]string `json:"events,omitempty"`
	// Mixed permits the instance to differ from others in Stream, for the time of a rolling change.
	Mixed bool `json:"mixed,omitempty"`
}

// Config of a Claimer. All fields but Log are required unless stated otherwise.
type Config struct {
	DB         *pgxpool.Pool
	ChainID    int64
	InstanceID string
	LockKey    int64         // advisory lock that the instance's session holds, which shows the others that it is alive
	Partition  Partition     // Number is ignored when Auto is set
	Auto       bool          // take a number that is free among the live instances; until there is one, stand by
	StartBlock int64         // cursor of slots without any owner so far
	AdoptAfter time.Duration // how long a slot without a live preferring instance stays unserved before it is adopted
	StaleAfter time.Duration // an instance whose last slot check is older is dead; 0 means the constant StaleAfter
	StallAfter time.Duration // an instance that is stuck for this long leaves its slots to one that is able; 0 means 15 s
	Version    string        // shown to operators
	Settings   Settings      // what the fleet must agree on
	// NewProcess means that this process has just started: the slots that Join finds for the
	// instance were served by an earlier process, and what that one published last is unknown.
	NewProcess bool

	// Able returns what keeps this instance, but perhaps not another one, from processing blocks:
	// an error of its nodes. A nil function means always able.
	Able func() error
	// EndDead ends the open transactions of dead instances, so that a claim need not wait for their
	// row locks. Optional.
	EndDead func(ctx context.Context, instanceIDs []string) error
	// Stepped gets the result of each check of the fleet: an error is the database's. Optional.
	Stepped func(error)
	// Quiesce stops publishing for slots that are about to be yielded, and waits until what is in
	// flight is acknowledged. An error postpones the yield. Optional.
	Quiesce func(ctx context.Context, slots []int16) error
	// Resume follows each successful Quiesce: with the new epoch when the slots were released, with 0 when they were not.
	Resume func(slots []int16, epoch int64)
	Log    *slog.Logger
}

// notify tells the others of a change of ownership.
const notify = `select pg_notify('` + Channel + `', $1::bigint::text)`
