package fleet

import (
	"cmp"
	"time"

	"github.com/fusion-prime/escrow-relayer/partition"
)

// Self is the state of one instance at one moment, as it knows itself. The zero value is an instance that has just
// started. /status omits what is marked json:"-".
type Self struct {
	ID        string              `json:"id"`
	Build     Build               `json:"-"`
	Started   time.Time           `json:"-"`
	Partition partition.Partition `json:"-"`
	Leader    bool                `json:"leader"`
	Joined    bool                `json:"-"` // it is a member of the fleet

	LastHeartbeat time.Time `json:"-"` // when it wrote the last one, or started

	// Session, Database and Node are nil while healthy.
	Session, Database, Node error `json:"-"`
	// When each of them began to fail. Zero: unknown, which counts as long ago.
	SessionSince, DatabaseSince, NodeSince time.Time `json:"-"`

	// Stuck is why a watch stores no block: the database refuses it again and again, or it has stood for a minute,
	// whatever the cause; nil: both go on.
	Stuck error `json:"-"`
	// StandingSince is when the last block was stored by the watch that has stood for longest while there are blocks
	// to store; zero: both go on.
	StandingSince time.Time `json:"-"`

	Trust         string        `json:"trust"`      // how it knows the newest blocks that it may process, as Instance.Trust
	Head          int64         `json:"head_block"` // heights; 0: unknown
	Target        int64         `json:"target_block"`
	Final         int64         `json:"final_block"`
	HeadTime      time.Time     `json:"-"`              // of block Head
	TargetTime    time.Time     `json:"-"`              // of block Target, as of chain.View; zero: unknown
	BlockTime     time.Duration `json:"-"`              // the mean time between blocks; zero: unknown
	Cursor        int64         `json:"cursor"`         // next block of the slot watch; 0 while it holds no slot
	CursorTime    time.Time     `json:"-"`              // of block Cursor-1; zero: unknown
	FactoryCursor int64         `json:"factory_cursor"` // next block of the factory watch; 0 unless it leads
	Escrows       int           `json:"escrows"`        // monitored
	Slots         int           `json:"slots"`          // owned
	Adopted       int           `json:"adopted"`        // owned, and preferred by others

	InFlight    int        `json:"-"` // messages sent to Pub/Sub that wait for their acknowledgement
	BlockedKeys int        `json:"-"` // ordering keys whose last publish failed
	Endpoints   []Endpoint `json:"endpoints"`

	PublishError   error     `json:"-"` // of the last failed publish request; nil: none has failed
	PublishErrorAt time.Time `json:"-"` // when
}

// Build identifies the binary: the version, the commit that it was built from, and that commit's
// time (RFC 3339). An unstamped value is "unknown".
type Build struct{ Version, Commit, Date string }

// String is the version, and in brackets the commit, shortened, and its day.
func (b Build) String() string {
	const commit, day = 12, len(time.DateOnly)
	if b.Commit == "" || b.Commit == "unknown" {
		return b.Version
	}

	text := b.Commit[:min(commit, len(b.Commit))]
	if len(b.Date) >= day && b.Date != "unknown" {
		text += ", " + b.Date[:day]
	}

	return b.Version + " (" + text + ")"
}

// Endpoint is an RPC endpoint.
type Endpoint struct {
	Name    string `json:"name"` // scheme and host, without possible keys; of several at one host the second ends in #2
	Up      bool   `json:"up"`
	Head    int64  `json:"head_block"`
	Latency Age    `json:"latency_seconds"`
	// LastError and LastErrorAt may be older than the last success. Empty: there was none.
	LastError   string    `json:"last_error,omitempty"`
	LastErrorAt time.Time `json:"last_error_at,omitzero"`
}

// Lag is the number of blocks that may be processed but are not; 0 while it is unknown.
func (i *Self) Lag() int64 {
	if i.Cursor == 0 || i.Target == 0 {
		return 0
	}

	return max(0, i.Target-i.Cursor+1)
}

// Took is how long the chain takes for so many blocks. Until the block time is known, Ethereum's is assumed.
func (i *Self) Took(blocks int64) time.Duration {
	const usual = 12 * time.Second
	return time.Duration(blocks) * cmp.Or(i.BlockTime, usual)
}

// Unverified is how long the chain took for the final blocks above verified; zero while either is unknown.
func (i *Self) Unverified(verified int64) time.Duration {
	if i.Final == 0 || verified == 0 {
		return 0
	}

	return i.Took(max(0, i.Final-verified))
}

// LagTime is how much older the newest processed block is than the head; zero without a lag, or
// while a time is unknown.
func (i *Self) LagTime() time.Duration {
	if i.Lag() == 0 || i.CursorTime.IsZero() || i.HeadTime.IsZero() {
		return 0
	}

	return max(0, i.HeadTime.Sub(i.CursorTime))
}

// Checks are what this instance needs, by name, with the error of each; nil: it is healthy. storing is whether
// blocks are stored while there are some to store.
func (i *Self) Checks() map[string]error {
	return map[string]error{"session": i.Session, "database": i.Database, "node": i.Node, "storing": i.Stuck}
}

// Ready reports whether all checks are healthy.
func (i *Self) Ready() bool {
	for _, err := range i.Checks() {
		if err != nil {
			return false
		}
	}

	return true
}
