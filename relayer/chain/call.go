package chain

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// NodeError is what a node said instead of a result, without secrets. Find it with errors.AsType.
type NodeError struct {
	Endpoint string
	Code     int
	Message  string
	Data     json.RawMessage // nil: none; of a call that reverts, the revert's data
	err      error
}

func (e *NodeError) Error() string { return e.err.Error() }
func (e *NodeError) Unwrap() error { return e.err }

// Answer is one endpoint's answer to a request that every endpoint got.
type Answer struct {
	Endpoint string
	Result   json.RawMessage
	Err      error // a *NodeError where the node answered with an error
	body     [][]byte
}

// Call is CallBatch of one request, whose error is the answer's too.
func (s *Source) Call(ctx context.Context, method string, params ...any) (json.RawMessage, error) {
	answers, err := s.CallBatch(ctx, Request{Method: method, Params: params})
	if err == nil {
		err = answers[0].Err
	}

	if err != nil {
		return nil, fmt.Errorf("call %s: %w", method, err)
	}

	return answers[0].Result, nil
}

// Request is one of a batch.
type Request struct {
	Method string
	Params []any // encoded as JSON
	// To is a pointer to what the result is decoded into; nil: it stays JSON. Where the answer is an error it is zero.
	To any
	// Body gets the transactions of a block that is asked for with them, each as it is in the trie under their root;
	// nil where its type is not known. Without Body they are passed over.
	Body *[][]byte
	// Check is called when all results of the batch are decoded, unless this one's answer is an error. Nil: anything will
	// do.
	Check func() error
}

// take decodes a result, and leaves zero where there is none.
func (r *Request) take(a *Answer) error {
	if r.Body != nil {
		*r.Body = a.body
	}

	if r.To == nil {
		return nil
	}

	reflect.ValueOf(r.To).Elem().SetZero() // of what another endpoint has said
	if a.Err == nil {
		if err := json.Unmarshal(a.Result, r.To); err != nil {
			return fmt.Errorf("%w to %s: %w", rpc.ErrInvalid, r.Method, err)
		}
	}

	return nil
}

// accept takes all results, and checks them.
func accept(requests []Request, answers []Answer) error {
	for i := range requests {
		if err := requests[i].take(&answers[i]); err != nil {
			return err
		}
	}

	for i := range requests {
		if check := requests[i].Check; check != nil && answers[i].Err == nil {
			if err := check(); err != nil {
				return fmt.Errorf("%s: %w", requests[i].Method, err)
			}
		}
	}

	return nil
}

// CallBatch sends requests together to the endpoints, best first, until one of them answers, and returns its answers in
// their order. An answer is a result, which may be null, and also an error that concerns the request itself, as that a
// call reverts: a *NodeError (Answer.Err), which another endpoint would repeat. An endpoint that cannot be reached,
// limits its rate, does not know the method, or lacks the block is passed over; only when all are is one of those the
// error, of all requests.
//
// A result that cannot be decoded, or that Request.Check refuses, is no answer: the next endpoint is asked.
//
// What no endpoint answers may still concern the request alone: nodes say so in codes and words of their own, as a
// revert that is an internal error, or a block without its state. So all of it is sent once more with a question that
// every node answers. Of the endpoint that answers this one, each error is an answer.
func (s *Source) CallBatch(ctx context.Context, requests ...Request) ([]Answer, error) {
	answers, err := s.callBatch(ctx, requests, func(answers []Answer) error {
		for i, a := range answers {
			if !final(a.Err) {
				return fmt.Errorf("%s: %w", requests[i].Method, a.Err)
			}
		}

		return accept(requests, answers)
	})
	if !isNodeError(err) {
		return answers, err
	}

	n := len(requests)
	refused, again := s.callBatch(ctx, append(slices.Clip(requests), Request{Method: "eth_blockNumber"}),
		func(answers []Answer) error {
			for _, a := range answers {
				if a.Err != nil && !isNodeError(a.Err) {
					return a.Err
				}
			}

			return cmp.Or(answers[n].Err, accept(requests, answers[:n]))
		})
	if again != nil {
		return nil, err
	}

	return refused[:n], nil
}

// callBatch sends requests to one endpoint after the other until one has answers that will do.
func (s *Source) callBatch(ctx context.Context, requests []Request, do func([]Answer) error) ([]Answer, error) {
	params := make([]string, len(requests))
	for i, r := range requests {
		var err error
		if params[i], err = encodeParams(r.Params); err != nil {
			return nil, fmt.Errorf("call %s: %w", r.Method, err)
		}
	}

	answers, calls := make([]Answer, len(requests)), make([]*rpc.Call, len(requests))
	err := s.ask(ctx, 0, nil, func(ctx context.Context, e *endpoint.Node) error {
		for i, r := range requests {
			calls[i] = &rpc.Call{Method: r.Method, Params: params[i], Encode: r.Body != nil}
		}

		err := e.Do(ctx, calls...)
		for i, q := range calls {
			answers[i] = s.answer(e, q, err)
		}

		return do(answers)
	})
	if err != nil {
		return nil, fmt.Errorf("call the nodes: %w", err)
	}

	return answers, nil
}

// CallEach sends one request to every endpoint at once, whatever its health, and returns all
// answers in the order of RPC_URLS.
func (s *Source) CallEach(ctx context.Context, method string, params ...any) ([]Answer, error) {
	encoded, err := encodeParams(params)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", method, err)
	}

	answers := make([]Answer, len(s.nodes))
	var wg sync.WaitGroup
	for i, e := range s.nodes {
		wg.Go(func() {
			q := &rpc.Call{Method: method, Params: encoded}
			answers[i] = s.answer(e, q, e.Do(ctx, q))
		})
	}

	wg.Wait()

	return answers, ctx.Err()
}

