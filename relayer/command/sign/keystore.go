package sign

import (
	"context"
	"crypto/ecdsa"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/ethereum/go-ethereum/accounts/keystore"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
)

// Local signs with a key in this process's memory.
type Local struct {
	key     *ecdsa.PrivateKey
	address common.Address
}

// NewLocal takes a key as it is: for tests and the demo.
func NewLocal(key *ecdsa.PrivateKey) *Local {
	return &Local{key: key, address: crypto.PubkeyToAddress(key.PublicKey)}
}

// decrypting is held while a keystore file is decrypted.
var decrypting sync.Mutex

// ReadKey decrypts a go-ethereum keystore file (version 3) with the password in another file, without
// its trailing line break. It takes about a second and 256 MiB until it returns: scrypt is made
// to. One file at a time is decrypted in a process, and its memory goes back to the system before the
// next one: each may then be as large as a container allows for one. No error holds any of the contents.
func ReadKey(keyFile, passwordFile string) (*keystore.Key, error) {
	content, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, fmt.Errorf("read the keystore file: %w", err)
	}

	password, err := os.ReadFile(passwordFile)
	if err != nil {
		return nil, fmt.Errorf("read the password file: %w", err)
	}

	decrypting.Lock()
	defer decrypting.Unlock()
	defer debug.FreeOSMemory()
	defer clear(password)

	key, err := keystore.DecryptKey(content, strings.TrimRight(string(password), "\r\n"))
	if err != nil {
		return nil, fmt.Errorf("open the keystore file %s: wrong password, or not a keystore file of version 3", keyFile)
	}

	return key, nil
}

// OpenKeystore is ReadKey for the key of an account. ErrAddress if it is another one's.
func OpenKeystore(account common.Address, keyFile, passwordFile string) (*Local, error) {
	key, err := ReadKey(keyFile, passwordFile)
	if err != nil {
		return nil, fmt.Errorf("key of %s: %w", account, err)
	}

	if key.Address != account {
		return nil, fmt.Errorf("%w: %s holds the key of %s, not of %s", ErrAddress, keyFile, key.Address, account)
	}

	return NewLocal(key.PrivateKey), nil
}

// Close overwrites the key in memory. Copies remain that Go does not let a program reach: those that
// its own arithmetic makes while it signs, and what the collector has moved or not yet reused.
func (l *Local) Close() error {
	clear(l.key.D.Bits()) //nolint:staticcheck // the key is to be invalid
	return nil
}

// Address is the account's.
func (l *Local) Address() common.Address { return l.address }

// Sign signs at once; ctx is not needed.
func (l *Local) Sign(_ context.Context, payload []byte) (signature [65]byte, err error) {
	digest := crypto.Keccak256Hash(payload)
	raw, err := crypto.Sign(digest[:], l.key)
	if err != nil {
		return signature, fmt.Errorf("sign for %s: %w", l.address, err)
	}

	return [65]byte(raw), nil
}
