package sign

import (
	"math/big"
	"os"
	"path/filepath"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/accounts/keystore"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

func TestKeystore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store := keystore.NewKeyStore(dir, keystore.LightScryptN, keystore.LightScryptP)
	account, err := store.NewAccount("hunter2")
	require.NoError(t, err)
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	password := write("password", "hunter2\n")

	s, err := OpenKeystore(account.Address, account.URL.Path, password)
	require.NoError(t, err)
	digest := crypto.Keccak256Hash([]byte("hello"))
	signature, err := s.Sign(t.Context(), []byte("hello"))
	require.NoError(t, err)
	key, err := crypto.SigToPub(digest[:], signature[:])
	require.NoError(t, err)
	require.Equal(t, account.Address, crypto.PubkeyToAddress(*key))

	_, err = OpenKeystore(common.Address{1}, account.URL.Path, password)
	require.ErrorIs(t, err, ErrAddress)

	for name, files := range map[string][2]string{
		"wrong password": {account.URL.Path, write("wrong", "hunter3")},
		"not a keystore": {write("junk", `{"crypto":"hunter2"}`), password},
		"no key file":    {filepath.Join(dir, "none"), password},
		"no password":    {account.URL.Path, filepath.Join(dir, "none")},
	} {
		_, err := OpenKeystore(account.Address, files[0], files[1])
		require.Error(t, err, name)
		require.NotContains(t, err.Error(), "hunter", name)
	}
}

// A signature whose s is high is the same signature with s low and the other v.
func TestAssembleLowersS(t *testing.T) {
	t.Parallel()
	key, err := crypto.GenerateKey()
	require.NoError(t, err)
	account := crypto.PubkeyToAddress(key.PublicKey)
	digest := crypto.Keccak256Hash([]byte("hello"))
	raw, err := crypto.Sign(digest[:], key)
	require.NoError(t, err)
	r, s := new(big.Int).SetBytes(raw[:32]), new(big.Int).SetBytes(raw[32:64])
	high := new(big.Int).Sub(crypto.S256().Params().N, s)

	for _, given := range []*big.Int{s, high} {
		signature, err := assemble(account, digest, r, given)
		require.NoError(t, err)
		require.Equal(t, raw, signature[:])
	}

	_, err = assemble(common.Address{1}, digest, r, s)
	require.ErrorIs(t, err, ErrSignature)
	_, err = assemble(account, digest, new(big.Int), s)
	require.ErrorIs(t, err, ErrSignature)
}

// Keystores with geth's default cost take 256 MiB each to decrypt: one after the other, so that a container that
// has room for one opens any number of them.
func TestKeystoresAreDecryptedOneAtATime(t *testing.T) {
	dir := t.TempDir()
	password := filepath.Join(dir, "password")
	require.NoError(t, os.WriteFile(password, []byte("hunter2"), 0o600))
	files := make([]string, 2)
	for i := range files {
		account, err := keystore.StoreKey(dir, "hunter2", keystore.StandardScryptN, keystore.StandardScryptP)
		require.NoError(t, err)
		files[i] = account.URL.Path
		debug.FreeOSMemory()
	}

	var peak atomic.Uint64
	stop, measured := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(measured)
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"},
			{Name: "/memory/classes/heap/free:bytes"}}
		for {
			metrics.Read(sample)
			peak.Store(max(peak.Load(), sample[0].Value.Uint64()+sample[1].Value.Uint64()+sample[2].Value.Uint64()))
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()

	var g errgroup.Group
	for _, file := range files {
		g.Go(func() error {
			_, err := ReadKey(file, password)
			return err
		})
	}

	require.NoError(t, g.Wait())
	close(stop)
	<-measured
	require.Less(t, peak.Load(), uint64(400<<20), "bytes that both took")
}
