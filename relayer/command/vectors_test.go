package command

import (
	"encoding/hex"
	"encoding/json"
	"flag"
	"math/big"
	"os"
	"path/filepath"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite testdata/vectors.json")

// vectorKey is the requester's key of the vectors. It is published: it must own nothing.
const vectorKey = "4c0883a69102937d6231471b5dbb6204fe5129617082792ae468d01a3f362318"

// vector is a command with every value on the way to its id and signature.
type vector struct {
	Name          string          `json:"name"`
	DomainHash    string          `json:"domain_separator"`
	ArgsHash      string          `json:"args_hash"`
	KindHash      string          `json:"kind_hash"`
	ReferenceHash string          `json:"reference_hash"`
	ReplyToHash   string          `json:"reply_to_hash"`
	Struct        string          `json:"command_encoded"`
	StructHash    string          `json:"command_hash"`
	ID            string          `json:"command_id"`
	R             string          `json:"r"`
	S             string          `json:"s"`
	V             int             `json:"v"`
	Message       json.RawMessage `json:"message"`
	CancelDigest  string          `json:"cancel_digest"`
	Cancellation  Cancellation    `json:"cancellation"`
}

// vectors are what testdata/vectors.json holds, for clients in other languages.
type vectors struct {
	PrivateKey      string   `json:"requester_private_key"`
	Requester       string   `json:"requester"`
	DomainType      string   `json:"domain_type"`
	DomainTypeHash  string   `json:"domain_type_hash"`
	CreateType      string   `json:"create_type"`
	CreateTypeHash  string   `json:"create_type_hash"`
	CommandType     string   `json:"command_type"`
	CommandTypeHash string   `json:"command_type_hash"`
	CancelType      string   `json:"cancel_type"`
	CancelTypeHash  string   `json:"cancel_type_hash"`
	NameHash        string   `json:"name_hash"`
	VersionHash     string   `json:"version_hash"`
	Vectors         []vector `json:"vectors"`
}

func vectorCommands() map[string]Command {
	factory := common.HexToAddress("0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914")
	sender := common.HexToAddress("0x2c7536E3605D9C16a7a3D7b1898e529396a65c23")
	escrow := common.HexToAddress("0xE3d2980084b291fBA9684208EbDB5A4cb03bBD29")
	most, _ := new(big.Int).SetString("115792089237316195423570985008687907853269984665640564039457584007913129639935", 10)

	return map[string]Command{
		"approve": {ChainID: 11155111, Factory: factory, Kind: Approve, Sender: sender, Escrow: escrow,
			ExpiresAt: 1900000000, MaxFee: big.NewInt(2_000_000_000_000_000)},
		"create": {ChainID: 1, Factory: factory, Kind: Create, Sender: sender, Escrow: escrow,
			Args: &CreateArgs{Payee: common.HexToAddress("0xD0275E28f9e9C3D261db60e8e1204aA2f16f1Ca2"),
				Amount: big.NewInt(1_000_000_000_000_000_000), ReleaseDelay: big.NewInt(3600), ApprovalsRequired: 2,
				Arbiter: common.HexToAddress("0x00000000000000000000000000000000000000A7"), Salt: common.HexToHash("0x05")},
			NotBefore: 1800000000, ExpiresAt: 1900000000, MaxFee: big.NewInt(2_000_000_000_000_000),
			Reference: "Rechnung 7 – ä", ReplyTo: "desk-1", Salt: common.HexToHash("0x06")},
		"release with the largest numbers": {ChainID: 1<<63 - 1, Factory: factory, Kind: Release, Sender: sender,
			Escrow: escrow, NotBefore: maxTime - 1, ExpiresAt: maxTime, MaxFee: most},
	}
}

// describe computes what a client has to, step by step.
func describe(t *testing.T, name string, c Command) vector {
	t.Helper()
	key, err := crypto.HexToECDSA(vectorKey)
	require.NoError(t, err)
	signed, err := c.Sign(key)
	require.NoError(t, err)
	message, err := json.Marshal(signed)
	require.NoError(t, err)

	args := c.Args
	if args == nil {
		args = &CreateArgs{}
	}

	hash := func(parts ...[]byte) []byte { return crypto.Keccak256(parts...) }
	domain := hash(domainHash[:], nameHash[:], versionHash[:], word(c.ChainID), pad(c.Factory))
	create := hash(createHash[:], pad(args.Payee), number(args.Amount), number(args.ReleaseDelay),
		word(uint64(args.ApprovalsRequired)), pad(args.Arbiter), args.Salt[:])
	kind, reference, replyTo := hash([]byte(c.Kind)), hash([]byte(c.Reference)), hash([]byte(c.ReplyTo))
	var encoded []byte
	for _, part := range [][]byte{commandHash[:], kind, pad(c.Sender), pad(c.Escrow), create, word(c.NotBefore),
		word(c.ExpiresAt), number(c.MaxFee), reference, replyTo, c.Salt[:]} {
		encoded = append(encoded, part...)
	}

	structHash := hash(encoded)
	id := hash([]byte{0x19, 0x01}, domain, structHash)
	require.Equal(t, c.ID(), common.BytesToHash(id), "the steps lead to the id")
	text := func(b []byte) string { return "0x" + hex.EncodeToString(b) }
	cancelled, err := c.Cancel(key)
	require.NoError(t, err)
	cancel := hash([]byte{0x19, 0x01}, domain, hash(cancelHash[:], id))
	requester, err := cancelled.Requester(c.ChainID, c.Factory, c.ID())
	require.NoError(t, err)
	require.Equal(t, crypto.PubkeyToAddress(key.PublicKey), requester)

	return vector{Name: name, DomainHash: text(domain), ArgsHash: text(create), KindHash: text(kind),
		ReferenceHash: text(reference), ReplyToHash: text(replyTo), Struct: text(encoded), StructHash: text(structHash),
		ID: text(id), R: text(signed.Signature[:32]), S: text(signed.Signature[32:64]), V: int(signed.Signature[64]),
		Message: message, CancelDigest: text(cancel), Cancellation: cancelled}
}

// testdata/vectors.json is what other languages' clients are tested with: it stays what the code computes.
func TestVectors(t *testing.T) {
	t.Parallel()
	key, err := crypto.HexToECDSA(vectorKey)
	require.NoError(t, err)
	all := vectors{PrivateKey: "0x" + vectorKey, Requester: crypto.PubkeyToAddress(key.PublicKey).Hex(),
		DomainType: domainType, DomainTypeHash: domainHash.Hex(), CreateType: createType, CreateTypeHash: createHash.Hex(),
		CommandType: commandType + createType, CommandTypeHash: commandHash.Hex(),
		CancelType: cancelType, CancelTypeHash: cancelHash.Hex(), NameHash: nameHash.Hex(),
		VersionHash: versionHash.Hex()}
	commands := vectorCommands()
	for _, name := range []string{"approve", "create", "release with the largest numbers"} {
		all.Vectors = append(all.Vectors, describe(t, name, commands[name]))
	}

	got, err := json.MarshalIndent(all, "", "  ")
	require.NoError(t, err)
	got = append(got, '\n')
	path := filepath.Join("testdata", "vectors.json")
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}

	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "run go test ./relayer/command -run TestVectors -update")
}
