package sign

import (
	"crypto/ecdsa"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/json"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"
)

// aws is a server of the JSON protocol of AWS KMS that really signs.
type aws struct {
	t   *testing.T
	key *ecdsa.PrivateKey

	mu     sync.Mutex
	spec   string
	high   bool // answers with the signature whose s is high
	damage func([]byte) []byte
	fail   bool
}

const awsKey = "arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"

func (a *aws) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	answer := func(status int, v any) {
		w.Header().Set("Content-Type", "application/x-amz-json-1.1")
		w.WriteHeader(status)
		if err := json.NewEncoder(w).Encode(v); err != nil {
			a.t.Error(err)
		}
	}
	var asked struct {
		KeyId, MessageType, SigningAlgorithm string //nolint:revive // AWS's name
		Message                              []byte
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		a.t.Error(err)
	}

	signed := strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential=id/")
	switch target := r.Header.Get("X-Amz-Target"); {
	case !signed:
		answer(http.StatusBadRequest, map[string]string{"__type": "MissingAuthenticationTokenException"})
	case asked.KeyId != awsKey:
		answer(http.StatusBadRequest, map[string]string{"__type": "NotFoundException", "message": "no such key"})
	case a.fail:
		answer(http.StatusBadRequest, map[string]string{"__type": "AccessDeniedException", "message": "not allowed"})
	case target == "TrentService.GetPublicKey":
		answer(http.StatusOK, map[string]any{"KeyId": awsKey, "KeySpec": a.spec, "KeyUsage": "SIGN_VERIFY",
			"PublicKey": spki(a.t, &a.key.PublicKey), "SigningAlgorithms": []string{"ECDSA_SHA_256"}})
	case target == "TrentService.Sign" && asked.MessageType == "DIGEST" && asked.SigningAlgorithm == "ECDSA_SHA_256":
		answer(http.StatusOK, map[string]any{"KeyId": awsKey, "SigningAlgorithm": "ECDSA_SHA_256",
			"Signature": a.damage(der(a.t, asked.Message, a.key, a.high))})
	default:
		answer(http.StatusBadRequest, map[string]string{"__type": "ValidationException"})
	}
}

// der signs as ASN.1 writes it.
func der(t *testing.T, digest []byte, key *ecdsa.PrivateKey, high bool) []byte {
	raw, err := crypto.Sign(digest, key)
	require.NoError(t, err)
	s := new(big.Int).SetBytes(raw[32:64])
	if high {
		s.Sub(crypto.S256().Params().N, s)
	}

	text, err := asn1.Marshal(struct{ R, S *big.Int }{new(big.Int).SetBytes(raw[:32]), s})
	require.NoError(t, err)

	return text
}

// spki is a public key of secp256k1 as RFC 5280 writes it.
func spki(t *testing.T, key *ecdsa.PublicKey) []byte {
	curve, err := asn1.Marshal(asn1.ObjectIdentifier{1, 3, 132, 0, 10})
	require.NoError(t, err)
	text, err := asn1.Marshal(struct {
		Algorithm pkix.AlgorithmIdentifier
		Key       asn1.BitString
	}{
		pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 10045, 2, 1},
			Parameters: asn1.RawValue{FullBytes: curve}},
		asn1.BitString{Bytes: crypto.FromECDSAPub(key), BitLength: 65 * 8},
	})
	require.NoError(t, err)

	return text
}

func TestAWS(t *testing.T) {
	t.Parallel()
	key, err := crypto.GenerateKey()
	require.NoError(t, err)
	keep := func(b []byte) []byte { return b }
	a := &aws{t: t, key: key, spec: "ECC_SECG_P256K1", damage: keep}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	options := []func(*config.LoadOptions) error{config.WithRegion("eu-central-1"), config.WithBaseEndpoint(server.URL),
		config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider("id", "secret", "")),
		config.WithRetryMaxAttempts(1)}
	account := crypto.PubkeyToAddress(key.PublicKey)
	set := func(f func()) { a.mu.Lock(); defer a.mu.Unlock(); f() }

	s, err := OpenAWS(t.Context(), account, awsKey, options...)
	require.NoError(t, err)
	require.Equal(t, account, s.Address())
	for i := range 20 {
		set(func() { a.high = i%2 == 0 })
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

			return der(t, make([]byte, 32), other, false)
		},
	} {
		set(func() { a.damage = damage })
		_, err := s.Sign(t.Context(), []byte("x"))
		require.ErrorIs(t, err, ErrSignature, name)
	}

	set(func() { a.damage, a.fail = keep, true })
	_, err = s.Sign(t.Context(), []byte("x"))
	require.ErrorContains(t, err, "not allowed")
	set(func() { a.fail = false })
	_, err = OpenAWS(t.Context(), common.Address{1}, awsKey, options...)
	require.ErrorIs(t, err, ErrAddress)
	_, err = OpenAWS(t.Context(), account, awsKey+"7", options...)
	require.ErrorContains(t, err, "no such key")
	set(func() { a.spec = "ECC_NIST_P256" })
	_, err = OpenAWS(t.Context(), account, awsKey, options...)
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
