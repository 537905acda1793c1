// Package evm is what a sender of commands asks of the nodes, and what it sends them: an account's nonces, what a call
// would do, receipts, who has used a nonce, fees, and signed transactions. Nodes may lie, lag and forget: each answer
// is checked against its question, and what one node says alone is put to everyone before it ends anything.
package evm

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/column"
)

// Caller reaches the nodes: a *chain.Source.
type Caller interface {
	View() chain.View
	Changed() <-chan struct{}
	CallBatch(ctx context.Context, requests ...chain.Request) ([]chain.Answer, error)
	CallEach(ctx context.Context, method string, params ...any) ([]chain.Answer, error)
	Canonical(ctx context.Context, n uint64, known common.Hash) (chain.Header, error)
	Offer(ctx context.Context, raw []byte) error
	Endpoints() []chain.EndpointStatus
}

// Nodes is a send.Chain behind JSON-RPC. The fees are the same for every sender: the first that wants those of a view
// asks, and the others wait for its answer. A View leaves its branch open, so nothing that is compared with what is
// stored is shared in this way: a block's hash from before a reorganisation would hide it for ever.
type Nodes struct {
	caller Caller
	mu     sync.Mutex // of the two below
	feesOf View       // not Ready: nobody has asked yet
	fees   Fees
}

// minTip is what nodes want at least on top of the base fee, in wei per gas: geth's miner takes
// that much by default.
var minTip = big.NewInt(1_000_000)

// requestsAtOnce is how many requests of one kind are under way at the same time.
const requestsAtOnce = 16

// NewNodes asks by caller.
func NewNodes(caller Caller) *Nodes {
	return &Nodes{caller: caller}
}

// View is how far the chain may be read.
func (n *Nodes) View() View {
	v := n.caller.View()
	return View{Head: v.Head, Target: v.Target, Ready: v.Ready}
}

// Changed is closed when View may have changed.
func (n *Nodes) Changed() <-chan struct{} { return n.caller.Changed() }

// question is a request, and the node's refusal of it.
type question struct {
	chain.Request
	err error
}

func about(to any, method string, params ...any) *question {
	return &question{Request: chain.Request{Method: method, Params: params, To: to}}
}

// checked is a question of which another node is asked where check refuses the answer.
func (q *question) checked(check func() error) *question {
	q.Check = check
	return q
}

// ask puts questions to one node, in one request. The error is about all of them.
func (n *Nodes) ask(ctx context.Context, all ...*question) error {
	requests := make([]chain.Request, len(all))
	for i, q := range all {
		requests[i] = q.Request
	}

	answers, err := n.caller.CallBatch(ctx, requests...)
	if err != nil {
		return err
	}

	for i, q := range all {
		if q.err = answers[i].Err; q.err != nil {
			q.err = fmt.Errorf("call %s: %w", q.Method, q.err)
		}
	}

	return nil
}

// quantity is a number as nodes write it: hexadecimal after 0x or decimal, in a string or not, with leading
// zeros or without. What is below zero, as some rewards of a fee history are, counts as zero.
type quantity struct{ n *big.Int }

// maxDigits is as many as the largest uint256 has in decimal.
const maxDigits = 78

// UnmarshalJSON is json's.
func (q *quantity) UnmarshalJSON(text []byte) error {
	digits := strings.Trim(string(text), `"`)
	if digits == "null" {
		q.n = nil
		return nil
	}

	digits, negative := strings.CutPrefix(digits, "-")
	base := 10
	if hex, is := strings.CutPrefix(strings.ToLower(digits), "0x"); is {
		digits, base = cmp.Or(hex, "0"), 16
	}

	n, ok := new(big.Int).SetString(digits[:min(len(digits), maxDigits+1)], base)
	if !ok || n.BitLen() > 256 || len(digits) > maxDigits || n.Sign() < 0 {
		return fmt.Errorf("%.40q is no number", digits)
	}

	if negative {
		n.SetInt64(0)
	}

	q.n = n

	return nil
}

// big is the number; 0 where there was none.
func (q quantity) big() *big.Int {
	if q.n == nil {
		return new(big.Int)
	}

	return q.n
}

// uint64 is the number, or the largest that a column of the database takes.
func (q quantity) uint64() uint64 {
	if n := q.big(); n.IsInt64() {
		return n.Uint64()
	}

	return math.MaxInt64
}

