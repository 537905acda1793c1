package send

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/relayer/source"
)

// Caller reaches the nodes: a *source.Source.
type Caller interface {
	View() source.View
	Changed() <-chan struct{}
	Call(ctx context.Context, method string, params ...any) (json.RawMessage, error)
	CallEach(ctx context.Context, method string, params ...any) ([]source.Answer, error)
}

// Nodes is a Chain behind JSON-RPC.
type Nodes struct {
	caller  Caller
	minTip  *big.Int
	abreast int // requests at once
}

// MinTip is what nodes want at least on top of the base fee, in wei per gas: geth's miner takes
// nothing below by default.
var MinTip = big.NewInt(1_000_000)

// NewNodes asks by caller. minTip, in wei per gas, is offered at least on top of the base fee.
func NewNodes(caller Caller, minTip *big.Int) *Nodes {
	return &Nodes{caller: caller, minTip: minTip, abreast: 16}
}

// View is how far the chain may be read.
func (n *Nodes) View() View {
	v := n.caller.View()
	return View{Head: v.Head, Target: v.Target, Ready: v.Ready}
}

// Changed is closed when View may have changed.
func (n *Nodes) Changed() <-chan struct{} { return n.caller.Changed() }

// get asks one node and decodes its result.
func (n *Nodes) get(ctx context.Context, to any, method string, params ...any) error {
	raw, err := n.caller.Call(ctx, method, params...)
	if err != nil {
		return err
	}

	if err := json.Unmarshal(raw, to); err != nil {
		return fmt.Errorf("call %s: the answer cannot be read: %w", method, err)
	}

	return nil
}

type header struct {
	Number    hexutil.Uint64 `json:"number"`
	Hash      common.Hash    `json:"hash"`
	Timestamp hexutil.Uint64 `json:"timestamp"`
}

// header reads a block by number; nil where the chain does not reach so far.
func (n *Nodes) header(ctx context.Context, number uint64) (*header, error) {
	var h *header
	if err := n.get(ctx, &h, "eth_getBlockByNumber", hexutil.Uint64(number), false); err != nil {
		return nil, err
	}

	if h != nil && (uint64(h.Number) != number || h.Hash == (common.Hash{})) {
		return nil, fmt.Errorf("read block %d: the node answered with block %d", number, h.Number)
	}

	return h, nil
}

// Look is Chain's.
func (n *Nodes) Look(ctx context.Context, account common.Address, target, checked uint64,
	everyone bool) (look Look, err error) {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(n.abreast)
	look.Balance = new(big.Int)
	g.Go(func() error { return n.nonces(ctx, account, &look.Latest, everyone, slices.Max[[]uint64], "latest") })
	g.Go(func() error { return n.nonces(ctx, account, &look.Pending, everyone, slices.Max[[]uint64], "pending") })
	g.Go(func() error {
		return n.nonces(ctx, account, &look.Final, everyone, slices.Min[[]uint64], hexutil.Uint64(target))
	})
	g.Go(func() error {
		var balance hexutil.Big
		err := n.get(ctx, &balance, "eth_getBalance", account, "latest")
		look.Balance = balance.ToInt()

		return err
	})
	g.Go(func() error {
		h, err := n.header(ctx, target)
		if err == nil && h == nil {
			err = fmt.Errorf("read block %d: the node does not have it", target)
		}

		if err == nil {
			look.TargetHash = h.Hash
		}

		return err
	})
	if checked > 0 {
		g.Go(func() error {
			h, err := n.header(ctx, checked)
			if h != nil {
				look.CheckedHash = h.Hash
			}

			return err
		})
	}

	if everyone {
		g.Go(func() error {
			var code hexutil.Bytes
			err := n.get(ctx, &code, "eth_getCode", account, "latest")
			look.Delegated = len(code) > 0

			return err
		})
	}

	if err := g.Wait(); err != nil {
		return look, fmt.Errorf("look at sender %s: %w", account, err)
	}

	return look, nil
}

// nonces reads an account's nonce from one node, or what choose makes of the answers of all that answer.
func (n *Nodes) nonces(ctx context.Context, account common.Address, to *uint64, everyone bool,
	choose func([]uint64) uint64, at any) error {
	if !everyone {
		var nonce hexutil.Uint64
		err := n.get(ctx, &nonce, "eth_getTransactionCount", account, at)
		*to = uint64(nonce)

		return err
	}

	answers, err := n.caller.CallEach(ctx, "eth_getTransactionCount", account, at)
	if err != nil {
		return err
	}

	var known []uint64
	var errs []error
	for _, a := range answers {
		var nonce hexutil.Uint64
		if a.Err != nil {
			errs = append(errs, a.Err)
		} else if err := json.Unmarshal(a.Result, &nonce); err != nil {
			errs = append(errs, err)
		} else {
			known = append(known, uint64(nonce))
		}
	}

	if len(known) == 0 {
		return fmt.Errorf("no node says the nonce: %w", errors.Join(errs...))
	}

	*to = choose(known)

	return nil
}

