package testchain

import (
	"context"
	"fmt"
	"math/big"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
)

// Deployment is where the contracts are.
type Deployment struct {
	Block   uint64 // the first that has any of them: a START_BLOCK
	Factory common.Address
	Legacy  common.Address // the factory that emits EscrowDeployed without arbiter
	Noise   common.Address
	Load    common.Address
}

// Deploy deploys the contracts from the node's last account and mines them.
func Deploy(ctx context.Context, n Node) (d Deployment, err error) {
	last := len(n.Accounts()) - 1
	w, err := OpenWallet(ctx, n.Client(), n.Accounts()[last])
	if err != nil {
		return d, err
	}
	var calls []Call
	for _, code := range []string{contracts.EscrowFactoryMetaData.Bin, contracts.LegacyEscrowFactoryMetaData.Bin,
		contracts.NoiseMetaData.Bin, contracts.LoadMetaData.Bin} {
		calls = append(calls, Call{Data: common.FromHex(code), Gas: 4_000_000})
	}

	receipts, err := w.Transact(ctx, n, 0, calls...)
	if err != nil {
		return d, fmt.Errorf("deploy the contracts: %w", err)
	}

	return Deployment{
		Block:   receipts[0].BlockNumber.Uint64(),
		Factory: receipts[0].ContractAddress,
		Legacy:  receipts[1].ContractAddress,
		Noise:   receipts[2].ContractAddress,
		Load:    receipts[3].ContractAddress,
	}, nil
}

// Escrow is where createEscrowDeterministic of the factory puts an escrow of these terms; delay in seconds.
func (d Deployment) Escrow(payer, payee common.Address, delay int64, required uint8, arbiter common.Address,
	salt common.Hash) common.Address {
	code := append(common.FromHex(contracts.EscrowMetaData.Bin),
		contracts.NewEscrow().PackConstructor(payer, payee, big.NewInt(delay), required, arbiter)...)

	return crypto.CreateAddress2(d.Factory, salt, crypto.Keccak256(code))
}
