package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
)

// ErrNoHistory means that the endpoints answer, but keep no state of a block that is so old. An archive node does.
var ErrNoHistory = errors.New("history is not available")

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
}

// Call sends one request to the endpoints, best first, until one of them answers. An answer is a result, which may be null, and also an error that concerns the
// request itself, as that a call reverts: a *NodeError, which another endpoint would repeat. An endpoint that cannot be reached, limits its rate, does not
// know the method, or lacks the block is passed over; only when all are is one of those the error. params are encoded as JSON.
func (s *Source) Call(ctx context.Context, method string, params ...any) (json.RawMessage, error) {
	encoded, err := encodeParams(params)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", method, err)
	}
	var result json.RawMessage
	var refusal error
	err = s.ask(ctx, 0, nil, func(ctx context.Context, e *endpoint) error {
		a := e.answerTo(ctx, method, encoded)
		if final(a.Err) {
			result, refusal = a.Result, a.Err
			return nil
		}
		return a.Err
	})
	if err = errors.Join(refusal, err); err != nil {
		return nil, fmt.Errorf("call %s: %w", method, err)
	}
	return result, nil
}

// CallEach sends one request to every endpoint at once, whatever its health, and returns all answers in the order of RPC_URLS: for a signed transaction, which should
// not depend on one node's passing it on.
func (s *Source) CallEach(ctx context.Context, method string, params ...any) ([]Answer, error) {
	encoded, err := encodeParams(params)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", method, err)
	}
	answers := make([]Answer, len(s.endpoints))
	var wg sync.WaitGroup
	for i, e := range s.endpoints {
		wg.Go(func() { answers[i] = e.answerTo(ctx, method, encoded) })
	}
	wg.Wait()
	return answers, ctx.Err()
}

// Head asks the endpoints for the newest block, without waiting for Run: the highest that any of them has.
func (s *Source) Head(ctx context.Context) (Header, error) {
	answers, err := s.CallEach(ctx, numberMethod, "latest", false)
	if err != nil {
		return Header{}, fmt.Errorf("read the head: %w", err)
	}
	var best Header
	var errs []error
	for _, a := range answers {
		var h Header
		c := &call{method: numberMethod, result: a.Result, err: a.Err}
		if err := c.decode(&h); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", a.Endpoint, err))
		} else if h.Number >= best.Number {
			best = h
		}
	}
	if best.Hash == (common.Hash{}) {
		return best, fmt.Errorf("read the head: %w", errors.Join(errs...))
	}
	return best, nil
}

// Code returns the code at an address as of a block; empty: there was no contract. ErrNoHistory: no endpoint keeps the state of that block.
func (s *Source) Code(ctx context.Context, address common.Address, block uint64) ([]byte, error) {
	raw, err := s.Call(ctx, codeMethod, address, hexutil.Uint64(block))
	if err != nil {
		if says(lower(err.Error()), historyWords) {
			return nil, fmt.Errorf("code of %s at block %d: %w: %w", address, block, ErrNoHistory, err)
		}
		return nil, fmt.Errorf("code of %s at block %d: %w", address, block, err)
	}
	var code hexutil.Bytes
	if err := json.Unmarshal(raw, &code); err != nil {
		return nil, fmt.Errorf("code of %s at block %d: %w: %w", address, block, errInvalid, err)
	}
	return code, nil
}

// historyWords are what nodes say that have thrown the state or the logs of old blocks away.
var historyWords = []string{
	"missing trie node", "pruned", "history unavailable", "history is not available", "historical state", "state not available", "state is not available", "archive",
	"no state available", "old data not available", "header not found", "ancient", "state at block", "world state", "distance to target block exceeds",
}

func encodeParams(params []any) (string, error) {
	if params == nil {
		params = []any{}
	}
	b, err := json.Marshal(params)
	return string(b), err
}

// answerTo asks one endpoint.
func (e *endpoint) answerTo(ctx context.Context, method, params string) Answer {
	q := &call{method: method, params: params}
	err := e.do(ctx, q)
	if err == nil {
		err = q.err
	}
	if fault, is := errors.AsType[*rpcError](err); is {
		err = &NodeError{Endpoint: e.name, Code: fault.Code, Message: e.s.secrets.Mask(fault.Message), Data: fault.Data, err: err}
	}
	return Answer{Endpoint: e.name, Result: q.result, Err: err}
}

// final says whether an endpoint's answer is one: a result, or an error that concerns the request and not the endpoint.
func final(err error) bool {
	if err == nil {
		return true
	}
	fault, is := errors.AsType[*NodeError](err)
	if !is || classify(err) != failed {
		return false
	}
	switch fault.Code {
	case -32601, -32004, -32001, -32002, -32603, 4444: // no such method, not supported, not found, unavailable, internal error, pruned
		return false
	}
	return !says(lower(fault.Message), historyWords)
}
