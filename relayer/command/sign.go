package command

import (
	"crypto/ecdsa"
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
)

// ErrSignature means that a signature is not one that a key makes over this command.
var ErrSignature = errors.New("bad signature")

// Signed is a command with its requester's signature: r, s and v (27 or 28), as wallets give it for EIP-712.
type Signed struct {
	Command
	Signature [65]byte
}

// Sign checks a command and signs it with the requester's key.
func (c Command) Sign(key *ecdsa.PrivateKey) (*Signed, error) {
	if problems := c.Check(); len(problems) > 0 {
		return nil, problems
	}

	id := c.ID()
	signature, err := crypto.Sign(id[:], key)
	if err != nil {
		return nil, fmt.Errorf("sign command %s: %w", id, err)
	}

	s := &Signed{Command: c, Signature: [65]byte(signature)}
	s.Signature[64] += 27

	return s, nil
}

// Requester returns the signer. Of the two signatures that fit each other only the one with the
// lower s counts (EIP-2), so a command has one signature per key. The error is ErrSignature.
func (s *Signed) Requester() (common.Address, error) { return signer(s.ID(), s.Signature) }

// signer is the account that signed a digest.
func signer(digest common.Hash, signature [65]byte) (common.Address, error) {
	v := signature[64] - 27
	if v > 1 {
		return common.Address{}, fmt.Errorf("%w: v is %d, it must be 27 or 28", ErrSignature, signature[64])
	}

	r, low := common.BytesToHash(signature[:32]).Big(), common.BytesToHash(signature[32:64]).Big()
	if !crypto.ValidateSignatureValues(v, r, low, true) {
		return common.Address{}, fmt.Errorf("%w: r or s is out of range; s must be in the lower half of the curve's order",
			ErrSignature)
	}

	signature[64] = v
	key, err := crypto.SigToPub(digest[:], signature[:])
	if err != nil {
		return common.Address{}, fmt.Errorf("%w: it fits no key", ErrSignature)
	}

	return crypto.PubkeyToAddress(*key), nil
}
