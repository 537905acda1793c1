package sign

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/crypto"
)

// Remote says where a remote signer is: one that speaks Web3Signer's HTTP interface for eth1.
type Remote struct {
	URL                   string // https, or http to this machine
	ClientCert, ClientKey string // paths of a certificate and its key in PEM; empty: none is shown
	ServerCA              string // path of the certificates that vouch for the server, in PEM; empty: the system's
}

// HTTP signs by a remote signer. It sends the whole payload, which that signer hashes, so that its own
// rules can look at what it signs.
type HTTP struct {
	client  *http.Client
	sign    string // URL that signs for the account
	address common.Address
}

const (
	signWithin = 10 * time.Second
	maxKeys    = 4 << 20 // bytes of the list of keys: 30,000 of them
	maxAnswer  = 4 << 10
)

// OpenRemote looks for the account's key among those of the signer.
func OpenRemote(ctx context.Context, account common.Address, r Remote) (*HTTP, error) {
	base, err := url.Parse(strings.TrimRight(r.URL, "/"))
	if err != nil || base.Host == "" || base.User != nil || base.RawQuery != "" {
		return nil, fmt.Errorf("web3signer of %s: give an URL as https://host:9000, without a password", account)
	}

	local := base.Hostname() == "localhost" || net.ParseIP(base.Hostname()).IsLoopback()
	if base.Scheme != "https" && (base.Scheme != "http" || !local) {
		return nil, fmt.Errorf("web3signer of %s: %s://%s must be https, since whoever reaches the signer can sign", account,
			base.Scheme, base.Host)
	}

	transport, err := r.transport()
	if err != nil {
		return nil, fmt.Errorf("web3signer of %s: %w", account, err)
	}

	h := &HTTP{address: account, client: &http.Client{Transport: transport, Timeout: signWithin,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	text, err := h.ask(ctx, http.MethodGet, base.String()+"/api/v1/eth1/publicKeys", nil, maxKeys)
	if err != nil {
		return nil, fmt.Errorf("ask the remote signer for the key of %s: %w", account, err)
	}

	var keys []hexutil.Bytes
	if err := json.Unmarshal(text, &keys); err != nil {
		return nil, fmt.Errorf("ask the remote signer for the key of %s: not a list of public keys", account)
	}

	for _, key := range keys {
		public, err := crypto.UnmarshalPubkey(uncompressed(key))
		if err == nil && crypto.PubkeyToAddress(*public) == account {
			h.sign = base.String() + "/api/v1/eth1/sign/" + key.String()
			return h, nil
		}
	}

	return nil, fmt.Errorf("%w: none of the %d keys of %s is that of %s", ErrAddress, len(keys), base.Host, account)
}

// uncompressed is a public key with the leading byte that Web3Signer leaves out.
func uncompressed(key []byte) []byte {
	if len(key) == 64 {
		return append([]byte{4}, key...)
	}

	return key
}

func (r *Remote) transport() (*http.Transport, error) {
	t := &http.Transport{MaxConnsPerHost: 32, TLSHandshakeTimeout: signWithin, IdleConnTimeout: time.Minute,
		MaxResponseHeaderBytes: 64 << 10, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}
	if r.ClientCert != "" {
		if _, err := tls.LoadX509KeyPair(r.ClientCert, r.ClientKey); err != nil {
			return nil, fmt.Errorf("client_cert and client_key: %w", err)
		}

		t.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(r.ClientCert, r.ClientKey) // a rotation counts from the next connection on
			return &pair, err
		}
	}

	if r.ServerCA != "" {
		text, err := os.ReadFile(r.ServerCA)
		if err != nil {
			return nil, fmt.Errorf("server_ca: %w", err)
		}

		t.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("server_ca: there is no certificate in %s", r.ServerCA)
		}
	}

	return t, nil
}

// ask sends a request and returns at most so many bytes of its answer. What else a signer says may be
// anything, and is not quoted.
func (h *HTTP) ask(ctx context.Context, method, target string, body []byte, most int64) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}

	req.Header.Set("Content-Type", "application/json")
	resp, err := h.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()

	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the signer answers %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}

	text, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	if err == nil && int64(len(text)) > most {
		err = errors.New("the signer's answer is too long")
	}

	return text, err
}

// Close closes the connections that nothing uses.
func (h *HTTP) Close() error {
	h.client.CloseIdleConnections()
	return nil
}

// Address is the account's.
func (h *HTTP) Address() common.Address { return h.address }

// Sign has the signer hash and sign the payload.
func (h *HTTP) Sign(ctx context.Context, payload []byte) (signature [65]byte, err error) {
	body, err := json.Marshal(map[string]hexutil.Bytes{"data": payload})
	if err != nil {
		return signature, err
	}

	text, err := h.ask(ctx, http.MethodPost, h.sign, body, maxAnswer)
	if err != nil {
		return signature, fmt.Errorf("sign for %s by the remote signer: %w", h.address, err)
	}

	raw, err := hexutil.Decode(strings.Trim(strings.TrimSpace(string(text)), `"`))
	if err != nil || len(raw) != len(signature) {
		return signature, fmt.Errorf("%w %s: it is not 65 bytes in hexadecimal", ErrSignature, h.address)
	}

	return assemble(h.address, crypto.Keccak256Hash(payload), new(big.Int).SetBytes(raw[:32]),
		new(big.Int).SetBytes(raw[32:64]))
}