// askAll is ask where every question needs its answer.
func (n *Nodes) askAll(ctx context.Context, all ...*question) error {
	if err := n.ask(ctx, all...); err != nil {
		return err
	}

	for _, q := range all {
		if q.err != nil {
			return q.err
		}
	}

	return nil
}

type header struct {
	Number quantity    `json:"number"`
	Hash   common.Hash `json:"hash"`
}

const transactionCount = "eth_getTransactionCount"

// Latest is send.Chain's.
func (n *Nodes) Latest(ctx context.Context, account common.Address, before uint64, branch Block) (uint64, error) {
	var nonce quantity
	err := n.askAll(ctx, about(&nonce, transactionCount, account, "latest"))
	if err == nil && nonce.uint64() > before {
		err = n.askAll(ctx, about(&nonce, transactionCount, account, "latest"), stands(branch))
	}

	return nonce.uint64(), err
}

// stands asks whether a node is on a branch; of one that is not, nothing that is asked with it is an answer.
func stands(branch Block) *question {
	var shown *header

	return about(&shown, "eth_getBlockByNumber", hexutil.Uint64(branch.Number), false).checked(func() error {
		if !branch.is(shown) {
			return branch.elsewhere()
		}

		return nil
	})
}

// Look is send.Chain's.
func (n *Nodes) Look(ctx context.Context, account common.Address, target uint64, everyone bool) (look Look, err error) {
	if err := n.account(ctx, account, target, &look); err != nil {
		return look, fmt.Errorf("look at sender %s: %w", account, err)
	}

	if everyone {
		n.everyNonce(ctx, account, target, &look)
	}

	return look, nil
}

// account reads an account from one node, in one request. A node may lack the tag pending, or the state after the
// target: the rest counts.
func (n *Nodes) account(ctx context.Context, account common.Address, target uint64, look *Look) error {
	var balance, latest, pending, final quantity
	pool := about(&pending, transactionCount, account, "pending")
	past := about(&final, transactionCount, account, hexutil.Uint64(target))
	questions := []*question{about(&balance, "eth_getBalance", account, "latest"),
		about(&latest, transactionCount, account, "latest"), past, pool}
	if err := n.ask(ctx, questions...); err != nil {
		return err
	}

	for _, q := range questions {
		if q.err != nil && q != pool && q != past {
			return q.err
		}
	}

	look.Balance, look.Stateless = balance.big(), past.err != nil
	look.Latest, look.Pending, look.Final = latest.uint64(), pending.uint64(), final.uint64()

	return nil
}

// everyone puts questions to every endpoint, and with them which block it has at a height: one that does not answer, or
// is on another branch, says nothing, which is an error in what it says. The answers are by question, and of each in
// the order of the endpoints.
func (n *Nodes) everyone(ctx context.Context, at any, branch Block, all ...*question) [][]chain.Answer {
	all = append(slices.Clip(all), about(nil, "eth_getBlockByNumber", at, false))
	said := make([][]chain.Answer, len(all))
	var g errgroup.Group
	g.SetLimit(requestsAtOnce)
	for i, q := range all {
		g.Go(func() error {
			said[i], _ = n.caller.CallEach(ctx, q.Method, q.Params...) // each has its own error
			return nil
		})
	}

	_ = g.Wait()
	last := len(all) - 1
	for i := range said[last] {
		if h, err := decode[*header](said[last][i]); err != nil || !branch.is(h) {
			for _, answers := range said {
				answers[i].Err = cmp.Or(err, branch.elsewhere())
			}
		}
	}

	return said[:last]
}

// othersWithin is how long the endpoints may take to say what they make of another one's answer: a round waits no
// longer for those that hang.
const othersWithin = 2 * time.Second

// others has every endpoint say what it makes of another one's answer. A single endpoint is not asked again, nor is one
// beside others that are out of use.
func (n *Nodes) others(ctx context.Context, at any, branch Block, all ...*question) [][]chain.Answer {
	endpoints := n.caller.Endpoints()
	up := slices.DeleteFunc(slices.Clone(endpoints), func(e chain.EndpointStatus) bool { return !e.Up })
	switch {
	case len(all) == 0, len(endpoints) == 1:
		return make([][]chain.Answer, len(all))
	case len(up) < 2:
		return slices.Repeat([][]chain.Answer{{{Err: ErrSilent}}}, len(all))
	}

	ctx, cancel := context.WithTimeout(ctx, othersWithin)
	defer cancel()

	return n.everyone(ctx, at, branch, all...)
}

