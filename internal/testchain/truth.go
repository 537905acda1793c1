package testchain

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
)

// Entry is one event of an escrow.
type Entry struct {
	ID     string // {tx_hash}:{log_index}
	Name   string // ABI name
	Escrow common.Address
	Args   map[string]string // by ABI name, as text: addresses with their checksum, integers in decimal
	Log    *types.Log
}

// arguments of an event.
func arguments(l *types.Log) (map[string]string, error) {
	event, args := events[l.Topics[0]], map[string]any{}
	if err := event.Inputs.UnpackIntoMap(args, l.Data); err != nil {
		return nil, fmt.Errorf("read the arguments of %s:%d: %w", l.TxHash, l.Index, err)
	}

	var indexed abi.Arguments
	for _, in := range event.Inputs {
		if in.Indexed {
			indexed = append(indexed, in)
		}
	}

	if err := abi.ParseTopicsIntoMap(args, indexed, l.Topics[1:]); err != nil {
		return nil, fmt.Errorf("read the indexed arguments of %s:%d: %w", l.TxHash, l.Index, err)
	}

	text := map[string]string{}
	for name, value := range args {
		text[name] = fmt.Sprint(value)
	}

	return text, nil
}

// Truth is what happened according to one node, at one moment.
type Truth struct {
	To      uint64           // newest block read
	Hash    common.Hash      // of that block
	Escrows []common.Address // in the order in which they were announced
	// by escrow, in the order of the chain: EscrowCreated is the first, EscrowDeployed the second
	Events map[common.Address][]Entry
}

// IDs returns the ids of an escrow's events that have one of the names (none given: any), in the order of the chain.
func (t *Truth) IDs(escrow common.Address, names ...string) []string {
	var ids []string
	for _, e := range t.Events[escrow] {
		if len(names) == 0 || slices.Contains(names, e.Name) {
			ids = append(ids, e.ID)
		}
	}

	return ids
}

// Count is the number of events, of all escrows, that have one of the names (none given: any).
func (t *Truth) Count(names ...string) (n int) {
	for escrow := range t.Events {
		n += len(t.IDs(escrow, names...))
	}

	return n
}

// ReadTruth reads the blocks from to to, both included, of a node: every receipt of every
// block, rather than eth_getLogs with some filter, so that it shares no mistake with the relayer.
// It answers with the events of the escrows that these factories announced. The chain should stand
// still meanwhile: a reorganisation is noticed, and an error.
func ReadTruth(ctx context.Context, node *ethclient.Client, from, to uint64, factories ...common.Address) (*Truth,
	error) {
	logs, hash, err := readLogs(ctx, node.Client(), from, to)
	if err != nil {
		return nil, err
	}

	t := &Truth{To: to, Hash: hash, Events: map[common.Address][]Entry{}}
	for _, l := range logs {
		if eventName(l) == "EscrowDeployed" && slices.Contains(factories, l.Address) {
			escrow := common.BytesToAddress(l.Topics[1][:])
			t.Escrows = append(t.Escrows, escrow)
			t.Events[escrow] = nil
		}
	}

	for _, l := range logs { // once more, since EscrowCreated comes before the announcement
		escrow, name := l.Address, eventName(l)
		if name == "EscrowDeployed" && slices.Contains(factories, l.Address) {
			escrow = common.BytesToAddress(l.Topics[1][:])
		}

		if _, ours := t.Events[escrow]; ours && name != "" {
			args, err := arguments(l)
			if err != nil {
				return nil, err
			}

			t.Events[escrow] = append(t.Events[escrow], Entry{
				ID: fmt.Sprintf("%s:%d", l.TxHash, l.Index), Name: name, Escrow: escrow, Args: args, Log: l,
			})
		}
	}

	return t, nil
}

// readLogs returns every log of the blocks, in order, and the last block's hash.
func readLogs(ctx context.Context, c *rpc.Client, from, to uint64) (logs []*types.Log, parent common.Hash, err error) {
	const window = batchSize / 2 // two calls a block
	for start := from; start <= to; start += window {
		n := min(window, to-start+1)
		headers, receipts, err := readBlocks(ctx, c, start, n)
		if err != nil {
			return nil, parent, fmt.Errorf("read %d blocks from %d: %w", n, start, err)
		}

		for i, h := range headers {
			number := start + uint64(i)
			if h == nil {
				return nil, parent, fmt.Errorf("read block %d: the node does not have it", number)
			}

			if number > from && h.ParentHash != parent {
				return nil, parent, fmt.Errorf("read block %d: the chain changed meanwhile", number)
			}

			parent = h.Hash
			for _, r := range receipts[i] {
				if r.BlockHash != h.Hash {
					return nil, parent, fmt.Errorf("read the receipts of block %d: the chain changed meanwhile", number)
				}

				logs = append(logs, r.Logs...)
			}
		}
	}

	return logs, parent, nil
}

type header struct{ Hash, ParentHash common.Hash }

func readBlocks(ctx context.Context, c *rpc.Client, start, n uint64) ([]*header, [][]*types.Receipt, error) {
	headers, receipts := make([]*header, n), make([][]*types.Receipt, n)
	var batch []rpc.BatchElem
	for i := range n {
		number := hexutil.Uint64(start + i)
		batch = append(batch,
			rpc.BatchElem{Method: "eth_getBlockByNumber", Args: []any{number, false}, Result: &headers[i]},
			rpc.BatchElem{Method: "eth_getBlockReceipts", Args: []any{number}, Result: &receipts[i]})
	}

	return headers, receipts, call(ctx, c, batch)
}

// events are the topics of the escrow system, the older EscrowDeployed included.
var events = func() map[common.Hash]abi.Event {
	m := map[common.Hash]abi.Event{}
	for _, data := range []string{contracts.EscrowMetaData.ABI, contracts.EscrowFactoryMetaData.ABI,
		contracts.LegacyEscrowFactoryMetaData.ABI} {
		parsed, err := abi.JSON(strings.NewReader(data))
		if err != nil {
			panic(fmt.Sprintf("parse the ABI in the bindings: %v", err))
		}

		for _, e := range parsed.Events {
			m[e.ID] = e
		}
	}

	return m
}()

// eventName is empty for logs that are not of the escrow system, or look like it and have another
// number of indexed arguments.
func eventName(l *types.Log) string {
	if len(l.Topics) == 0 {
		return ""
	}

	e, ok := events[l.Topics[0]]
	if !ok || len(l.Topics) != 1+len(e.Inputs)-len(e.Inputs.NonIndexed()) {
		return ""
	}

	return e.Name
}
