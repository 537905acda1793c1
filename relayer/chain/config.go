package chain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// The words of the packages below that are used with a Source.
type (
	Header = rpc.Header
	Filter = endpoint.Filter
	Batch  = endpoint.Batch
	// EndpointStatus is what an operator sees of an endpoint.
	EndpointStatus = endpoint.Status
	// Fault is what an endpoint is set aside for.
	Fault = endpoint.Fault
	// Examination is what questions told about one endpoint.
	Examination = endpoint.Examination
)

var (
	// ErrBehind means that the block is still missing at every node that can be asked. Its content stays open.
	ErrBehind = rpc.ErrBehind
	// ErrDisagree means that nodes, or two answers of one, contradict each other about a block. Asking
	// again later decides.
	ErrDisagree = endpoint.ErrDisagree
	// ErrWrongChain means that an endpoint serves another chain than CHAIN_ID.
	ErrWrongChain = endpoint.ErrWrongChain
	// ErrNoHistory means that the endpoints answer, but keep nothing of so old a block. An archive node does.
	ErrNoHistory = endpoint.ErrNoHistory
	// ErrAddressRequired means that the endpoints give logs only of contracts that are named.
	ErrAddressRequired = endpoint.ErrAddressRequired
	// ErrUnproved means that the chain's blocks prove nothing.
	ErrUnproved = endpoint.ErrUnproved
	// ErrWithheld is an ErrUnproved of a chain that has proved other blocks.
	ErrWithheld = fmt.Errorf("%w, as those of other blocks of the chain are: %s", ErrUnproved, endpoint.Remedy)
	// ErrNoCode means that the factory's address is empty.
	ErrNoCode = errors.New("no contract at the factory's address")
	// ErrUnavailable means that all endpoints are out.
	ErrUnavailable = errors.New("no RPC endpoint is available")
)

// What Config.Finality may be: which block may be processed.
const (
	Confirmations = "confirmations" // the head less Config.Confirmations
	Safe          = "safe"          // what the node calls safe
	Finalized     = "finalized"     // what the node calls finalized
	Latest        = "latest"        // the head
)

// viewHold is how long a View stands after the last endpoint vouched for it. A node that lags
// must not turn the clock back; one that invented a head must not stop it.
const viewHold = time.Minute

// Config of a Source. Package config has checked what is set.
type Config struct {
	// URLs of the nodes, http, https, ws or wss; the first that works is used. Required.
	URLs []string
	// ChainID that every node must serve. Required.
	ChainID uint64
	// Finality: Confirmations, Safe, Finalized or Latest. Empty: Confirmations.
	Finality string
	// Confirmations is how many blocks must lie on top of one that is processed. Only with that Finality.
	Confirmations uint64
	// Agreement: Available or Strict, where there are several endpoints. Empty: Available.
	Agreement string
	// Proof: ProveNear, ProveAll, ProveWhole or ProveNone. Empty: ProveNear.
	Proof string
	// PollInterval is the longest pause between two looks at the head once a block is due, where the node
	// leaves it unannounced. Zero: 1 s.
	PollInterval time.Duration
	// Timeout of one request. Zero: 10 s.
	Timeout time.Duration
	// MaxRPS is how many requests per second an endpoint gets. Zero: what it is found to allow.
	MaxRPS float64
	// MaxRange is how many blocks one request asks for at most. Less is found out. Zero: 10,000.
	MaxRange uint64
	// MaxAddresses in one request. Zero: 1,000, geth's default limit.
	MaxAddresses int
	// MaxBytes bounds the answer to one request for the logs of a range. Zero: a sixteenth of this
	// source's share of Go's memory limit, 8 to 32 MB; 16 MB without a limit.
	MaxBytes int64
	// Sharing is how many sources share the memory of the process. Zero: one.
	Sharing int
	// Dial opens connections. Nil: the network.
	Dial rpc.Dial
	// Logger. Nil: none.
	Logger *slog.Logger
	// Registerer of the metrics. Nil: none.
	Registerer prometheus.Registerer
	// Rand gives numbers in [0,1) for jitter. Nil: math/rand.
	Rand func() float64
	// Now tells the time. Nil: time.Now.
	Now func() time.Time

	believeAfter time.Duration                              // shorter in tests
	wait         func(context.Context, time.Duration) error // for an endpoint that is paused; in tests by Now's clock
}

// complete sets what is not set.
func (c *Config) complete() {
	c.Finality = cmp.Or(c.Finality, Confirmations)
	c.Agreement = cmp.Or(c.Agreement, Available)
	c.Proof = cmp.Or(c.Proof, ProveNear)
	c.believeAfter = cmp.Or(c.believeAfter, believeAfter)
	c.PollInterval = cmp.Or(c.PollInterval, time.Second)
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
	c.MaxRange = cmp.Or(c.MaxRange, 10_000)
	c.MaxAddresses = cmp.Or(c.MaxAddresses, 1000)
	if c.MaxBytes == 0 {
		c.MaxBytes = answerLimit(debug.SetMemoryLimit(-1), max(c.Sharing, 1))
	}

	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}

	if c.Rand == nil {
		c.Rand = rand.Float64
	}

	if c.Now == nil {
		c.Now = time.Now
	}

	if c.wait == nil {
		c.wait = endpoint.Wait
	}
}

// tagsDecide reports whether the endpoints' tags decide what is processed.
func (c *Config) tagsDecide() bool { return c.Finality == Safe || c.Finality == Finalized }

// answerLimit is how large one answer may be where so much memory may be used, in bytes: several are in flight, and
// each is decoded as it comes.
func answerLimit(memory int64, sharing int) int64 {
	const least, usual, most = 8 << 20, 16 << 20, 32 << 20
	if memory > 1<<40 { // no limit is set
		return usual
	}

	return min(max(memory/16/int64(sharing), least), most)
}
