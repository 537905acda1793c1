package evm

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"strings"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/rlp"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

// The functions that are called.
var functions = func() abi.ABI {
	const text = `[
		{"type":"function","name":"approve","inputs":[]},
		{"type":"function","name":"release","inputs":[]},
		{"type":"function","name":"refund","inputs":[]},
		{"type":"function","name":"createEscrowDeterministic","stateMutability":"payable","inputs":[
			{"name":"payee","type":"address"},{"name":"releaseDelay","type":"uint256"},{"name":"approvalsRequired","type":"uint8"},
			{"name":"arbiter","type":"address"},{"name":"salt","type":"bytes32"}],"outputs":[{"name":"","type":"address"}]}]`
	parsed, err := abi.JSON(strings.NewReader(text))
	if err != nil {
		panic(err) // a constant
	}

	return parsed
}()

// CallOf is the transaction that a command asks for.
func CallOf(c *command.Command) (Call, error) {
	if c.Kind != command.Create {
		data, err := functions.Pack(string(c.Kind))
		return Call{From: c.Sender, To: c.Escrow, Data: data, Value: new(big.Int)}, err
	}

	args := c.Args
	data, err := functions.Pack("createEscrowDeterministic", args.Payee, args.ReleaseDelay, args.ApprovalsRequired,
		args.Arbiter, [32]byte(args.Salt))

	return Call{From: c.Sender, To: c.Factory, Data: data, Value: args.Amount,
		Returns: common.LeftPadBytes(c.Escrow[:], 32)}, err
}

// Signer signs for one account, by relayer/command/sign. It may be used concurrently.
type Signer interface {
	Address() common.Address
	// Sign returns r, s and v (0 or 1), s in the lower half of the curve's order, of the Keccak-256 hash of
	// payload: a signer may want to see what it signs. After an error it is asked again later.
	Sign(ctx context.Context, payload []byte) ([65]byte, error)
}

// Sign makes a signed transaction, and makes sure that it is the sender's.
func Sign(ctx context.Context, signer Signer, chainID uint64, nonce, gas uint64, fee Price, c Call) (raw []byte,
	hash common.Hash, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("sign nonce %d of %s: %w", nonce, signer.Address(), err)
		}
	}()
	id := new(big.Int).SetUint64(chainID)
	var inner types.TxData
	if fee.Tip == nil {
		inner = &types.LegacyTx{Nonce: nonce, GasPrice: fee.Cap, Gas: gas, To: &c.To, Value: c.Value, Data: c.Data}
	} else {
		inner = &types.DynamicFeeTx{ChainID: id, Nonce: nonce, GasTipCap: fee.Tip, GasFeeCap: fee.Cap, Gas: gas, To: &c.To,
			Value: c.Value, Data: c.Data}
	}

	scheme := types.LatestSignerForChainID(id)
	tx := types.NewTx(inner)
	payload, err := unsigned(tx, id)
	if err != nil {
		return nil, hash, err
	}

	if crypto.Keccak256Hash(payload) != scheme.Hash(tx) {
		return nil, hash, errors.New("what is hashed is not the transaction")
	}

	signature, err := signer.Sign(ctx, payload)
	if err != nil {
		return nil, hash, err
	}

	if tx, err = tx.WithSignature(scheme, signature[:]); err != nil {
		return nil, hash, err
	}

	if from, err := types.Sender(scheme, tx); err != nil || from != signer.Address() {
		return nil, hash, errors.New("the signature is of another account")
	}

	raw, err = tx.MarshalBinary()

	return raw, tx.Hash(), err
}

// unsigned is what a signature of a transaction is over, before it is hashed (EIP-155, EIP-1559).
func unsigned(tx *types.Transaction, chainID *big.Int) ([]byte, error) {
	if tx.Type() == types.LegacyTxType {
		return rlp.EncodeToBytes([]any{tx.Nonce(), tx.GasPrice(), tx.Gas(), tx.To(), tx.Value(), tx.Data(), chainID,
			uint(0), uint(0)})
	}

	fields, err := rlp.EncodeToBytes([]any{chainID, tx.Nonce(), tx.GasTipCap(), tx.GasFeeCap(), tx.Gas(), tx.To(),
		tx.Value(), tx.Data(), tx.AccessList()})

	return append([]byte{tx.Type()}, fields...), err
}
