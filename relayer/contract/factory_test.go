package contract

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
)

// node is a real one.
type node struct{ *rpc.Client }

func (n node) Call(ctx context.Context, method string, params ...any) (raw json.RawMessage, err error) {
	return raw, n.CallContext(ctx, &raw, method, params...)
}

// returning is the code that deploys a contract with the given code, after some other code has run.
func returning(code []byte, before ...byte) []byte {
	const rest = 10 // bytes of what follows before
	offset := byte(len(before) + rest)
	init := append(before, 0x61, byte(len(code)>>8), byte(len(code)), 0x80, 0x60, offset, 0x5f, 0x39, 0x5f, 0xf3)

	return append(init, code...)
}

// storing is the code that stores an address.
func storing(slot common.Hash, a common.Address) []byte {
	code := append([]byte{0x73}, a[:]...)
	code = append(append(code, 0x7f), slot[:]...)
	return append(code, 0x55)
}

// A factory is known by its code, through whatever proxy; everything else with code is not taken for one.
func TestCheckFactory(t *testing.T) {
	chain, d := testchain.NewContracts(t, testchain.Options{Seed: 1})
	client, err := rpc.DialContext(t.Context(), chain.HTTP())
	require.NoError(t, err)
	t.Cleanup(client.Close)
	w, err := testchain.OpenWallet(t.Context(), chain.Client(), chain.Accounts()[0])
	require.NoError(t, err)
	deploy := func(init []byte) common.Address {
		t.Helper()
		receipts, err := w.Transact(t.Context(), chain, 0, testchain.Call{Data: init})
		require.NoError(t, err)

		return receipts[0].ContractAddress
	}

	minimal := func(to common.Address) []byte {
		return append(append(append([]byte{}, minimalProxyHead...), to[:]...), minimalProxyTail...)
	}
	anyProxy := []byte{0x5f, 0xf4} // what matters is that it delegates
	implementation := deploy(returning(minimal(d.Factory)))
	// A beacon answers every call with the factory's address.
	answer := append(append([]byte{0x73}, d.Factory[:]...), 0x5f, 0x52, 0x60, 0x20, 0x5f, 0xf3)
	beacon := deploy(returning(answer))
	something := deploy(returning([]byte{0x5f, 0x5f, 0xf3}))
	a, err := New("", "")
	require.NoError(t, err)
	escrow := escrowOf(t, chain, d)

	for name, c := range map[string]struct {
		at   common.Address
		want error
	}{
		"factory":                 {d.Factory, nil},
		"older factory":           {d.Legacy, nil},
		"minimal proxy":           {implementation, nil},
		"EIP-1967 of a proxy":     {deploy(returning(anyProxy, storing(implementationSlots[0], implementation)...)), nil},
		"EIP-1822":                {deploy(returning(anyProxy, storing(implementationSlots[1], d.Factory)...)), nil},
		"beacon":                  {deploy(returning(anyProxy, storing(beaconSlot, beacon)...)), nil},
		"proxy of something else": {deploy(returning(minimal(something))), ErrNotFactory},
		"an escrow":               {escrow, ErrNotFactory},
		"another contract":        {something, ErrNotFactory},
		"the opcode as data":      {deploy(returning([]byte{0x61, 0xf4, 0xf4, 0x00})), ErrNotFactory},
		"Stylus":                  {stylus, ErrUnknownProxy},
		"an unknown proxy":        {deploy(returning(anyProxy)), ErrUnknownProxy},
	} {
		t.Run(name, func(t *testing.T) {
			err := a.CheckFactory(t.Context(), foreignCode{node{client}}, c.at)
			if c.want == nil {
				require.NoError(t, err)
				return
			}

			require.ErrorIs(t, err, c.want)
		})
	}

	gone, cancel := context.WithCancel(t.Context())
	cancel()
	err = a.CheckFactory(gone, node{client}, d.Factory)
	require.Error(t, err)
	require.False(t, errors.Is(err, ErrNotFactory) || errors.Is(err, ErrUnknownProxy),
		"a node that cannot be asked is no finding")
}

// stylus is an address with code of another machine, which no chain of Ethereum's rules can deploy.
var stylus = common.Address{0x5f}

type foreignCode struct{ node }

func (c foreignCode) Call(ctx context.Context, method string, params ...any) (json.RawMessage, error) {
	if method == "eth_getCode" && params[0] == stylus {
		return json.RawMessage(`"0xeff00000deadbeef"`), nil
	}

	return c.node.Call(ctx, method, params...)
}

// escrowOf lets the factory deploy one.
func escrowOf(t *testing.T, chain testchain.Node, d testchain.Deployment) common.Address {
	traffic, err := testchain.NewTraffic(t.Context(), testchain.TrafficConfig{
		URL: chain.HTTP(), Deployment: d, Accounts: chain.Accounts()[1 : len(chain.Accounts())-1], Seed: 1,
	})
	require.NoError(t, err)
	t.Cleanup(traffic.Close)
	for range 20 {
		require.NoError(t, traffic.Step(t.Context(), 5))
		require.NoError(t, chain.Mine(t.Context(), 1))
		var logs []struct{ Topics []common.Hash }
		client, err := rpc.DialContext(t.Context(), chain.HTTP())
		require.NoError(t, err)
		err = client.CallContext(t.Context(), &logs, "eth_getLogs", map[string]any{"fromBlock": "0x0", "address": d.Factory})
		client.Close()
		require.NoError(t, err)
		if len(logs) > 0 {
			return common.BytesToAddress(logs[0].Topics[1][:])
		}
	}

	t.Fatal("the factory deployed none in 20 blocks")

	return common.Address{}
}
