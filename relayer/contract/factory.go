package contract

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
)

// Caller sends one JSON-RPC request.
type Caller interface {
	Call(ctx context.Context, method string, params ...any) (json.RawMessage, error)
}

// ErrNotFactory means that the contract at an address can never announce an escrow.
var ErrNotFactory = errors.New("not an escrow factory")

// ErrUnknownProxy means that the code leaves open whether the contract is a factory: it runs the
// code of another contract, which was not found, or is for another machine.
var ErrUnknownProxy = errors.New("code of an unknown kind")

// notEVM is the first byte of code that the Ethereum Virtual Machine does not run as such
// (EIP-3541). Arbitrum's Stylus contracts begin with 0xeff000.
const notEVM = 0xef

// maxProxies bounds a chain of proxies.
const maxProxies = 4

// CheckFactory checks that the contract at an address can announce escrows: that its code, or for a
// proxy the code of its implementation, contains the topic of EscrowDeployed. Code can emit an
// event only with a topic that it contains, unless it runs other code. ErrNotFactory and
// ErrUnknownProxy are findings; any other error means that the chain did not answer.
func (a *ABI) CheckFactory(ctx context.Context, chain Caller, address common.Address) error {
	at := address
	for range maxProxies {
		code, err := ask(ctx, chain, "eth_getCode", at, "latest")
		if err != nil {
			return err
		}

		if contains(code, a.factory) {
			return nil
		}

		if len(code) == 0 {
			return fmt.Errorf("%w: there is no code at %s", ErrNotFactory, at)
		}

		next, err := implementation(ctx, chain, at, code)
		switch {
		case err != nil:
			return err
		case next != (common.Address{}):
			at = next
		case contains(code, a.escrow):
			return fmt.Errorf("%w: the contract at %s looks like an escrow; name the factory that deployed it",
				ErrNotFactory, at)
		case code[0] == notEVM:
			return fmt.Errorf("%w: the code at %s is not of the Ethereum Virtual Machine, so its events cannot be told: "+
				"make sure that it is the factory", ErrUnknownProxy, at)
		case delegates(code):
			return fmt.Errorf("%w: the code at %s does not contain the event EscrowDeployed and runs other code: make sure that it is the factory; it can be corrected until its first escrow is stored",
				ErrUnknownProxy, at)
		default:
			return fmt.Errorf("%w: the code at %s does not contain the event EscrowDeployed, so it can never announce an escrow; "+
				"name the EscrowFactory, or for one of others its ABI in FACTORY_ABI and its event in EVENT_ALIASES", ErrNotFactory, at)
		}
	}

	return fmt.Errorf("%w: more than %d proxies behind %s", ErrUnknownProxy, maxProxies, address)
}

func contains(code []byte, topics []common.Hash) bool {
	return slices.ContainsFunc(topics, func(t common.Hash) bool { return bytes.Contains(code, t[:]) })
}

// Opcodes of the Ethereum Virtual Machine (yellow paper, appendix H; EIP-7, EIP-3855). go-ethereum's core/vm
// has them too, and links the whole interpreter.
const (
	opPush0        = 0x5f
	opPush32       = 0x7f
	opCallCode     = 0xf2
	opDelegateCall = 0xf4
)

// delegates reports whether code may run other code in its context (DELEGATECALL, CALLCODE). The n
// bytes after PUSHn are data.
func delegates(code []byte) bool {
	for i := 0; i < len(code); i++ {
		switch op := code[i]; {
		case op == opDelegateCall, op == opCallCode:
			return true
		case op > opPush0 && op <= opPush32:
			i += int(op - opPush0)
		}
	}

	return false
}

var (
	// minimalProxyHead and Tail are the code of EIP-1167 around an address; delegation is the prefix of
	// EIP-7702 before an address.
	minimalProxyHead = common.FromHex("363d3d373d3d3d363d73")
	minimalProxyTail = common.FromHex("5af43d82803e903d91602b57fd5bf3")
	delegation       = common.FromHex("ef0100")

	// implementationSlots are where proxies keep the address of their implementation: EIP-1967,
	// EIP-1822, and OpenZeppelin before those.
	implementationSlots = []common.Hash{
		common.HexToHash("0x360894a13ba1a3210667c828492db98dca3e2076cc3735a920a3ca505d382bbc"),
		common.HexToHash("0xc5f16f0fcc639fa48a6947836d9850f504798523bf8c9a3a87d5876cf622bcf7"),
		common.HexToHash("0x7050c9e0f4ca769c69bd3a8ef740bc37934f8e2c036e5a723fd8ee048ed3f8c3"),
	}
	// beaconSlot is where EIP-1967 keeps the address of a beacon, a contract that returns the implementation.
	beaconSlot = common.HexToHash("0xa3f0ad74e5423aebfd80d3ef4346578335a9a72aeaee59ff6cb3582b35133d50")
	// implementationCall is implementation() of a beacon.
	implementationCall = "0x5c60da1b"
)

// implementation returns the implementation of a proxy; the zero address if it is unknown.
func implementation(ctx context.Context, chain Caller, at common.Address, code []byte) (common.Address, error) {
	if rest, ok := bytes.CutPrefix(code, minimalProxyHead); ok && bytes.HasSuffix(rest, minimalProxyTail) &&
		len(rest) == common.AddressLength+len(minimalProxyTail) {
		return common.BytesToAddress(rest[:common.AddressLength]), nil
	}

	if rest, ok := bytes.CutPrefix(code, delegation); ok && len(rest) == common.AddressLength {
		return common.BytesToAddress(rest), nil
	}

	if !delegates(code) {
		return common.Address{}, nil
	}

	for _, slot := range implementationSlots {
		if found, err := addressAt(ctx, chain, "eth_getStorageAt", at, slot, "latest"); err != nil ||
			found != (common.Address{}) {
			return found, err
		}
	}

	beacon, err := addressAt(ctx, chain, "eth_getStorageAt", at, beaconSlot, "latest")
	if err != nil || beacon == (common.Address{}) {
		return common.Address{}, err
	}

	return addressAt(ctx, chain, "eth_call", map[string]string{"to": beacon.Hex(), "data": implementationCall}, "latest")
}

// addressAt requests a word that holds an address.
func addressAt(ctx context.Context, chain Caller, method string, params ...any) (common.Address, error) {
	b, err := ask(ctx, chain, method, params...)
	return common.BytesToAddress(b), err
}

func ask(ctx context.Context, chain Caller, method string, params ...any) (hexutil.Bytes, error) {
	raw, err := chain.Call(ctx, method, params...)
	if err != nil {
		return nil, fmt.Errorf("check FACTORY_ADDRESS: %w", err)
	}

	var b hexutil.Bytes
	if err := json.Unmarshal(raw, &b); err != nil {
		return nil, fmt.Errorf("check FACTORY_ADDRESS: %s: %w", method, err)
	}

	return b, nil
}
