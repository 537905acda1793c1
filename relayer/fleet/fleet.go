package fleet

import (
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/fusion-prime/escrow-relayer/partition"
)

// Fleet is everything the database knows about the instances of one chain, at one moment.
type Fleet struct {
	ChainID   int64      `json:"chain_id,string"` // a string, as in every message and command
	At        time.Time  `json:"at"`              // of the snapshot, by the database's clock
	Known     bool       `json:"known"`
	ReadOnly  bool       `json:"read_only,omitempty"` // the database refuses writes: a standby, or set so by its platform
	Leader    Leader     `json:"leader"`
	Instances []Instance `json:"instances"` // by partition, then id; without those that stopped or died long ago
	Slots     Slots      `json:"slots"`
	Chain     Chain      `json:"chain"`
	Escrows   Escrows    `json:"escrows"`
	Outbox    Outbox     `json:"outbox"`
	Late      Late       `json:"late"`
	// Senders, the last Commands (newest first) and Replies are left out on a chain without commands so far.
	Senders  []Sender  `json:"senders,omitempty"`
	Commands []Command `json:"commands,omitempty"`
	Replies  *Replies  `json:"replies,omitempty"` // null: none waits
	// Strangers hold a lock of ours with a login that may not change our tables; normally there are none.
	Strangers []Stranger `json:"strangers,omitempty"`
	// Faults are what endpoints are set aside for, the oldest first; normally there are none.
	Faults []Fault `json:"faults,omitempty"`
	// Findings are those on what the ABI does not know, while they are open, and the others of the last hour; normally
	// there are none.
	Findings []Finding `json:"findings,omitempty"`
	Problems []Problem `json:"problems"` // what Judge says
	Events   []Event   `json:"-"`        // the newest, newest first

	waits  []LockedError // what its connections wait for: at most one
	trying []attempt     // the last process that said what is wrong with it: at most one
}

// attempt is what a process says that could not start.
type attempt struct {
	ID, Fault string
	At        time.Time
}

// Fault is what an endpoint did that no honest endpoint does: a row of endpoint_faults.
type Fault struct {
	Endpoint string    `json:"endpoint"` // scheme and host, without possible keys
	Kind     string    `json:"kind"`     // lie, or oversized
	Since    time.Time `json:"since"`
}

// Finding is all that was found of one kind.
type Finding struct {
	Kind   string    `json:"kind"` // as in the table findings
	Events int64     `json:"events"`
	Since  time.Time `json:"since"`
	Detail string    `json:"detail"` // of the last one
}

// Stranger is a database session that holds an advisory lock of ours with a login that may not change our tables. It is
// harmless, since the lock gets another key, but shows that a login may connect that should not.
type Stranger struct {
	Lock        string `json:"lock"` // its purpose and name
	PID         int32  `json:"pid"`  // of the server process
	Login       string `json:"login"`
	Application string `json:"application"` // its application_name
}

// Leader is the right to watch the factory.
type Leader struct {
	Instance     string    `json:"instance"` // the leader of the leadership row, alive or dead; empty before the first one
	Epoch        int64     `json:"epoch"`    // the number of elections so far
	Since        time.Time `json:"since,omitzero"`
	HeartbeatAge Age       `json:"heartbeat_age_seconds"` // since it last wrote its heartbeat in the table leadership
	Held         bool      `json:"held"`                  // a session of ours holds the leader lock
	// Valid reports that the session which holds the leader lock belongs to Instance. It is false
	// for some milliseconds, from the lock of a new leader to its first write.
	Valid bool `json:"valid"`
}

