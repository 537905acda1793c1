package sign

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"net"
	"sync"
	"testing"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// vault is a server of Google's own protobuf service that really signs. There is no emulator of KMS.
type vault struct {
	kmspb.UnimplementedKeyManagementServiceServer
	key *ecdsa.PrivateKey

	mu        sync.Mutex
	high      bool // answers with the signature whose s is high, as KMS does half of the time
	algorithm kmspb.CryptoKeyVersion_CryptoKeyVersionAlgorithm
	damage    func(*kmspb.AsymmetricSignResponse)
	fail      codes.Code
	asked     int
}

const keyName = "projects/p/locations/global/keyRings/r/cryptoKeys/k/cryptoKeyVersions/1"

func (v *vault) GetPublicKey(_ context.Context, r *kmspb.GetPublicKeyRequest) (*kmspb.PublicKey, error) {
	if r.Name != keyName {
		return nil, status.Error(codes.NotFound, "no such key")
	}

	curve, err := asn1.Marshal(asn1.ObjectIdentifier{1, 3, 132, 0, 10})
	if err != nil {
		return nil, err
	}

	der, err := asn1.Marshal(struct {
		Algorithm pkix.AlgorithmIdentifier
		Key       asn1.BitString
	}{
		pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 10045, 2, 1},
			Parameters: asn1.RawValue{FullBytes: curve}},
		asn1.BitString{Bytes: crypto.FromECDSAPub(&v.key.PublicKey), BitLength: 65 * 8},
	})
	if err != nil {
		return nil, err
	}

	text := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})

	return &kmspb.PublicKey{Pem: string(text), PemCrc32C: wrapperspb.Int64(checksum(text)), Algorithm: v.algorithm,
		Name: keyName}, nil
}

func (v *vault) AsymmetricSign(_ context.Context, r *kmspb.AsymmetricSignRequest) (*kmspb.AsymmetricSignResponse,
	error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.asked++
	if v.fail != codes.OK {
		return nil, status.Error(v.fail, "quota exceeded")
	}

	digest := r.Digest.GetSha256()
	raw, err := crypto.Sign(digest, v.key)
	if err != nil {
		return nil, err
	}

	s := new(big.Int).SetBytes(raw[32:64])
	if v.high {
		s.Sub(crypto.S256().Params().N, s)
	}

	der, err := asn1.Marshal(struct{ R, S *big.Int }{new(big.Int).SetBytes(raw[:32]), s})
	if err != nil {
		return nil, err
	}

	response := &kmspb.AsymmetricSignResponse{
		Signature: der, SignatureCrc32C: wrapperspb.Int64(checksum(der)), Name: keyName,
		VerifiedDigestCrc32C: r.DigestCrc32C.GetValue() == checksum(digest),
	}
	if v.damage != nil {
		v.damage(response)
	}

	return response, nil
}

func startVault(t *testing.T) (*vault, []option.ClientOption) {
	t.Helper()
	key, err := crypto.GenerateKey()
	require.NoError(t, err)
	v := &vault{key: key, algorithm: kmspb.CryptoKeyVersion_EC_SIGN_SECP256K1_SHA256}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	kmspb.RegisterKeyManagementServiceServer(server, v)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); require.NoError(t, <-done) })

	return v, []option.ClientOption{
		option.WithEndpoint(listener.Addr().String()), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
	}
}

func TestKMS(t *testing.T) {
	t.Parallel()
	v, options := startVault(t)
	account := crypto.PubkeyToAddress(v.key.PublicKey)
	k, err := OpenKMS(t.Context(), account, keyName, options...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, k.Close()) })
	set := func(f func()) { v.mu.Lock(); defer v.mu.Unlock(); f() }

	for i := range 20 {
		set(func() { v.high = i%2 == 0 })
		digest := crypto.Keccak256Hash([]byte{byte(i)})
		signature, err := k.Sign(t.Context(), []byte{byte(i)})
		require.NoError(t, err)
		public, err := crypto.SigToPub(digest[:], signature[:])
		require.NoError(t, err)
		require.Equal(t, account, crypto.PubkeyToAddress(*public))
		require.LessOrEqual(t, new(big.Int).SetBytes(signature[32:64]).Cmp(halfOrder), 0, "s is low")
	}

	for name, damage := range map[string]func(*kmspb.AsymmetricSignResponse){
		"a bit of the signature":  func(r *kmspb.AsymmetricSignResponse) { r.Signature[10] ^= 1 },
		"no checksum":             func(r *kmspb.AsymmetricSignResponse) { r.SignatureCrc32C = nil },
		"another key":             func(r *kmspb.AsymmetricSignResponse) { r.Name = "other" },
		"the request was damaged": func(r *kmspb.AsymmetricSignResponse) { r.VerifiedDigestCrc32C = false },
		"another signature": func(r *kmspb.AsymmetricSignResponse) {
			r.Signature[10] ^= 1
			r.SignatureCrc32C.Value = checksum(r.Signature)
		},
		"not a signature": func(r *kmspb.AsymmetricSignResponse) {
			r.Signature = []byte{1}
			r.SignatureCrc32C.Value = checksum([]byte{1})
		},
	} {
		set(func() { v.damage = damage })
		_, err := k.Sign(t.Context(), []byte("x"))
		require.Error(t, err, name)
	}

	set(func() { v.damage, v.fail = nil, codes.ResourceExhausted })
	_, err = k.Sign(t.Context(), []byte("x"))
	require.ErrorContains(t, err, "quota exceeded", "the caller waits and tries again")
}

func TestOpenKMSChecksTheKey(t *testing.T) {
	t.Parallel()
	v, options := startVault(t)
	account := crypto.PubkeyToAddress(v.key.PublicKey)
	_, err := OpenKMS(t.Context(), common.Address{1}, keyName, options...)
	require.ErrorIs(t, err, ErrAddress)
	_, err = OpenKMS(t.Context(), account, keyName+"7", options...)
	require.ErrorContains(t, err, "no such key")
	v.algorithm = kmspb.CryptoKeyVersion_EC_SIGN_P256_SHA256
	_, err = OpenKMS(t.Context(), account, keyName, options...)
	require.ErrorContains(t, err, "EC_SIGN_SECP256K1_SHA256")
}
