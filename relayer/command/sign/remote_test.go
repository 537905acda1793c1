package sign

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testsign"
)

// authority makes certificates for a test's server and its clients, and writes them to files.
type authority struct {
	t    *testing.T
	key  ed25519.PrivateKey
	cert *x509.Certificate
	dir  string
}

func newAuthority(t *testing.T) *authority {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	a := &authority{t: t, key: key, dir: t.TempDir()}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true,
		BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign}
	text, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	a.cert, err = x509.ParseCertificate(text)
	require.NoError(t, err)
	a.write("ca.pem", "CERTIFICATE", text)

	return a
}

func (a *authority) write(name, what string, content []byte) string {
	path := filepath.Join(a.dir, name)
	require.NoError(a.t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: what, Bytes: content}), 0o600))

	return path
}

func (a *authority) issue(name string) (cert, key string) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(a.t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	text, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	require.NoError(a.t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(a.t, err)

	return a.write(name+".pem", "CERTIFICATE", text), a.write(name+".key", "PRIVATE KEY", secret)
}

// A signer that asks for a client's certificate: with one it signs, without one there is no connection, and its
// own certificate must come from the authority that is named.
func TestRemote(t *testing.T) {
	t.Parallel()
	key, err := crypto.GenerateKey()
	require.NoError(t, err)
	account := crypto.PubkeyToAddress(key.PublicKey)
	ca := newAuthority(t)
	var answer atomic.Pointer[string]
	server := httptest.NewUnstartedServer(testsign.Web3Signer(t, key, &answer))
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	pair, err := tls.LoadX509KeyPair(ca.issue("server"))
	require.NoError(t, err)
	server.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
		Certificates: []tls.Certificate{pair}}
	server.StartTLS()
	t.Cleanup(server.Close)
	cert, secret := ca.issue("relayer")
	full := Remote{URL: server.URL, ClientCert: cert, ClientKey: secret, ServerCA: filepath.Join(ca.dir, "ca.pem")}

	s, err := OpenRemote(t.Context(), account, full)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.Equal(t, account, s.Address())
	for i := range 20 {
		signature, err := s.Sign(t.Context(), []byte{2, byte(i)})
		require.NoError(t, err)
		belongs(t, account, []byte{2, byte(i)}, signature)
	}

	other, err := crypto.GenerateKey()
	require.NoError(t, err)
	foreign, err := crypto.Sign(crypto.Keccak256([]byte("x")), other)
	require.NoError(t, err)
	for _, text := range []string{"", "0x", "<html>secret</html>", hexutil.Encode(foreign),
		hexutil.Encode(make([]byte, 65)),
		strings.Repeat("0", maxAnswer+1)} {
		answer.Store(&text)
		_, err := s.Sign(t.Context(), []byte("x"))
		require.Error(t, err)
		require.NotContains(t, err.Error(), "secret")
	}

	answer.Store(nil)
	_, err = OpenRemote(t.Context(), common.Address{1}, full)
	require.ErrorIs(t, err, ErrAddress)
	for name, change := range map[string]func(*Remote){
		"no certificate of the client": func(r *Remote) { r.ClientCert, r.ClientKey = "", "" },
		"an authority nobody named":    func(r *Remote) { r.ServerCA = "" },
		"no authority in the file":     func(r *Remote) { r.ServerCA = secret },
		"a key of another certificate": func(r *Remote) { _, r.ClientKey = ca.issue("other") },
		"no such path":                 func(r *Remote) { r.URL += "/elsewhere" },
		"no TLS":                       func(r *Remote) { r.URL = "http://192.0.2.1:9000" },
		"a password in the URL":        func(r *Remote) { r.URL = "https://u:hunter2@127.0.0.1" },
	} {
		r := full
		change(&r)
		_, err := OpenRemote(t.Context(), account, r)
		require.Error(t, err, name)
		require.NotContains(t, err.Error(), "hunter2")
	}
}

// What a key was is not in memory where the key was, once it is closed.
func TestAClosedKeyIsOverwritten(t *testing.T) {
	t.Parallel()
	key, err := crypto.GenerateKey()
	require.NoError(t, err)
	words := key.D.Bits() //nolint:staticcheck // looked at, not changed
	l := NewLocal(key)
	require.NoError(t, l.Close())
	for _, word := range words {
		require.Zero(t, word)
	}

	_, err = l.Sign(t.Context(), []byte("x"))
	require.Error(t, err)
}

// belongs requires a signature of the account over a payload, as chains take it.
func belongs(t *testing.T, account common.Address, payload []byte, signature [65]byte) {
	t.Helper()
	public, err := crypto.SigToPub(crypto.Keccak256(payload), signature[:])
	require.NoError(t, err)
	require.Equal(t, account, crypto.PubkeyToAddress(*public))
	require.LessOrEqual(t, new(big.Int).SetBytes(signature[32:64]).Cmp(halfOrder), 0, "s is low")
}