// Instance is one process, alive or dead. Fields without a column are marked db:"-".
type Instance struct {
	ID           string              `json:"id"`
	Partition    partition.Partition `json:"-" db:"-"`
	Number       int                 `json:"partition"`
	Total        int                 `json:"total_partitions"`
	Strategy     string              `json:"strategy"`
	Status       string              `json:"status"` // as its row has it: active, stopping or dead
	State        State               `json:"state" db:"-"`
	Alive        bool                `json:"alive" db:"-"`             // its session holds its lock, and its slot checks are recent
	StuckFor     Age                 `json:"stuck_for_seconds" db:"-"` // since its nodes began to block it; 0: it is able
	Settings     partition.Settings  `json:"settings"`
	Leader       bool                `json:"leader" db:"-"`
	HeartbeatAge Age                 `json:"heartbeat_age_seconds" db:"-"`
	DeadFor      Age                 `json:"dead_for_seconds" db:"-"` // 0 while alive; else an upper bound
	Started      time.Time           `json:"started_at"`
	Version      string              `json:"version"`
	Slots        int                 `json:"slots" db:"-"`   // owned
	Adopted      int                 `json:"adopted" db:"-"` // owned, but preferred by others
	Escrows      int                 `json:"escrows"`        // monitored, as of its last heartbeat
	Cursor       int64               `json:"cursor"`         // next block to process; 0 before its first slot
	CursorTime   time.Time           `json:"cursor_time,omitzero" db:"-"`
	// since it last stored a block, while there are blocks to store; 0: it goes on
	StandingFor Age    `json:"standing_for_seconds" db:"-"`
	ReportAge   Age    `json:"report_age_seconds" db:"-"` // since it last committed a report of itself; 0: it makes none
	Fault       string `json:"fault" db:"-"`              // what /readyz says is wrong, as of that report; empty: nothing
	FaultFor    Age    `json:"fault_for_seconds" db:"-"`  // since when something has been; 0: nothing is wrong
	// newest block of its node, as of its last heartbeat; 0: unknown
	Head int64 `json:"head_block"`
	// how it knows the newest blocks that it may process, as of its last heartbeat: proved, agreed by 2, or believed
	// (on one endpoint's word); empty: unknown yet
	Trust  string `json:"trust"`
	Outbox int    `json:"outbox_messages" db:"-"` // of its slots
	Late   int    `json:"late_escrows" db:"-"`    // of its slots

	connected, left bool // a connection of it is open, whether it holds its lock or not; it stopped cleanly
}

// State is the condition of an instance, for operators.
type State string

// The states of an instance.
const (
	Serving  State = "serving"  // alive, with slots
	Standby  State = "standby"  // alive, without slots: another instance serves what it prefers, or a claim is under way
	Stopping State = "stopping" // alive, and about to stop
	Hung     State = "hung"     // it is connected, but its slot checks have stopped
	Dead     State = "dead"     // it died
	Stopped  State = "stopped"  // it stopped cleanly
	Replaced State = "replaced" // it died, and another instance has its partition, or the partition is gone
)

// Slots is the coverage of the slots.
type Slots struct {
	Total    int    `json:"total"`
	Served   int    `json:"served"`
	Adopted  int    `json:"adopted"`  // served by an instance that does not prefer them
	Unserved int    `json:"unserved"` // Free + Dead
	Free     int    `json:"free"`
	Dead     int    `json:"dead"` // owned by a dead instance
	Each     []Slot `json:"-"`    // ascending, all of them
}

// Slot is one slot and its owner.
type Slot struct {
	Number  int16
	Owner   string // empty: free
	Served  bool   // the owner is alive
	Adopted bool   // the owner does not prefer it
	Since   time.Time
	// Unserved is an upper bound of the time without service: an owner died between its last
	// heartbeat and the moment another instance noticed. Zero while it is served.
	Unserved Age
}

