package evm

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/fusion-prime/escrow-relayer/relayer/chain"
)

// Revert is how a call failed.
type Revert struct {
	Reason string // for people: the contract's error or text, hexadecimal if unknown, or the node's words
	// Unauthorised: the contract returned an error by which the sender has no part in the escrow.
	Unauthorised bool
}

// reverted is how a call failed that a node has answered so; nil: it succeeded. A contract's refusal comes
// with the data that it returned, which may be empty.
func reverted(err error) *Revert {
	fault, is := errors.AsType[*chain.NodeError](err)
	switch {
	case err == nil:
		return nil
	case !is:
		return &Revert{Reason: err.Error()}
	}

	var data hexutil.Bytes
	if json.Unmarshal(fault.Data, &data) == nil {
		return &Revert{Reason: decodeRevert(data),
			Unauthorised: slices.Contains(partyErrors, errorNames[hex.EncodeToString(data)])}
	}

	return &Revert{Reason: fault.Message}
}

// The names of custom errors, by selector: those of the known contracts, and what others call the same.
var errorNames = func() map[string]string {
	names := map[string]string{}
	for _, n := range slices.Concat(partyErrors, []string{
		"AlreadyApproved", "Settled", "AlreadySettled", "AlreadyReleased", "AlreadyRefunded", "TooEarly", "NotYet",
		"ReleaseTimeNotReached", "TimelockNotExpired", "NotEnoughApprovals", "InsufficientApprovals", "TransferFailed",
		"InvalidAmount", "ZeroAmount", "InvalidPayee", "InvalidApprovals",
	}) {
		names[hex.EncodeToString(crypto.Keccak256([]byte(n + "()"))[:4])] = n
	}

	return names
}()

// partyErrors mean that the sender has no part in the escrow, which no waiting mends.
var partyErrors = []string{"NotAllowed", "NotAuthorized", "NotAuthorised", "Unauthorized", "Unauthorised",
	"OnlyPayer", "OnlyParties", "NotParty", "NotPayer"}

// decodeRevert names the reason in what a contract reverted with.
func decodeRevert(data []byte) string {
	if reason, err := abi.UnpackRevert(data); err == nil {
		return reason
	}

	if len(data) >= 4 {
		if name, ok := errorNames[hex.EncodeToString(data[:4])]; ok {
			return name
		}
	}

	return "0x" + hex.EncodeToString(data)
}