const sendRaw = "eth_sendRawTransaction"

// Offer sends a signed transaction to every endpoint at once, whatever its health: it should not depend on one node's
// passing it on. It returns when one has taken it (nil) or refused it, or none could be reached. An endpoint that is
// slower holds up nobody: it gets the transaction all the same, unless ctx ends, and what it says of it is not told.
// Close waits for it.
func (s *Source) Offer(ctx context.Context, raw []byte) error {
	encoded, err := encodeParams([]any{hexutil.Bytes(raw)})
	if err != nil {
		return fmt.Errorf("encode a transaction: %w", err)
	}

	said := make(chan error, len(s.nodes)) // with room for those that are not waited for
	s.mu.Lock()
	for _, e := range s.nodes {
		s.offers.Go(func() {
			q := &rpc.Call{Method: sendRaw, Params: encoded}
			said <- s.answer(e, q, e.Offer(ctx, q)).Err
		})
	}

	s.mu.Unlock()

	var errs []error
	for range s.nodes {
		err := <-said
		if err == nil {
			return nil
		}

		if errs = append(errs, err); final(err) {
			break
		}
	}

	return errors.Join(errs...)
}

// Head asks the endpoints for the newest block, without waiting for Run: the highest that any of them has.
func (s *Source) Head(ctx context.Context) (head Header, err error) {
	heads, silent, err := askEach[Header](ctx, s, rpc.GetByNumber, "latest", false)
	if err != nil || len(heads) == 0 {
		return head, fmt.Errorf("read the head: %w", cmp.Or(err, reasons(silent)))
	}

	for _, h := range heads {
		if h.Number >= head.Number {
			head = h
		}
	}

	return head, nil
}

// askEach is CallEach with the results decoded, by endpoint. silent are the endpoints without one.
func askEach[T any](ctx context.Context, s *Source, method string, params ...any) (said map[string]T, silent []Answer,
	err error) {
	answers, err := s.CallEach(ctx, method, params...)
	said = map[string]T{}
	for _, a := range answers {
		var to T
		q := &rpc.Call{Method: method, Answer: rpc.Answer{Result: a.Result, Err: a.Err}}
		if a.Err = q.Decode(&to); a.Err != nil {
			silent = append(silent, a)
		} else {
			said[a.Endpoint] = to
		}
	}

	return said, silent, err
}

// reasons joins errors of endpoints, with what to do about each.
func reasons(silent []Answer) error {
	errs := make([]error, len(silent))
	for i, a := range silent {
		errs[i] = fmt.Errorf("%s: %w%s", a.Endpoint, a.Err, endpoint.Advice(a.Err))
	}

	return errors.Join(errs...)
}

// Code returns the code at an address as of a block; empty: there was no contract. ErrNoHistory: no
// endpoint keeps the state of that block.
func (s *Source) Code(ctx context.Context, address common.Address, block uint64) ([]byte, error) {
	var code hexutil.Bytes
	raw, err := s.Call(ctx, rpc.GetCode, address, hexutil.Uint64(block))
	if err == nil {
		err = (&rpc.Call{Method: rpc.GetCode, Answer: rpc.Answer{Result: raw}}).Decode(&code)
	}

	if rpc.Classify(err) == rpc.Pruned {
		err = fmt.Errorf("%w: %w", ErrNoHistory, err)
	}

	if err != nil {
		return nil, fmt.Errorf("code of %s at block %d: %w", address, block, err)
	}

	return code, nil
}

// Nonces returns the nonce of an account at a block, by endpoint: of those that have its state. An error is of
// endpoints that cannot be asked now, where none has answered.
func (s *Source) Nonces(ctx context.Context, account common.Address, block uint64) (map[string]uint64, error) {
	said, silent, err := askEach[hexutil.Uint64](ctx, s, rpc.GetNonce, account, hexutil.Uint64(block))
	list := map[string]uint64{}
	for name, nonce := range said {
		list[name], silent, err = uint64(nonce), nil, nil
	}

	for _, a := range silent {
		if !isNodeError(a.Err) {
			err = cmp.Or(err, a.Err)
		}
	}

	return list, err
}

// isNodeError reports whether a node has answered so, in whatever words.
func isNodeError(err error) bool {
	_, is := errors.AsType[*NodeError](err)
	return is
}

func encodeParams(params []any) (string, error) {
	if params == nil {
		params = []any{}
	}

	b, err := json.Marshal(params)

	return string(b), err
}

// answer is what an endpoint said to a call; err is of the exchange as a whole.
func (s *Source) answer(n *endpoint.Node, q *rpc.Call, err error) Answer {
	if err == nil {
		err = q.Err
	}

	if fault, is := errors.AsType[*rpc.Error](err); is {
		err = &NodeError{Endpoint: n.Name(), Code: fault.Code, Message: s.secrets.Mask(fault.Message),
			Data: fault.Data, err: err}
	}

	return Answer{Endpoint: n.Name(), Result: q.Result, Err: err, body: q.Encoded}
}

// final reports whether an endpoint's answer is one: a result, or an error of the request rather than the endpoint.
func final(err error) bool {
	if err == nil {
		return true
	}

	fault, is := errors.AsType[*NodeError](err)
	if !is {
		return false
	}

	switch fault.Code {
	case 3: // the call reverts
		return true
	case -32601, -32004, -32001, -32002, -32603: // no such method, not supported, not found, unavailable, internal error
		return false
	}

	switch rpc.Classify(err) {
	case rpc.RateLimited, rpc.Behind, rpc.Pruned, rpc.Unsupported, rpc.TimedOut, rpc.BatchRefused:
		return false
	}

	return true
}