// decode is what an endpoint's answer is, or why it has none.
func decode[T any](a chain.Answer) (to T, err error) {
	if err = a.Err; err == nil {
		err = json.Unmarshal(a.Result, &to)
	}

	return to, err
}

// everyNonce adds what every node that answers says of an account's nonces: the highest ones now, and the lowest one
// after the target.
func (n *Nodes) everyNonce(ctx context.Context, account common.Address, target uint64, look *Look) {
	said := n.everyone(ctx, "latest", Block{}, about(nil, transactionCount, account, "latest"),
		about(nil, transactionCount, account, "pending"), about(nil, transactionCount, account, hexutil.Uint64(target)))
	look.Agreed = true
	for i := range said[0] {
		latest, silent := decode[quantity](said[0][i])
		pending, _ := decode[quantity](said[1][i]) // some never tell
		final, stateless := decode[quantity](said[2][i])
		look.Silent, look.Agreed = look.Silent || silent != nil, look.Agreed && stateless == nil
		look.Latest, look.Pending = max(look.Latest, latest.uint64()), max(look.Pending, pending.uint64())
		if stateless == nil && (look.Stateless || final.uint64() < look.Final) {
			look.Final, look.Stateless = final.uint64(), false
		}
	}
}

// callsAtOnce is how many calls are tried in one request.
const callsAtOnce = 8

// Simulate is send.Chain's.
func (n *Nodes) Simulate(ctx context.Context, target Block, calls []Call) ([]Simulation, error) {
	all := make([]Simulation, len(calls))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(requestsAtOnce)
	for from := 0; from < len(calls); from += callsAtOnce {
		to := min(from+callsAtOnce, len(calls))
		g.Go(func() error { return n.apart(ctx, target, calls[from:to], all[from:to]) })
	}

	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("simulate: %w", err)
	}

	return all, nil
}

// apart tries calls at the target. Where no node tells of that, as full nodes keep the state after some 128 blocks, it
// tries them at the head, and what it says stays provisional; where that fails too, each alone: whoever is called
// decides how long that takes a node.
func (n *Nodes) apart(ctx context.Context, target Block, calls []Call, all []Simulation) error {
	err := n.try(ctx, &target, calls, all)
	if err != nil && !errors.Is(err, ErrBranch) {
		err = n.try(ctx, nil, calls, all)
	}

	switch {
	case err == nil || errors.Is(err, ErrBranch):
		return err
	case len(calls) == 1:
		all[0] = Simulation{Failed: err}
		return nil
	}

	var g errgroup.Group
	for i := range calls {
		g.Go(func() error { return n.apart(ctx, target, calls[i:i+1], all[i:i+1]) })
	}

	return g.Wait()
}

// transaction is a call as nodes take it.
func (c *Call) transaction() map[string]any {
	return map[string]any{"from": c.From, "to": c.To, "value": (*hexutil.Big)(c.Value), "data": hexutil.Bytes(c.Data)}
}

// priced is transaction with what will be offered for it: a contract sees what is paid, and may refuse it.
func (c *Call) priced() map[string]any {
	tx := c.transaction()
	switch {
	case c.Tip != nil:
		tx["maxFeePerGas"], tx["maxPriorityFeePerGas"] = (*hexutil.Big)(c.Cap), (*hexutil.Big)(c.Tip)
	case c.Cap != nil:
		tx["gasPrice"] = (*hexutil.Big)(c.Cap)
	}

	return tx
}

// try tries calls at the target, nil: at the head, and estimates their gas at the head, in one request. In it the node
// shows that it has the target, and the state after it: it may refuse a call in whatever words.
func (n *Nodes) try(ctx context.Context, target *Block, calls []Call, all []Simulation) error {
	shown, at := about(nil, "eth_blockNumber"), any("latest")
	if target != nil {
		shown, at = stands(*target), hexutil.Uint64(target.Number)
	}

	state := about(nil, "eth_getBalance", calls[0].From, at)
	outputs, gas := make([]hexutil.Bytes, len(calls)), make([]quantity, len(calls))
	tried, estimated := make([]*question, len(calls)), make([]*question, len(calls))
	for i, c := range calls {
		tried[i] = about(&outputs[i], "eth_call", c.transaction(), at)
		estimated[i] = about(&gas[i], "eth_estimateGas", c.priced(), "latest")
	}

	err := n.ask(ctx, slices.Concat([]*question{shown, state}, tried, estimated)...)
	if err := cmp.Or(err, shown.err, state.err); err != nil {
		return err
	}

	var g errgroup.Group
	for i := range calls {
		all[i] = simulated(tried[i].err, estimated[i].err, outputs[i], gas[i], target == nil)
		if all[i].fails(&calls[i]) {
			g.Go(func() error {
				n.doubt(ctx, target, tried[i], estimated[i], &calls[i], &all[i])
				return nil
			})
		}
	}

	return g.Wait()
}

