// Package testsign has a server of keys that really signs, as Web3Signer does.
package testsign

import (
	"crypto/ecdsa"
	"encoding/json"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"
)

// Web3Signer is a server of Web3Signer's interface that really signs: it hashes what it gets, and answers with v as
// 27 or 28. What answer holds, if it does, it answers with instead.
func Web3Signer(t testing.TB, key *ecdsa.PrivateKey, answer *atomic.Pointer[string]) http.Handler {
	other, err := crypto.GenerateKey()
	require.NoError(t, err)
	public := func(k *ecdsa.PrivateKey) hexutil.Bytes { return crypto.FromECDSAPub(&k.PublicKey)[1:] }
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/eth1/publicKeys", func(w http.ResponseWriter, _ *http.Request) {
		if err := json.NewEncoder(w).Encode([]hexutil.Bytes{public(other), public(key)}); err != nil {
			t.Error(err)
		}
	})
	mux.HandleFunc("POST /api/v1/eth1/sign/"+public(key).String(), func(w http.ResponseWriter, r *http.Request) {
		var asked struct{ Data hexutil.Bytes }
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			t.Error(err)
		}

		raw, err := crypto.Sign(crypto.Keccak256(asked.Data), key)
		if err != nil {
			t.Error(err)
		}

		raw[64] += 27
		text := hexutil.Encode(raw)
		if other := answer.Load(); other != nil {
			text = *other
		}

		_, _ = w.Write([]byte(text))
	})

	return mux
}
