package sign

import (
	"context"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"hash/crc32"
	"math/big"
	"time"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
	"google.golang.org/api/option"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// openWithin bounds the look at a key at the start. Google's client repeats within it what may pass.
const openWithin = 30 * time.Second

// KMS signs with a key that never leaves Google Cloud KMS: of the algorithm
// EC_SIGN_SECP256K1_SHA256, which signs any digest of 32 bytes. It needs the permissions
// cloudkms.cryptoKeyVersions.useToSign and viewPublicKey of that key, and no other.
type KMS struct {
	client  *kms.KeyManagementClient
	name    string
	address common.Address
}

// OpenKMS makes sure that a key version is of the right algorithm and belongs to the account. name
// is projects/…/locations/…/keyRings/…/cryptoKeys/…/cryptoKeyVersions/N.
func OpenKMS(ctx context.Context, account common.Address, name string, options ...option.ClientOption) (*KMS, error) {
	client, err := kms.NewKeyManagementClient(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("open the client of Cloud KMS for %s; are there credentials (GOOGLE_APPLICATION_CREDENTIALS)? %w", account, err)
	}

	k := &KMS{client: client, name: name}
	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	if k.address, err = k.read(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("read the public key %s of %s: %w", name, account, err), client.Close())
	}

	if k.address != account {
		return nil, errors.Join(fmt.Errorf("%w: %s is the key of %s, not of %s", ErrAddress, name, k.address, account),
			client.Close())
	}

	return k, nil
}

// Close closes the connection.
func (k *KMS) Close() error { return k.client.Close() }

// Address is the account's.
func (k *KMS) Address() common.Address { return k.address }

// read returns the account of the key.
func (k *KMS) read(ctx context.Context) (a common.Address, err error) {
	key, err := k.client.GetPublicKey(ctx, &kmspb.GetPublicKeyRequest{Name: k.name})
	if err != nil {
		return a, err
	}

	if key.Algorithm != kmspb.CryptoKeyVersion_EC_SIGN_SECP256K1_SHA256 {
		return a, fmt.Errorf("its algorithm is %s, it must be EC_SIGN_SECP256K1_SHA256", key.Algorithm)
	}

	if key.PemCrc32C != nil && key.PemCrc32C.Value != checksum([]byte(key.Pem)) {
		return a, errors.New("the answer was damaged on its way")
	}

	return AddressOf([]byte(key.Pem))
}

// AddressOf is the account of a public key of secp256k1 in PEM, as Cloud KMS gives it.
func AddressOf(text []byte) (a common.Address, err error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return a, errors.New("the public key is not PEM")
	}

	var info struct { // RFC 5280, SubjectPublicKeyInfo; crypto/x509 does not know the curve
		Algorithm pkix.AlgorithmIdentifier
		Key       asn1.BitString
	}
	if rest, err := asn1.Unmarshal(block.Bytes, &info); err != nil || len(rest) > 0 {
		return a, errors.New("it is not that of a public key")
	}

	public, err := crypto.UnmarshalPubkey(info.Key.Bytes)
	if err != nil {
		return a, errors.New("the public key is not a point of secp256k1")
	}

	return crypto.PubkeyToAddress(*public), nil
}

// Sign asks KMS for a signature, and makes an Ethereum signature of the one that comes: with s in
// the lower half, and v.
func (k *KMS) Sign(ctx context.Context, payload []byte) (signature [65]byte, err error) {
	digest := crypto.Keccak256Hash(payload)
	response, err := k.client.AsymmetricSign(ctx, &kmspb.AsymmetricSignRequest{
		Name: k.name, Digest: &kmspb.Digest{Digest: &kmspb.Digest_Sha256{Sha256: digest[:]}},
		DigestCrc32C: wrapperspb.Int64(checksum(digest[:])),
	})
	switch {
	case err != nil:
		return signature, fmt.Errorf("sign for %s by Cloud KMS: %w", k.address, err)
	case !response.VerifiedDigestCrc32C || response.Name != k.name:
		return signature, fmt.Errorf("sign for %s by Cloud KMS: the request was damaged on its way", k.address)
	case response.SignatureCrc32C == nil || response.SignatureCrc32C.Value != checksum(response.Signature):
		return signature, fmt.Errorf("sign for %s by Cloud KMS: the answer was damaged on its way", k.address)
	}

	var pair struct{ R, S *big.Int }
	if rest, err := asn1.Unmarshal(response.Signature, &pair); err != nil || len(rest) > 0 {
		return signature, fmt.Errorf("%w %s: it is not ASN.1", ErrSignature, k.address)
	}

	return assemble(k.address, digest, pair.R, pair.S)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) int64 { return int64(crc32.Checksum(b, castagnoli)) }