// simulated is what a node says of a call, and of its gas at the head.
func simulated(tried, estimated error, output []byte, gas quantity, atHead bool) Simulation {
	then, now := reverted(tried), reverted(estimated)

	return Simulation{Reverts: cmp.Or(then, now), Output: output, Gas: gas.uint64(),
		AtHead: atHead || then == nil && now != nil}
}

// doubt asks every endpoint about a call that fails at one of them.
func (n *Nodes) doubt(ctx context.Context, target *Block, tried, estimated *question, c *Call, s *Simulation) {
	branch := Block{}
	if target != nil {
		branch = *target
	}

	said := n.others(ctx, tried.Params[1], branch, tried, estimated)
	for i := range said[0] {
		output, then := decode[hexutil.Bytes](said[0][i])
		gas, now := decode[quantity](said[1][i])
		switch other := simulated(then, now, output, gas, target == nil); {
		case !other.fails(c):
			s.Doubted, s.Otherwise = true, &other
		case !other.same(s):
			s.Doubted = true
		}
	}
}

// feeBlocks is over how many blocks the tip is the median.
const feeBlocks = 10

// Fees is send.Chain's: from the fee history, or the gas price of a chain that has none.
func (n *Nodes) Fees(ctx context.Context) (Fees, error) {
	view := n.View()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.feesOf.Ready && n.feesOf == view {
		return n.fees, nil
	}

	fees, err := n.readFees(ctx)
	if err == nil {
		n.feesOf, n.fees = view, fees
	}

	return fees, err
}

func (n *Nodes) readFees(ctx context.Context) (Fees, error) {
	var history struct {
		Base   []quantity   `json:"baseFeePerGas"`
		Reward [][]quantity `json:"reward"`
	}
	err := n.askAll(ctx, about(&history, "eth_feeHistory", hexutil.Uint64(feeBlocks), "latest", []float64{50}))
	if _, refused := errors.AsType[*chain.NodeError](err); err != nil && !refused {
		return Fees{}, fmt.Errorf("read the fees: %w", err)
	}

	if last := len(history.Base) - 1; err == nil && last >= 0 {
		if base := history.Base[last].big(); base.Sign() > 0 {
			return Fees{Base: base, Tip: n.tip(ctx, history.Reward)}, nil
		}
	}

	var gasPrice quantity
	if err := n.askAll(ctx, about(&gasPrice, "eth_gasPrice")); err != nil {
		return Fees{}, fmt.Errorf("read the gas price: %w", err)
	}

	return Fees{Tip: Larger(gasPrice.big(), big.NewInt(1))}, nil
}

// tip is the median of what blocks have paid on top of the base fee, or what the node suggests.
func (n *Nodes) tip(ctx context.Context, rewards [][]quantity) *big.Int {
	var tips []*big.Int
	for _, r := range rewards {
		if len(r) > 0 && r[0].big().Sign() > 0 { // empty blocks say 0
			tips = append(tips, r[0].big())
		}
	}

	var suggested quantity
	if len(tips) > 0 {
		slices.SortFunc(tips, (*big.Int).Cmp)
		return Larger(tips[len(tips)/2], minTip)
	} else if n.askAll(ctx, about(&suggested, "eth_maxPriorityFeePerGas")) == nil { // not every node has it
		return Larger(suggested.big(), minTip)
	}

	return minTip
}

type receipt struct {
	TransactionHash   common.Hash `json:"transactionHash"`
	BlockNumber       *quantity   `json:"blockNumber"`
	BlockHash         common.Hash `json:"blockHash"`
	Status            *quantity   `json:"status"`
	GasUsed           quantity    `json:"gasUsed"`
	EffectiveGasPrice quantity    `json:"effectiveGasPrice"`
	L1Fee             quantity    `json:"l1Fee"` // of rollups
	Logs              []Log       `json:"logs"`
}

// receiptsAtOnce is of how many commands receipts are asked for in one request.
const receiptsAtOnce = 32

// errNoReceipt means that neither this node nor those before it have a receipt that should be there.
var errNoReceipt = errors.New("the node has no receipt of any of the transactions")