// Simulate is Chain's.
func (n *Nodes) Simulate(ctx context.Context, target uint64, calls []Call) ([]Simulation, error) {
	all := make([]Simulation, len(calls))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(n.abreast)
	for i, c := range calls {
		g.Go(func() (err error) {
			all[i], err = n.simulate(ctx, target, c)
			return err
		})
	}

	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("simulate: %w", err)
	}

	return all, nil
}

func (n *Nodes) simulate(ctx context.Context, target uint64, c Call) (s Simulation, err error) {
	var code, output hexutil.Bytes
	if err := n.get(ctx, &code, "eth_getCode", c.To, hexutil.Uint64(target)); err != nil {
		return s, err
	}

	if len(code) == 0 && len(c.Data) > 0 {
		return Simulation{NoCode: true}, nil
	}

	tx := map[string]any{"from": c.From, "to": c.To, "value": (*hexutil.Big)(c.Value), "data": hexutil.Bytes(c.Data)}
	if s.Reverts, err = reverted(n.get(ctx, &output, "eth_call", tx, hexutil.Uint64(target))); err != nil ||
		s.Reverts != nil {
		return s, err
	}

	var gas hexutil.Uint64
	s.Reverts, err = reverted(n.get(ctx, &gas, "eth_estimateGas", tx, "latest"))
	s.Output, s.Gas, s.AtHead = output, uint64(gas), s.Reverts != nil

	return s, err
}

// reverted tells a contract's refusal from a failure to ask.
func reverted(err error) (*Revert, error) {
	fault, is := errors.AsType[*source.NodeError](err)
	if !is {
		return nil, err
	}

	var data hexutil.Bytes
	if json.Unmarshal(fault.Data, &data) == nil && len(data) > 0 {
		return &Revert{Reason: decodeRevert(data)}, nil
	}

	text := strings.ToLower(fault.Message)
	if fault.Code == 3 || strings.Contains(text, "revert") || strings.Contains(text, "insufficient funds") ||
		strings.Contains(text, "gas required exceeds") {
		return &Revert{Reason: fault.Message[:min(len(fault.Message), maxReason)]}, nil
	}

	return nil, err
}

// feeBlocks is over how many blocks the tip is the median.
const feeBlocks = 10

// Fees is Chain's: from the fee history, or the gas price of a chain that has none.
func (n *Nodes) Fees(ctx context.Context) (Fees, error) {
	var history struct {
		Base   []*hexutil.Big   `json:"baseFeePerGas"`
		Reward [][]*hexutil.Big `json:"reward"`
	}
	err := n.get(ctx, &history, "eth_feeHistory", hexutil.Uint64(feeBlocks), "latest", []float64{50})
	if err == nil && len(history.Base) > 0 && history.Base[len(history.Base)-1] != nil &&
		history.Base[len(history.Base)-1].ToInt().Sign() > 0 {
		var tips []*big.Int
		for _, r := range history.Reward {
			if len(r) > 0 && r[0] != nil && r[0].ToInt().Sign() > 0 { // empty blocks say 0
				tips = append(tips, r[0].ToInt())
			}
		}

		tip := n.minTip
		var suggested hexutil.Big
		if len(tips) > 0 {
			slices.SortFunc(tips, (*big.Int).Cmp)
			tip = larger(tips[len(tips)/2], n.minTip)
		} else if n.get(ctx, &suggested, "eth_maxPriorityFeePerGas") == nil { // not every node has it
			tip = larger(suggested.ToInt(), n.minTip)
		}

		return Fees{Base: history.Base[len(history.Base)-1].ToInt(), Tip: tip}, nil
	}

	if _, is := errors.AsType[*source.NodeError](err); err != nil && !is {
		return Fees{}, fmt.Errorf("read the fees: %w", err)
	}

	var gasPrice hexutil.Big
	if err := n.get(ctx, &gasPrice, "eth_gasPrice"); err != nil {
		return Fees{}, fmt.Errorf("read the gas price: %w", err)
	}

	return Fees{Tip: larger(gasPrice.ToInt(), big.NewInt(1))}, nil
}

type receipt struct {
	TransactionHash   common.Hash     `json:"transactionHash"`
	BlockNumber       *hexutil.Uint64 `json:"blockNumber"`
	BlockHash         common.Hash     `json:"blockHash"`
	Status            *hexutil.Uint64 `json:"status"`
	GasUsed           hexutil.Uint64  `json:"gasUsed"`
	EffectiveGasPrice *hexutil.Big    `json:"effectiveGasPrice"`
	L1Fee             *hexutil.Big    `json:"l1Fee"` // of rollups
	Logs              []struct {
		Address  common.Address `json:"address"`
		Topics   []common.Hash  `json:"topics"`
		LogIndex hexutil.Uint   `json:"logIndex"`
	} `json:"logs"`
}

