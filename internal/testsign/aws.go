// Package testsign has servers of keys that really sign, as AWS KMS and Web3Signer do.
package testsign

import (
	"crypto/ecdsa"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/json"
	"math/big"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"
)

// AWS is a server of the JSON protocol of AWS KMS that really signs, for those who have the access key "id".
type AWS struct {
	T   testing.TB
	Key *ecdsa.PrivateKey

	mu     sync.Mutex
	Spec   string // of the key
	High   bool   // answers with the signature whose s is high
	Damage func([]byte) []byte
	Fail   bool
}

// NewAWS has a key as Ethereum needs it.
func NewAWS(t testing.TB, key *ecdsa.PrivateKey) *AWS {
	return &AWS{T: t, Key: key, Spec: "ECC_SECG_P256K1", Damage: func(b []byte) []byte { return b }}
}

// Change changes how it answers from now on.
func (a *AWS) Change(f func(*AWS)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f(a)
}

// AWSKey is the name of the key.
const AWSKey = "arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"

// ServeHTTP serves GetPublicKey and Sign.
func (a *AWS) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	answer := func(status int, v any) {
		w.Header().Set("Content-Type", "application/x-amz-json-1.1")
		w.WriteHeader(status)
		if err := json.NewEncoder(w).Encode(v); err != nil {
			a.T.Error(err)
		}
	}
	var asked struct {
		KeyId, MessageType, SigningAlgorithm string //nolint:revive // AWS's name
		Message                              []byte
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		a.T.Error(err)
	}

	signed := strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential=id/")
	switch target := r.Header.Get("X-Amz-Target"); {
	case !signed:
		answer(http.StatusBadRequest, map[string]string{"__type": "MissingAuthenticationTokenException"})
	case asked.KeyId != AWSKey:
		answer(http.StatusBadRequest, map[string]string{"__type": "NotFoundException", "message": "no such key"})
	case a.Fail:
		answer(http.StatusBadRequest, map[string]string{"__type": "AccessDeniedException", "message": "not allowed"})
	case target == "TrentService.GetPublicKey":
		answer(http.StatusOK, map[string]any{"KeyId": AWSKey, "KeySpec": a.Spec, "KeyUsage": "SIGN_VERIFY",
			"PublicKey": spki(a.T, &a.Key.PublicKey), "SigningAlgorithms": []string{"ECDSA_SHA_256"}})
	case target == "TrentService.Sign" && asked.MessageType == "DIGEST" && asked.SigningAlgorithm == "ECDSA_SHA_256":
		answer(http.StatusOK, map[string]any{"KeyId": AWSKey, "SigningAlgorithm": "ECDSA_SHA_256",
			"Signature": a.Damage(DER(a.T, asked.Message, a.Key, a.High))})
	default:
		answer(http.StatusBadRequest, map[string]string{"__type": "ValidationException"})
	}
}

// DER signs as ASN.1 writes it.
func DER(t testing.TB, digest []byte, key *ecdsa.PrivateKey, high bool) []byte {
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
func spki(t testing.TB, key *ecdsa.PublicKey) []byte {
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
