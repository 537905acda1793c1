package command

import (
	"context"
	"crypto/ecdsa"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
)

const cancelType = "Cancel(bytes32 command)"

var cancelHash = crypto.Keccak256Hash([]byte(cancelType))

// CancelDigest is what a requester signs to give a command up: EIP-712, in the domain of the command.
func CancelDigest(chainID uint64, factory common.Address, id common.Hash) common.Hash {
	return digest(chainID, factory, crypto.Keccak256(cancelHash[:], id[:]))
}

// Cancellation is the body of POST /commands/{id}/cancel.
type Cancellation struct {
	Signature string `json:"signature"` // of CancelDigest, by the command's requester: 0x and 65 bytes
}

// Cancel signs the cancellation of a command with its requester's key.
func (c *Command) Cancel(key *ecdsa.PrivateKey) (Cancellation, error) {
	d := CancelDigest(c.ChainID, c.Factory, c.ID())
	signature, err := crypto.Sign(d[:], key)
	if err != nil {
		return Cancellation{}, fmt.Errorf("sign the cancellation of command %s: %w", c.ID(), err)
	}

	signature[64] += 27

	return Cancellation{Signature: "0x" + hex.EncodeToString(signature)}, nil
}

// Requester returns the signer of a cancellation. The error is ErrSignature.
func (c Cancellation) Requester(chainID uint64, factory common.Address, id common.Hash) (common.Address, error) {
	var signature [65]byte
	r := &reader{}
	if !r.hex("signature", &c.Signature, signature[:]) {
		return common.Address{}, fmt.Errorf("%w: it must be 0x and 130 hexadecimal digits", ErrSignature)
	}

	return signer(CancelDigest(chainID, factory, id), signature)
}

// Cancel gives up a command before anything of it is signed. A *RefusedError with status 409 means that it
// is too late, or that it has its final answer.
func (c *Client) Cancel(ctx context.Context, id common.Hash, signed Cancellation) (Answer, error) {
	body, err := json.Marshal(signed)
	if err != nil {
		return Answer{}, fmt.Errorf("encode the cancellation of command %s: %w", id, err)
	}

	a, err := c.do(ctx, http.MethodPost, "/commands/"+id.Hex()+"/cancel", body)
	if err != nil {
		return a, fmt.Errorf("cancel command %s: %w", id, err)
	}

	return a, nil
}
