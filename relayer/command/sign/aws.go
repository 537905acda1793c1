package sign

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/kms/types"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
)

// AWS signs with a key that never leaves AWS KMS: of the key spec ECC_SECG_P256K1, for SIGN_VERIFY. It
// needs the permissions kms:Sign and kms:GetPublicKey on that key, and no other. Region and credentials
// come from where AWS's own programs take them: environment, files, or the role of pod or machine.
type AWS struct {
	client  *kms.Client
	key     string
	address common.Address
}

// OpenAWS makes sure that a key is of the right kind and belongs to the account. key is its ARN, or that
// of an alias.
func OpenAWS(ctx context.Context, account common.Address, key string,
	options ...func(*config.LoadOptions) error) (*AWS, error) {
	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	cfg, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("open the client of AWS KMS for %s; are region and credentials set? %w", account, err)
	}

	a := &AWS{client: kms.NewFromConfig(cfg), key: key, address: account}
	public, err := a.client.GetPublicKey(ctx, &kms.GetPublicKeyInput{KeyId: &key})
	if err != nil {
		return nil, fmt.Errorf("read the public key %s of %s: %w", key, account, err)
	}

	if public.KeySpec != types.KeySpecEccSecgP256k1 || public.KeyUsage != types.KeyUsageTypeSignVerify {
		return nil, fmt.Errorf("read the public key %s of %s: it is %s for %s, it must be %s for %s", key, account,
			public.KeySpec, public.KeyUsage, types.KeySpecEccSecgP256k1, types.KeyUsageTypeSignVerify)
	}

	switch have, err := addressOfDER(public.PublicKey); {
	case err != nil:
		return nil, fmt.Errorf("read the public key %s of %s: %w", key, account, err)
	case have != account:
		return nil, fmt.Errorf("%w: %s is the key of %s, not of %s", ErrAddress, key, have, account)
	}

	return a, nil
}

// Address is the account's.
func (a *AWS) Address() common.Address { return a.address }

// Sign asks KMS for a signature of the hash, and makes an Ethereum signature of the one that comes.
func (a *AWS) Sign(ctx context.Context, payload []byte) (signature [65]byte, err error) {
	digest := crypto.Keccak256Hash(payload)
	out, err := a.client.Sign(ctx, &kms.SignInput{KeyId: &a.key, Message: digest[:], MessageType: types.MessageTypeDigest,
		SigningAlgorithm: types.SigningAlgorithmSpecEcdsaSha256})
	if err != nil {
		return signature, fmt.Errorf("sign for %s by AWS KMS: %w", a.address, err)
	}

	return fromDER(a.address, digest, out.Signature)
}
