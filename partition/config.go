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

// ErrFenced means that another instance took what this one held: everything held is void, and the
// instance has to join again.
var ErrFenced = errors.New("fenced: another instance claimed this instance's slots; its session was seen as dead")

// ErrUnseen means that this instance's own session counts as dead where its slots are kept. After a failover of
// the database whose old primary still answers, the session is there and new connections are not.
var ErrUnseen = errors.New("this instance's session does not hold its lock in the database that new connections reach")

// ErrStale means that every check of the slots has failed for Config.StaleAfter: the others see this
// instance as dead.
var ErrStale = errors.New("the slots could not be checked")

// Settings are what the instances of a fleet have to agree on, by the name of the variable. Each
// instance shows its own in its row.
type Settings struct {
	// Stream holds what decides what is published, where, and in which order: if live instances
	// differed, what a consumer gets would depend on which of them serves an escrow. An instance that
	// differs is refused.
	Stream map[string]string `json:"stream,omitempty"`
	// Other holds settings in which a difference does no harm, or only for a while; it is shown.
	Other map[string]string `json:"other,omitempty"`
	// Mixed says that the instance may differ from others in Stream. It is meant for the time of a
	// rolling change.
	Mixed bool `json:"mixed,omitempty"`
}

// Config of a Claimer. All fields but Log are required unless they say otherwise.
type Config struct {
	DB         *pgxpool.Pool
	ChainID    int64
	InstanceID string
	LockKey    int64         // advisory lock that the instance's session holds: the others see by it that it lives
	Partition  Partition     // Number is ignored when Auto is set
	Auto       bool          // take a number that no live instance has; while there is none, stand by
	StartBlock int64         // cursor of slots that nobody has ever served
	AdoptAfter time.Duration // how long a slot that nobody alive prefers stays unserved before it is adopted
	StaleAfter time.Duration // an instance that has not checked its slots for so long is dead; 0 means StaleAfter
	StallAfter time.Duration // an instance that is stuck for so long leaves its slots to one that is not; 0 means 15 s
	Version    string        // shown to operators
	Settings   Settings      // what the fleet has to agree on
	// NewProcess says that this process starts anew: what Join finds to be the instance's slots was
	// served by another process, and what that one published last is not known.
	NewProcess bool

	// Able returns what keeps the instance from processing blocks although another instance might be
	// able to, that is, an error of its nodes. Nil means that nothing ever does.
	Able func() error
	// EndDead ends the open transactions of dead instances, so that a claim does not wait for the rows
	// that they have locked. Nil means that it waits.
	EndDead func(ctx context.Context, instanceIDs []string) error
	// Stepped hears how each check of the fleet ended: an error is the database's. Nil means that nothing is called.
	Stepped func(error)
	// Quiesce stops publishing for slots that are about to be yielded, and waits until what is in flight is acknowledged.
	// An error postpones the yield. Nil means that there is nothing to stop.
	Quiesce func(ctx context.Context, slots []int16) error
	// Resume follows each successful Quiesce: with the new epoch when the slots were released, with 0 when they were not.
	Resume func(slots []int16, epoch int64)
	Log    *slog.Logger
}

// notify tells the others of a change of ownership.
const notify = `select pg_notify('` + Channel + `', $1::bigint::text)`
