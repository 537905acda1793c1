package sign

import (
	"math/big"
	"net/http/httptest"
	"testing"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testsign"
)

func TestAWS(t *testing.T) {
	t.Parallel()
	key, err := crypto.GenerateKey()
	require.NoError(t, err)
	a := testsign.NewAWS(t, key)
	keep := a.Damage
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	options := []func(*config.LoadOptions) error{config.WithRegion("eu-central-1"), config.WithBaseEndpoint(server.URL),
		config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider("id", "secret", "")),
		config.WithRetryMaxAttempts(1)}
	account := crypto.PubkeyToAddress(key.PublicKey)

	s, err := OpenAWS(t.Context(), account, testsign.AWSKey, options...)
	require.NoError(t, err)
	require.Equal(t, account, s.Address())
	for i := range 20 {
		a.Change(func(a *testsign.AWS) { a.High = i%2 == 0 })
		signature, err := s.Sign(t.Context(), []byte{byte(i)})
		require.NoError(t, err)
		belongs(t, account, []byte{byte(i)}, signature)
	}

	for name, damage := range map[string]func([]byte) []byte{
		"a bit": func(b []byte) []byte { b[10] ^= 1; return b }, "nothing": func([]byte) []byte { return nil },
		"more": func(b []byte) []byte { return append(b, 0) },
		"another key": func([]byte) []byte {
			other, err := crypto.GenerateKey()
			require.NoError(t, err)

			return testsign.DER(t, make([]byte, 32), other, false)
		},
	} {
		a.Change(func(a *testsign.AWS) { a.Damage = damage })
		_, err := s.Sign(t.Context(), []byte("x"))
		require.ErrorIs(t, err, ErrSignature, name)
	}

	a.Change(func(a *testsign.AWS) { a.Damage, a.Fail = keep, true })
	_, err = s.Sign(t.Context(), []byte("x"))
	require.ErrorContains(t, err, "not allowed")
	a.Change(func(a *testsign.AWS) { a.Fail = false })
	_, err = OpenAWS(t.Context(), common.Address{1}, testsign.AWSKey, options...)
	require.ErrorIs(t, err, ErrAddress)
	_, err = OpenAWS(t.Context(), account, testsign.AWSKey+"7", options...)
	require.ErrorContains(t, err, "no such key")
	a.Change(func(a *testsign.AWS) { a.Spec = "ECC_NIST_P256" })
	_, err = OpenAWS(t.Context(), account, testsign.AWSKey, options...)
	require.ErrorContains(t, err, "it must be ECC_SECG_P256K1")
}

// belongs requires a signature of the account over a payload, as chains take it.
func belongs(t *testing.T, account common.Address, payload []byte, signature [65]byte) {
	t.Helper()
	public, err := crypto.SigToPub(crypto.Keccak256(payload), signature[:])
	require.NoError(t, err)
	require.Equal(t, account, crypto.PubkeyToAddress(*public))
	require.LessOrEqual(t, new(big.Int).SetBytes(signature[32:64]).Cmp(halfOrder), 0, "s is low")
}