// Chain is the progress of the fleet. Blocks are heights; a cursor is the next block to process.
type Chain struct {
	// newest block that the fleet knows of: reported with a heartbeat, or processed; 0: unknown
	Head          int64 `json:"head_block"`
	NodeHead      int64 `json:"-"`              // newest block that a live instance reported with a heartbeat; 0: unknown
	FactoryCursor int64 `json:"factory_cursor"` // of the factory watch
	// the age of the newest block of the nodes, and of the newest that may be processed, by the
	// chain's timestamps, the database's clock and the newest heartbeat with a value; 0: unknown
	HeadAge   Age `json:"head_age_seconds"`
	TargetAge Age `json:"target_age_seconds"`
	// time of the block below it; zero: unknown
	FactoryTime  time.Time `json:"-"`
	LowestCursor int64     `json:"lowest_cursor"`  // of any slot: everything below is stored
	Verified     int64     `json:"verified_block"` // everything up to it was read twice and is stored
	Start        int64     `json:"start_block"`
	// Factory is the address of the factory, lower case; of several, with commas between them.
	Factory string `json:"factory"`
	Past    int64  `json:"past_blocks"` // of the pasts of added factories, still to be read
}

// Escrows counts the registered escrows, by status. It may be as old as Reader.CountEvery.
type Escrows struct {
	Active   int64 `json:"active"` // deployed, and neither released nor refunded
	Released int64 `json:"released"`
	Refunded int64 `json:"refunded"`
	Orphaned int64 `json:"orphaned"` // a reorganisation removed their deployment
}

// Registered is the number of escrows that exist on the chain.
func (e Escrows) Registered() int64 { return e.Active + e.Released + e.Refunded }

// Outbox is what was committed and waits for Pub/Sub's acknowledgement, in the log or in the outbox.
type Outbox struct {
	Messages  int64 `json:"messages"`
	More      bool  `json:"more"` // too many to count: there are at least so many
	OldestAge Age   `json:"oldest_age_seconds"`
}

// Late are escrows that wait to be admitted or are being caught up: events up to the cursor of
// their slot may be missing.
type Late struct {
	Escrows   int64 `json:"escrows"`
	OldestAge Age   `json:"oldest_age_seconds"` // since the oldest of them was discovered
}

// alive iterates over the live instances.
func (f *Fleet) alive() iter.Seq[*Instance] {
	return func(yield func(*Instance) bool) {
		for i := range f.Instances {
			if in := &f.Instances[i]; in.Alive && !yield(in) {
				return
			}
		}
	}
}

// Live counts the live instances.
func (f *Fleet) Live() (n int) {
	for range f.alive() {
		n++
	}

	return n
}

// Expected counts the instances that should be there: the live ones, and those that died or hang without a replacement.
func (f *Fleet) Expected() (n int) {
	for i := range f.Instances {
		if in := &f.Instances[i]; in.Alive || in.State == Dead || in.State == Hung {
			n++
		}
	}

	return n
}

// Find returns an instance, or nil.
func (f *Fleet) Find(id string) *Instance {
	for i := range f.Instances {
		if f.Instances[i].ID == id {
			return &f.Instances[i]
		}
	}

	return nil
}

// Age is a duration that is written to JSON in seconds, to the millisecond.
type Age time.Duration

// Seconds is the age in seconds.
func (a Age) Seconds() float64 { return time.Duration(a).Seconds() }

// String formats an age for people, in at most two units: 57s, 3m 09s, 42m, 4h 12m, 3d 4h.
func (a Age) String() string {
	switch s := int64(time.Duration(a) / time.Second); {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 10*60:
		return fmt.Sprintf("%dm %02ds", s/60, s%60)
	case s < 3600:
		return fmt.Sprintf("%dm", s/60)
	case s < 24*3600:
		return fmt.Sprintf("%dh %02dm", s/3600, s/60%60)
	default:
		return fmt.Sprintf("%dd %dh", s/86400, s/3600%24)
	}
}

// MarshalJSON writes seconds.
func (a Age) MarshalJSON() ([]byte, error) {
	return json.Marshal(math.Round(a.Seconds()*1000) / 1000)
}

// UnmarshalJSON reads seconds.
func (a *Age) UnmarshalJSON(b []byte) error {
	var s float64
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}

	*a = Age(s * float64(time.Second))

	return nil
}