// Receipts is Chain's. A receipt counts if the block at its height has its hash, as read afterwards.
func (n *Nodes) Receipts(ctx context.Context, target uint64, hashes []common.Hash) ([]*Receipt, error) {
	all := make([]*Receipt, len(hashes))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(n.abreast)
	for i, hash := range hashes {
		g.Go(func() (err error) {
			all[i], err = n.receipt(ctx, target, hash)
			return err
		})
	}

	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("read receipts: %w", err)
	}

	return all, nil
}

func (n *Nodes) receipt(ctx context.Context, target uint64, hash common.Hash) (*Receipt, error) {
	var r *receipt
	if err := n.get(ctx, &r, "eth_getTransactionReceipt", hash); err != nil || r == nil {
		return nil, err
	}

	if r.TransactionHash != hash || r.BlockNumber == nil || r.Status == nil || *r.Status > 1 {
		return nil, fmt.Errorf("the receipt of %s: the answer is not one", hash)
	}

	block := uint64(*r.BlockNumber)
	if block > target {
		return nil, nil
	}

	h, err := n.header(ctx, block)
	if err != nil || h == nil || h.Hash != r.BlockHash {
		return nil, err // of a block that was replaced, or nodes disagree: it is asked again
	}

	got := &Receipt{Hash: hash, Block: block, BlockHash: r.BlockHash, Time: uint64(h.Timestamp),
		Succeeded: *r.Status == 1, FeePaid: new(big.Int)}
	if r.EffectiveGasPrice != nil {
		got.FeePaid.Mul(r.EffectiveGasPrice.ToInt(), new(big.Int).SetUint64(uint64(r.GasUsed)))
	}

	if r.L1Fee != nil {
		got.FeePaid.Add(got.FeePaid, r.L1Fee.ToInt())
	}

	for _, l := range r.Logs {
		got.Logs = append(got.Logs, Log{Address: l.Address, Topics: l.Topics, Index: uint(l.LogIndex)})
	}

	return got, nil
}

// Hashes is Chain's.
func (n *Nodes) Hashes(ctx context.Context, numbers []uint64) ([]common.Hash, error) {
	all := make([]common.Hash, len(numbers))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(n.abreast)
	for i, number := range numbers {
		g.Go(func() error {
			h, err := n.header(ctx, number)
			if h != nil {
				all[i] = h.Hash
			}

			return err
		})
	}

	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("read block hashes: %w", err)
	}

	return all, nil
}

// Broadcast is Chain's.
func (n *Nodes) Broadcast(ctx context.Context, raws [][]byte) [][]error {
	all := make([][]error, len(raws))
	var g errgroup.Group
	g.SetLimit(n.abreast)
	for i, raw := range raws { // in order of their nonces, as far as several at once have one
		g.Go(func() error {
			answers, err := n.caller.CallEach(ctx, "eth_sendRawTransaction", hexutil.Bytes(raw))
			if err != nil {
				all[i] = []error{err}
				return nil
			}

			for _, a := range answers {
				all[i] = append(all[i], heard(a.Err))
			}

			return nil
		})
	}

	_ = g.Wait() // each has its own result

	return all
}

// What nodes say to a transaction. Collected from geth, erigon, nethermind, besu, reth and anvil.
var (
	knownWords = []string{"already known", "known transaction", "already imported", "alreadyknown", "already in pool",
		"already exists", "transaction already"}
	underWords = []string{"underpriced", "fee too low", "feetoolow", "max fee per gas less than block base fee",
		"gas price too low", "less than block base fee", "below base fee"}
	neverWords = []string{
		"intrinsic gas too low", "exceeds block gas limit", "invalid sender", "oversized data",
		"transaction type not supported", "invalid chain id", "tip higher than",
		"max priority fee per gas higher", "exceeds the configured cap", "gas limit too high", "transaction gas limit",
		"only replay-protected", "floor data gas",
	}
)

// heard says what a node's answer means. Nil: it has the transaction.
func heard(err error) error {
	fault, is := errors.AsType[*source.NodeError](err)
	if !is {
		return err
	}

	text := strings.ToLower(fault.Message)
	contains := func(words []string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
	}
	switch {
	case contains(knownWords):
		return nil
	case contains(neverWords):
		return fmt.Errorf("%w: %w", ErrRefused, err)
	case contains(underWords):
		return fmt.Errorf("%w: %w", ErrUnderpriced, err)
	}

	return err
}
