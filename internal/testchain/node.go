package testchain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/rpc"
)

// Node is a running chain. Its methods may be called concurrently, except Stop.
type Node interface {
	// HTTP and WS are the URLs of its JSON-RPC interface, for this and other processes.
	HTTP() string
	WS() string
	// Client asks the node over HTTP until Stop.
	Client() *ethclient.Client
	// ChainID of the chain, as in eth_chainId.
	ChainID() *big.Int
	// Accounts are funded: Options.Accounts of Options.Seed.
	Accounts() []Account
	// Mine makes n blocks. The first holds the transactions that wait, as far as they fit; nodes that
	// mine when a transaction comes have none waiting.
	Mine(ctx context.Context, n int) error
	// Stop ends the node. Its state is gone.
	Stop() error
}

// Fate of the transactions in blocks that a reorganisation replaces.
type Fate bool

// What becomes of the transactions of blocks that are taken back.
const (
	Drop Fate = false // they never happened
	Keep Fate = true  // they are sent again, in their order, and happen in other blocks
)

// Options of a node. The zero value will do.
type Options struct {
	// Seed and Accounts (zero: 10) determine the funded accounts.
	Seed     uint64
	Accounts int
	// ChainID. Zero: 1337. geth --dev knows no other.
	ChainID uint64
	// Interval mines a block at that pace. Zero: Sim mines on demand only, geth and anvil also
	// whenever a transaction comes. Nodes that are processes take whole seconds.
	Interval time.Duration
	// GasLimit of a block. Zero: the node's default, 30 to 60 million. Only Sim takes it.
	GasLimit uint64
}

func (o Options) withDefaults() Options {
	o.Accounts = cmp.Or(o.Accounts, 10)
	o.ChainID = cmp.Or(o.ChainID, 1337)

	return o
}

// rawTransactions returns the signed transactions of the newest depth blocks, by block, in order.
func rawTransactions(ctx context.Context, c *rpc.Client, depth int) ([][]hexutil.Bytes, error) {
	var head hexutil.Uint64
	if err := c.CallContext(ctx, &head, "eth_blockNumber"); err != nil {
		return nil, fmt.Errorf("read the head: %w", err)
	}

	if depth < 1 || uint64(depth) > uint64(head) {
		return nil, fmt.Errorf("replace %d blocks of %d: choose from 1 to %d", depth, head, head)
	}

	var raw [][]hexutil.Bytes
	for n := uint64(head) - uint64(depth) + 1; n <= uint64(head); n++ {
		var block struct{ Transactions []string }
		if err := c.CallContext(ctx, &block, "eth_getBlockByNumber", hexutil.Uint64(n), false); err != nil {
			return nil, fmt.Errorf("read block %d: %w", n, err)
		}

		batch := make([]rpc.BatchElem, len(block.Transactions))
		signed := make([]hexutil.Bytes, len(batch))
		for i, hash := range block.Transactions {
			batch[i] = rpc.BatchElem{Method: "eth_getRawTransactionByHash", Args: []any{hash}, Result: &signed[i]}
		}

		if err := call(ctx, c, batch); err != nil {
			return nil, fmt.Errorf("read the transactions of block %d: %w", n, err)
		}

		raw = append(raw, signed)
	}

	return raw, nil
}

// send sends signed transactions and returns when the node has taken them all.
func send(ctx context.Context, c *rpc.Client, raw []hexutil.Bytes) error {
	batch := make([]rpc.BatchElem, len(raw))
	for i, tx := range raw {
		batch[i] = rpc.BatchElem{Method: "eth_sendRawTransaction", Args: []any{tx}, Result: new(string)}
	}

	return call(ctx, c, batch)
}

// batchSize is the most calls in a request: a tenth of geth's default limit, for the sake of its
// limit on the answer's size.
const batchSize = 100

// call makes the calls, in order, in as few requests as the node allows, and returns all of their errors.
func call(ctx context.Context, c *rpc.Client, batch []rpc.BatchElem) error {
	var errs []error
	for len(batch) > 0 {
		part := batch[:min(batchSize, len(batch))]
		batch = batch[len(part):]
		if err := c.BatchCallContext(ctx, part); err != nil {
			return errors.Join(append(errs, err)...)
		}

		for i, e := range part {
			if tooLarge(e.Error) && len(part) > 1 { // and so are those after it
				rest := part[i:]
				for j := range rest {
					rest[j].Error = nil
				}

				half := (len(rest) + 1) / 2

				return errors.Join(append(errs, call(ctx, c, rest[:half]), call(ctx, c, rest[half:]), call(ctx, c, batch))...)
			}

			if e.Error != nil {
				errs = append(errs, fmt.Errorf("%s: %w", e.Method, e.Error))
			}
		}
	}

	return errors.Join(errs...)
}

// tooLarge is geth's refusal of what would make the answer to a batch longer than 25 MB.
func tooLarge(err error) bool {
	const code = -32003
	var e rpc.Error
	return errors.As(err, &e) && e.ErrorCode() == code && strings.Contains(e.Error(), "too large")
}
