package endpoint

import (
	"errors"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
	"github.com/fusion-prime/escrow-relayer/relayer/redact"
)

var (
	// ErrWrongChain means that an endpoint serves another chain than CHAIN_ID.
	ErrWrongChain = errors.New("wrong chain")
	// ErrDisagree means that nodes, or two answers of one, contradict each other about a block: most
	// often the chain moved while it was being read. Asking again later decides.
	ErrDisagree = errors.New("nodes disagree about the block")
	// ErrNoHistory means that a node keeps nothing of so old a block. An archive node does.
	ErrNoHistory = errors.New("history is not available")
	// ErrAddressRequired means that a node gives logs only of contracts that are named.
	ErrAddressRequired = errors.New("it gives logs of named contracts only: set LOG_FILTER=addresses")
)

// smallAnswer and blockAnswer bound answers, in bytes: headers, and the logs of a single block, which
// cannot be asked for in parts. Of those larger than Config.MaxBytes one is read at a time.
const smallAnswer, blockAnswer = 8 << 20, 256 << 20

// Config of a Node. All fields are required but MaxRPS, Dial, Large and Accused.
type Config struct {
	Name         string // as operators see it, without secrets
	URL          string
	Dial         rpc.Dial            // nil: the network
	Large        *semaphore.Weighted // is held while an answer with more than MaxBytes is read; nil: one of its own
	ChainID      uint64
	Timeout      time.Duration // of one request
	MaxRPS       float64       // requests per second; 0: no limit of ours
	MaxRange     uint64        // blocks per request
	MaxAddresses int           // per request
	MaxBytes     int64         // of one answer with the logs of a range
	Log          *slog.Logger
	Secrets      *redact.Secrets
	Metrics      *Metrics
	Accused      func() // is called after each new Fault; nil: faults are not stored
	Laws         *Laws
	Rand         func() float64 // in [0,1), for jitter
	Now          func() time.Time
}

func (c *Config) webSocket() bool {
	return strings.HasPrefix(strings.ToLower(c.URL), "ws")
}
