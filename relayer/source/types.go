package source

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
)

var (
	// ErrBehind means that no node that can be asked has the block yet. It says nothing about what is in the block.
	ErrBehind = errors.New("the node does not have the block yet")
	// ErrDisagree means that nodes, or two answers of one, contradict each other about a block: most often the chain moved while it was
	// being read. Asking again later decides.
	ErrDisagree = errors.New("nodes disagree about the block")
	// ErrWrongChain means that an endpoint serves another chain than CHAIN_ID.
	ErrWrongChain = errors.New("wrong chain")
	// ErrNoCode means that there is no contract at the factory's address.
	ErrNoCode = errors.New("no contract at the factory's address")
	// ErrUnavailable means that no endpoint can be asked now.
	ErrUnavailable = errors.New("no RPC endpoint is available")
	// errInvalid means that a node's answer is not an answer to the question.
	errInvalid = errors.New("invalid answer")
	// errGarbled is an errInvalid that cannot be read at all: cut off in transit, or a proxy's page. That passes, while a node
	// that answers legibly and wrongly is left alone for long.
	errGarbled = fmt.Errorf("garbled, %w", errInvalid)
)

// Header is what the relayer needs of a block's header. The hash is as the node gave it: chains differ in how they compute it.
type Header struct {
	Number       uint64
	Hash, Parent common.Hash
	Time         uint64 // unix, seconds
	Bloom        types.Bloom
}

// UnmarshalJSON takes a block as eth_getBlockByNumber and newHeads give it.
func (h *Header) UnmarshalJSON(b []byte) error {
	var j struct {
		Number     *hexutil.Uint64 `json:"number"`
		Hash       *common.Hash    `json:"hash"`
		ParentHash *common.Hash    `json:"parentHash"`
		Timestamp  *hexutil.Uint64 `json:"timestamp"`
		LogsBloom  *types.Bloom    `json:"logsBloom"` // some chains have none
	}
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	if j.Number == nil || j.Hash == nil || j.ParentHash == nil || j.Timestamp == nil {
		return errors.New("block lacks number, hash, parentHash or timestamp")
	}
	*h = Header{Number: uint64(*j.Number), Hash: *j.Hash, Parent: *j.ParentHash, Time: uint64(*j.Timestamp)}
	if j.LogsBloom != nil {
		h.Bloom = *j.LogsBloom
	}
	return nil
}

// View is how far the chain may be read.
type View struct {
	Head     uint64 // newest block that a healthy endpoint has
	Target   uint64 // newest block that may be processed
	Final    uint64 // blocks up to here do not change any more, and may be read by range; at most Target
	HeadTime time.Time
	Ready    bool // false until the first head
}

// Filter says which logs are wanted. It must not be changed after its first use, and its address is what results are remembered by: share
// a Filter to share its requests.
type Filter struct {
	Topics    []common.Hash    // topic0 is one of these; nil: any
	Addresses []common.Address // nil: any; empty: none

	once     sync.Once
	topics   map[common.Hash]struct{}
	emitters map[common.Address]struct{}
	mu       sync.Mutex
	chunk    int
	queries  []string // the fixed part of eth_getLogs' parameter, one for every chunk of addresses
}

func (f *Filter) prepare() {
	f.once.Do(func() {
		f.topics = make(map[common.Hash]struct{}, len(f.Topics))
		for _, t := range f.Topics {
			f.topics[t] = struct{}{}
		}
		f.emitters = make(map[common.Address]struct{}, len(f.Addresses))
		for _, a := range f.Addresses {
			f.emitters[a] = struct{}{}
		}
	})
}

// matches says whether a log is one that was asked for.
func (f *Filter) matches(l *types.Log) bool {
	if len(f.Topics) > 0 {
		if len(l.Topics) == 0 {
			return false
		}
		if _, ok := f.topics[l.Topics[0]]; !ok {
			return false
		}
	}
	if f.Addresses != nil {
		if _, ok := f.emitters[l.Address]; !ok {
			return false
		}
	}
	return true
}

// parts are the queries that together ask for everything, at most chunk addresses each.
func (f *Filter) parts(chunk int) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.queries != nil && f.chunk == chunk {
		return f.queries
	}
	topics := ""
	if len(f.Topics) > 0 {
		topics = `,"topics":[` + quoted(f.Topics) + `]`
	}
	queries := []string{}
	if f.Addresses == nil {
		queries = append(queries, topics)
	}
	for some := range slices.Chunk(f.Addresses, chunk) {
		queries = append(queries, topics+`,"address":`+quoted(some))
	}
	f.chunk, f.queries = chunk, queries
	return queries
}

func quoted[T interface{ Bytes() []byte }](list []T) string {
	var b strings.Builder
	for i, v := range list {
		b.WriteByte("[,"[min(i, 1)])
		b.WriteByte('"')
		b.WriteString(hexutil.Encode(v.Bytes()))
		b.WriteByte('"')
	}
	b.WriteByte(']')
	return b.String()
}

// Batch is what the chain has for a filter in a range of blocks. Logs may be shared with other readers: they are to be read only.
type Batch struct {
	From, To uint64
	Parent   common.Hash // of block From; zero when the blocks were read by range
	Logs     []types.Log // in the chain's order; BlockTimestamp is filled
	Last     Header      // of block To
	Filter   *Filter
}

// EndpointStatus is what an operator sees of an endpoint.
type EndpointStatus struct {
	Name      string // rpc0, rpc1, …: its position in RPC_URLS
	URL       string // scheme and host only
	Up        bool
	Head      uint64
	Latency   time.Duration // moving average of a request
	LastError string        // redacted; may be older than the last success; empty: there was none
}
