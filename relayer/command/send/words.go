package send

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/fusion-prime/escrow-relayer/relayer/chain"
)

// What nodes say to a transaction. Collected from geth, erigon, nethermind, besu, reth and anvil.
var (
	knownWords = []string{"already known", "known transaction", "already imported", "alreadyknown", "already in pool",
		"already exists", "transaction already"}
	underWords = []string{"underpriced", "fee too low", "feetoolow", "max fee per gas less than block base fee",
		"gas price too low", "less than block base fee", "below base fee"}
	revertWords = []string{"revert", "insufficient funds", "gas required exceeds"}
	neverWords  = []string{
		"intrinsic gas too low", "exceeds block gas limit", "invalid sender", "oversized data",
		"transaction type not supported", "invalid chain id", "tip higher than",
		"max priority fee per gas higher", "exceeds the configured cap", "gas limit too high", "transaction gas limit",
		"only replay-protected", "floor data gas",
	}
)

// interpret says what a node's answer means. Nil: it has the transaction.
func interpret(err error) error {
	fault, is := errors.AsType[*chain.NodeError](err)
	if !is {
		return err
	}

	switch text := fault.Message; {
	case hasAny(text, knownWords):
		return nil
	case hasAny(text, neverWords):
		return fmt.Errorf("%w: %w", ErrRefused, err)
	case hasAny(text, underWords):
		return fmt.Errorf("%w: %w", ErrUnderpriced, err)
	}

	return err
}

// hasAny says whether a text has one of some phrases in it, which are in lower case.
func hasAny(text string, phrases []string) bool {
	text = strings.ToLower(text)
	return slices.ContainsFunc(phrases, func(p string) bool { return strings.Contains(text, p) })
}

// reverted tells a contract's refusal from a failure to ask.
func reverted(err error) (*Revert, error) {
	fault, is := errors.AsType[*chain.NodeError](err)
	if !is {
		return nil, err
	}

	var data hexutil.Bytes
	if json.Unmarshal(fault.Data, &data) == nil && len(data) > 0 {
		return &Revert{Reason: decodeRevert(data)}, nil
	}

	if fault.Code == 3 || hasAny(fault.Message, revertWords) {
		return &Revert{Reason: fault.Message}, nil
	}

	return nil, err
}

// The names of custom errors, by selector: those of the known contracts, and what others call the same.
var errorNames = func() map[string]string {
	names := map[string]string{}
	for _, n := range []string{
		"NotAllowed", "NotAuthorized", "NotAuthorised", "Unauthorized", "Unauthorised", "OnlyPayer", "OnlyParties",
		"NotParty", "NotPayer",
		"AlreadyApproved", "Settled", "AlreadySettled", "AlreadyReleased", "AlreadyRefunded", "TooEarly", "NotYet",
		"ReleaseTimeNotReached", "TimelockNotExpired",
		"NotEnoughApprovals", "InsufficientApprovals", "TransferFailed", "InvalidAmount", "ZeroAmount", "InvalidPayee",
		"InvalidApprovals",
	} {
		names[hex.EncodeToString(crypto.Keccak256([]byte(n + "()"))[:4])] = n
	}

	return names
}()

// maxReason bounds, in bytes, what a contract can put into our database.
const maxReason = 200

// storable makes words of a node or a contract fit for a column of text: at most so many bytes, and neither
// a zero byte nor what is not UTF-8, which Postgres refuses.
func storable(words string, most int) string {
	words = strings.ReplaceAll(words[:min(len(words), most)], "\x00", "?")

	return strings.ToValidUTF8(words, "?")
}

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

// unauthorised says whether a reason means that the sender has no part in the escrow, which no waiting mends.
func unauthorised(reason string) bool {
	return hasAny(reason, []string{"notallowed", "notauthori", "unauthori", "onlypayer", "onlyparties", "notparty",
		"notpayer", "not authori", "not allowed", "only payer", "only part"})
}
