package command

import (
	"fmt"
	"math/big"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
)

// Kind is what a command does to an escrow.
type Kind string

// The kinds of commands.
const (
	Approve Kind = "approve" // approve(), by payer, payee or arbiter
	Release Kind = "release" // release(), by anybody, once approved and due
	Refund  Kind = "refund"  // refund(), by the payer
	Create  Kind = "create"  // createEscrowDeterministic(…) of the factory
)

// Kinds are all there are.
var Kinds = []Kind{Approve, Release, Refund, Create}

// Command is a request to act once. The zero Salt is as good as any.
type Command struct {
	ChainID   uint64
	Factory   common.Address
	Kind      Kind
	Sender    common.Address // the account that acts; its key is the relayer's
	Escrow    common.Address // for Create: the address that it will have
	Args      *CreateArgs    // of Create; nil otherwise
	NotBefore uint64         // unix seconds; 0: at once
	ExpiresAt uint64         // unix seconds; nothing is signed for the first time after it
	MaxFee    *big.Int       // wei: the most that may be paid for gas
	Reference string         // the requester's own, at most 128 characters
	ReplyTo   string         // echoed as an attribute of the answers, at most 128 printable ASCII characters
	Salt      common.Hash    // another one makes another command
}

// CreateArgs are the arguments of createEscrowDeterministic. Amount, in wei, is sent along.
type CreateArgs struct {
	Payee             common.Address
	Amount            *big.Int
	ReleaseDelay      *big.Int // seconds
	ApprovalsRequired uint8
	Arbiter           common.Address
	Salt              common.Hash
}

// The types that are signed, as EIP-712 writes them. The chain's id and the factory are the domain's.
const (
	domainType  = "EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"
	createType  = "Create(address payee,uint256 amount,uint256 releaseDelay,uint8 approvalsRequired,address arbiter,bytes32 salt)"
	commandType = "Command(string kind,address sender,address escrow,Create args,uint64 notBefore,uint64 expiresAt,uint256 maxFee," +
		"string reference,string replyTo,bytes32 salt)"

	// DomainName and DomainVersion are those of the EIP-712 domain.
	DomainName    = "Escrow Relayer Command"
	DomainVersion = "1"
)

var (
	domainHash  = crypto.Keccak256Hash([]byte(domainType))
	createHash  = crypto.Keccak256Hash([]byte(createType))
	commandHash = crypto.Keccak256Hash([]byte(commandType + createType))
	nameHash    = crypto.Keccak256Hash([]byte(DomainName))
	versionHash = crypto.Keccak256Hash([]byte(DomainVersion))
)

// ID is the EIP-712 digest. Commands without arguments are hashed with arguments that are all zero.
func (c *Command) ID() common.Hash {
	args := c.Args
	if args == nil {
		args = &CreateArgs{}
	}

	create := crypto.Keccak256(createHash[:], pad(args.Payee), number(args.Amount), number(args.ReleaseDelay),
		word(uint64(args.ApprovalsRequired)), pad(args.Arbiter), args.Salt[:])

	message := crypto.Keccak256(commandHash[:], crypto.Keccak256([]byte(c.Kind)), pad(c.Sender), pad(c.Escrow), create,
		word(c.NotBefore), word(c.ExpiresAt), number(c.MaxFee), crypto.Keccak256([]byte(c.Reference)),
		crypto.Keccak256([]byte(c.ReplyTo)), c.Salt[:])

	return digest(c.ChainID, c.Factory, message)
}

// digest is what is signed of a struct's hash in the domain of a chain and a factory.
func digest(chainID uint64, factory common.Address, message []byte) common.Hash {
	domain := crypto.Keccak256(domainHash[:], nameHash[:], versionHash[:], word(chainID), pad(factory))

	return crypto.Keccak256Hash([]byte{0x19, 0x01}, domain, message)
}

// Value is what the transaction sends along, in wei.
func (c *Command) Value() *big.Int {
	if c.Args == nil || c.Args.Amount == nil {
		return new(big.Int)
	}

	return c.Args.Amount
}

// Effect names what of an escrow a command claims. Two commands with the same effect on the same
// escrow cannot both take effect.
func (c *Command) Effect() string {
	switch c.Kind {
	case Approve:
		return "approve:" + lower(c.Sender)
	case Create:
		return "create"
	default:
		return "settle"
	}
}

func word(n uint64) []byte { return number(new(big.Int).SetUint64(n)) }

func pad(a common.Address) []byte { return common.LeftPadBytes(a[:], 32) }

// number is a uint256; what does not fit was refused before.
func number(n *big.Int) []byte {
	if n == nil {
		return make([]byte, 32)
	}

	return common.BigToHash(n).Bytes()
}

func lower(a common.Address) string { return fmt.Sprintf("0x%x", a[:]) }
