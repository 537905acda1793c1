package proof

import (
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/rlp"
)

// Types of transactions of Arbitrum.
const (
	arbitrumDeposit         = 0x64
	arbitrumUnsigned        = 0x65
	arbitrumContract        = 0x66
	arbitrumRetry           = 0x68
	arbitrumSubmitRetryable = 0x69
	arbitrumInternal        = 0x6a
)

// rollup is a transaction of a type that only rollups have: it has no signature, and comes from another chain.
type rollup struct {
	Type hexutil.Uint64
	Hash common.Hash

	From, To          *common.Address
	Value, ChainID    *hexutil.Big
	GasPrice, Mint    *hexutil.Big
	MaxFeePerGas      *hexutil.Big
	Nonce, Gas        hexutil.Uint64
	Input             hexutil.Bytes
	SourceHash        common.Hash
	IsSystemTx        bool
	RequestID         common.Hash
	TicketID          common.Hash
	RefundTo          *common.Address
	Beneficiary       *common.Address
	RetryTo           *common.Address
	RetryData         hexutil.Bytes
	RetryValue        *hexutil.Big
	L1BaseFee         *hexutil.Big
	DepositValue      *hexutil.Big
	MaxRefund         *hexutil.Big
	MaxSubmissionFee  *hexutil.Big
	SubmissionFeeBack *hexutil.Big `json:"submissionFeeRefund"`
}

// encode returns the transaction as it is in the trie under the transactions root: its type, and the list of the fields
// of that type. On the OP stack these are those of the specification (deposits, "The Deposited Transaction Type"), on
// Arbitrum those of OffchainLabs/go-ethereum (core/types/arb_types.go). Nil: the type is unknown, or the hash that the
// node states is another one, as where it leaves fields out or the type has got more.
func (t *rollup) encode() []byte {
	number := (*hexutil.Big).ToInt // nil: 0
	chain, price, value := number(t.ChainID), number(t.GasPrice), number(t.Value)
	if t.MaxFeePerGas != nil {
		price = number(t.MaxFeePerGas)
	}

	var fields []any
	switch t.Type {
	case Deposit:
		fields = []any{t.SourceHash, t.From, t.To, number(t.Mint), value, t.Gas, t.IsSystemTx, t.Input}
	case arbitrumDeposit:
		fields = []any{chain, t.RequestID, t.From, t.To, value}
	case arbitrumUnsigned:
		fields = []any{chain, t.From, t.Nonce, price, t.Gas, t.To, value, t.Input}
	case arbitrumContract:
		fields = []any{chain, t.RequestID, t.From, price, t.Gas, t.To, value, t.Input}
	case arbitrumRetry:
		fields = []any{chain, t.Nonce, t.From, price, t.Gas, t.To, value, t.Input, t.TicketID, t.RefundTo,
			number(t.MaxRefund), number(t.SubmissionFeeBack)}
	case arbitrumSubmitRetryable:
		fields = []any{chain, t.RequestID, t.From, number(t.L1BaseFee), number(t.DepositValue), price, t.Gas, t.RetryTo,
			number(t.RetryValue), t.Beneficiary, number(t.MaxSubmissionFee), t.RefundTo, t.RetryData}
	case arbitrumInternal:
		fields = []any{chain, t.Input}
	default:
		return nil
	}

	content, err := rlp.EncodeToBytes(fields)
	b := append([]byte{byte(t.Type)}, content...)
	if err != nil || crypto.Keccak256Hash(b) != t.Hash {
		return nil
	}

	return b
}
