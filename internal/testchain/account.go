package testchain

import (
	"crypto/ecdsa"
	"encoding/binary"
	"fmt"
	"math/big"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
)

// Account can sign.
type Account struct {
	Key     *ecdsa.PrivateKey
	Address common.Address
}

// Accounts are the first n of a seed: the same seed gives the same accounts, on every chain and machine.
func Accounts(seed uint64, n int) []Account {
	accounts := make([]Account, n)
	for i := range accounts {
		material := binary.BigEndian.AppendUint64([]byte("escrow relayer test account"), seed)
		key, err := crypto.ToECDSA(crypto.Keccak256(binary.BigEndian.AppendUint64(material, uint64(i))))
		if err != nil { // one hash in 2^128 is no key
			panic(fmt.Sprintf("derive account %d of seed %d: %v", i, seed, err))
		}

		accounts[i] = Account{Key: key, Address: crypto.PubkeyToAddress(key.PublicKey)}
	}

	return accounts
}

// endowment is what a funded account has, in wei: a billion ether, so that the base fee of full
// blocks cannot exhaust it.
var endowment = new(big.Int).Mul(big.NewInt(1e9), big.NewInt(1e18))

func endow(accounts []Account) types.GenesisAlloc {
	alloc := types.GenesisAlloc{}
	for _, a := range accounts {
		alloc[a.Address] = types.Account{Balance: endowment}
	}

	return alloc
}