// Receipts is send.Chain's.
func (n *Nodes) Receipts(ctx context.Context, target Block, sets [][]common.Hash) (map[common.Hash]*Receipt, error) {
	all := map[common.Hash]*Receipt{}
	for some := range slices.Chunk(sets, receiptsAtOnce) {
		questions := []*question{stands(target)}
		for _, hash := range slices.Concat(some...) {
			questions = append(questions, receiptOf(hash, target.Number, all))
		}

		last := questions[len(questions)-1]
		check := last.Check
		last.Check = func() error {
			err := check()
			for _, set := range some {
				if err == nil && len(set) > 0 && !slices.ContainsFunc(set, func(h common.Hash) bool { return all[h] != nil }) {
					err = errNoReceipt
				}
			}

			return err
		}

		if err := n.askAll(ctx, questions...); err != nil && !errors.Is(err, errNoReceipt) {
			return nil, fmt.Errorf("read receipts: %w", err)
		}
	}

	return all, nil
}

// receiptOf asks for a receipt, and adds it to all.
func receiptOf(hash common.Hash, most uint64, all map[common.Hash]*Receipt) *question {
	var r *receipt
	return about(&r, "eth_getTransactionReceipt", hash).checked(func() error {
		read, err := r.read(hash)
		if read != nil && all[hash] == nil && read.Block <= most {
			all[hash] = read
		}

		return err
	})
}

// maxPaid is in how many bits what a transaction has cost must fit: some 10^20 ether.
const maxPaid = 128

// read is the receipt of a transaction; nil: there is none.
func (r *receipt) read(hash common.Hash) (*Receipt, error) {
	if r == nil {
		return nil, nil //nolint:nilnil // the node has none
	}

	paid := new(big.Int).Mul(r.EffectiveGasPrice.big(), r.GasUsed.big())
	paid.Add(paid, r.L1Fee.big())
	if r.TransactionHash != hash || r.BlockNumber == nil || r.Status == nil || r.Status.uint64() > 1 ||
		paid.BitLen() > maxPaid {
		return nil, fmt.Errorf("the receipt of %s: the answer is not one", hash)
	}

	return &Receipt{Hash: hash, Block: r.BlockNumber.uint64(), BlockHash: r.BlockHash, Succeeded: r.Status.uint64() == 1,
		FeePaid: paid, Logs: r.Logs}, nil
}

// Confirm is send.Chain's.
func (n *Nodes) Confirm(ctx context.Context, target Block,
	receipts map[common.Hash]*Receipt) (refuted map[common.Hash]error) {
	refuted = map[common.Hash]error{}
	list := slices.Collect(maps.Values(receipts))
	said := n.others(ctx, hexutil.Uint64(target.Number), target, column.Of(list, func(r **Receipt) *question {
		return about(nil, "eth_getTransactionReceipt", (*r).Hash)
	})...)
	for i, r := range list {
		err := n.stand(ctx, r.Block, r.BlockHash)
		for _, a := range said[i] {
			raw, silent := decode[*receipt](a)
			if silent != nil {
				err = cmp.Or(err, fmt.Errorf("%w: %s: %w", ErrSilent, a.Endpoint, silent))
				continue
			}

			other, wrong := raw.read(r.Hash)
			if wrong != nil || other == nil || other.BlockHash != r.BlockHash || other.Succeeded != r.Succeeded ||
				!slices.Equal(other.Logs, r.Logs) {
				err = fmt.Errorf("%s gives another receipt of transaction %s, or none", a.Endpoint, r.Hash)
			}

			if other != nil {
				r.FeePaid = Larger(r.FeePaid, other.FeePaid)
			}
		}

		if err != nil {
			refuted[r.Hash] = err
		}
	}

	return refuted
}

// stand makes sure that a block is the chain's.
func (n *Nodes) stand(ctx context.Context, number uint64, hash common.Hash) error {
	h, err := n.caller.Canonical(ctx, number, common.Hash{})
	if err == nil && h.Hash != hash {
		err = Block{Number: number, Hash: hash}.elsewhere()
	}

	return err
}

// Broadcast is send.Chain's.
func (n *Nodes) Broadcast(ctx context.Context, raws [][]byte) []error {
	all := make([]error, len(raws))
	var g errgroup.Group
	g.SetLimit(requestsAtOnce)
	for i, raw := range raws { // in order of their nonces, as far as several at once have one
		g.Go(func() error {
			all[i] = n.caller.Offer(ctx, raw)
			return nil
		})
	}

	_ = g.Wait() // each has its own result

	return all
}
