// Package sign makes signatures with keys that it keeps to itself: of a go-ethereum keystore file, in
// Google Cloud KMS, or behind a remote signer over HTTP, which covers what speaks Web3Signer's
// interface: AWS KMS, HSMs, Azure Key Vault, HashiCorp Vault. Whatever a server answers counts only if
// it is a signature of the account over the digest.
//
// What the payloads are is the business of relayer/command/send, which stores what it signed before it lets it out.
package sign

import (
	"errors"
	"fmt"
	"math/big"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
)

var (
	// ErrAddress means that a key belongs to another account than the one it was configured for.
	ErrAddress = errors.New("the key belongs to another account")
	// ErrSignature means that what came back is not a signature of the account over the digest.
	ErrSignature = errors.New("not a signature of this account")
)

// halfOrder is half the order of secp256k1: of the two values of s that fit a signature, chains
// take the one up to here (EIP-2).
var halfOrder = new(big.Int).Rsh(crypto.S256().Params().N, 1)

// assemble makes an Ethereum signature of r and s: s is brought into the lower half, and v is found
// by trying which of the two keys that fit is the account's.
func assemble(account common.Address, digest common.Hash, r, s *big.Int) (signature [65]byte, err error) {
	if s.Cmp(halfOrder) > 0 {
		s = new(big.Int).Sub(crypto.S256().Params().N, s)
	}

	if !crypto.ValidateSignatureValues(0, r, s, true) {
		return signature, fmt.Errorf("%w: r or s is out of range", ErrSignature)
	}

	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:64])
	for v := range byte(2) {
		signature[64] = v
		if key, err := crypto.SigToPub(digest[:], signature[:]); err == nil && crypto.PubkeyToAddress(*key) == account {
			return signature, nil
		}
	}

	return [65]byte{}, fmt.Errorf("%w %s", ErrSignature, account)
}
