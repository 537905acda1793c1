// Code generated via abigen V2 - DO NOT EDIT.
// This file is a generated binding and any manual changes will be lost.

package contracts

import (
	"bytes"
	"errors"
	"math/big"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/accounts/abi/bind/v2"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
)

// Reference imports to suppress errors if they are not otherwise used.
var (
	_ = bytes.Equal
	_ = errors.New
	_ = big.NewInt
	_ = common.Big1
	_ = types.BloomLookup
	_ = abi.ConvertType
)

// DealMetaData contains all meta data concerning the Deal contract.
var DealMetaData = bind.MetaData{
	ABI: "[{\"inputs\":[{\"internalType\":\"addresspayable\",\"name\":\"b\",\"type\":\"address\"},{\"internalType\":\"addresspayable\",\"name\":\"s\",\"type\":\"address\"}],\"stateMutability\":\"payable\",\"type\":\"constructor\"},{\"anonymous\":false,\"inputs\":[{\"indexed\":false,\"internalType\":\"string\",\"name\":\"reason\",\"type\":\"string\"}],\"name\":\"Cancelled\",\"type\":\"event\"},{\"anonymous\":false,\"inputs\":[],\"name\":\"Expired\",\"type\":\"event\"},{\"anonymous\":false,\"inputs\":[{\"indexed\":true,\"internalType\":\"address\",\"name\":\"to\",\"type\":\"address\"},{\"indexed\":false,\"internalType\":\"uint256\",\"name\":\"price\",\"type\":\"uint256\"}],\"name\":\"Settled\",\"type\":\"event\"},{\"anonymous\":false,\"inputs\":[{\"indexed\":false,\"internalType\":\"uint256\",\"name\":\"price\",\"type\":\"uint256\"}],\"name\":\"Started\",\"type\":\"event\"},{\"inputs\":[],\"name\":\"buyer\",\"outputs\":[{\"internalType\":\"addresspayable\",\"name\":\"\",\"type\":\"address\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"string\",\"name\":\"reason\",\"type\":\"string\"}],\"name\":\"cancel\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[],\"name\":\"expire\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[],\"name\":\"seller\",\"outputs\":[{\"internalType\":\"addresspayable\",\"name\":\"\",\"type\":\"address\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[],\"name\":\"settle\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[],\"name\":\"started\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"}]",
	ID:  "Deal",
	Bin: "0x60c060405260405161042738038061042783398101604081905261002291610054565b6001600160a01b0390811660a05216608052610085565b80516001600160a01b038116811461004f575f5ffd5b919050565b5f5f60408385031215610065575f5ffd5b61006e83610039565b915061007c60208401610039565b90509250929050565b60805160a0516103676100c05f395f818160690152818161016301526101c901525f818160d101528181610139015261025001526103675ff3fe608060405234801561000f575f5ffd5b5060043610610060575f3560e01c806308551a53146100645780630b4f3f3d146100a757806311da60b4146100bc5780631f2698ab146100c45780637150d8ae146100cc57806379599f96146100f3575b5f5ffd5b61008b7f000000000000000000000000000000000000000000000000000000000000000081565b6040516001600160a01b03909116815260200160405180910390f35b6100ba6100b53660046102cb565b6100fb565b005b6100ba610161565b6100ba6101ef565b61008b7f000000000000000000000000000000000000000000000000000000000000000081565b6100ba610223565b7f2ac842f90dab3279148f7e55ac91d911f75c1c300a202a5250e05400b15fa156828260405161012c929190610339565b60405180910390a161015d7f0000000000000000000000000000000000000000000000000000000000000000610270565b5050565b7f00000000000000000000000000000000000000000000000000000000000000006001600160a01b03167f7823e479a1a4ebe2418874847436f8a1680c5ee5b17f38bb59dbff28e1b45552476040516101bc91815260200190565b60405180910390a26101ed7f0000000000000000000000000000000000000000000000000000000000000000610270565b565b6040514781527e6e0c97de781a7389d44ba8fd35d1467cabb17ed04d038d166d34ab819213f39060200160405180910390a1565b6040517f203d82d8d99f63bfecc8335216735e0271df4249ea752b030f9ab305b94e5afe905f90a16101ed7f00000000000000000000000000000000000000000000000000000000000000005b5f816001600160a01b0316476040515f6040518083038185875af1925050503d805f81146102b9576040519150601f19603f3d011682016040523d82523d5f602084013e6102be565b606091505b505090508061015d575f5ffd5b5f5f602083850312156102dc575f5ffd5b823567ffffffffffffffff8111156102f2575f5ffd5b8301601f81018513610302575f5ffd5b803567ffffffffffffffff811115610318575f5ffd5b856020828401011115610329575f5ffd5b6020919091019590945092505050565b60208152816020820152818360408301375f818301604090810191909152601f909201601f1916010191905056",
}

// Deal is an auto generated Go binding around an Ethereum contract.
type Deal struct {
	abi abi.ABI
}

// GetABI returns the ABI associated with this contract binding.
func (c *Deal) GetABI() abi.ABI {
	return c.abi
}

// NewDeal creates a new instance of Deal.
func NewDeal() *Deal {
	parsed, err := DealMetaData.ParseABI()
	if err != nil {
		panic(errors.New("invalid ABI: " + err.Error()))
	}
	return &Deal{abi: *parsed}
}

// Instance creates a wrapper for a deployed contract instance at the given address.
// Use this to create the instance object passed to abigen v2 library functions Call, Transact, etc.
func (c *Deal) Instance(backend bind.ContractBackend, addr common.Address) *bind.BoundContract {
	return bind.NewBoundContract(addr, c.abi, backend, backend, backend)
}

// PackConstructor is the Go binding used to pack the parameters required for
// contract deployment.
//
// Solidity: constructor(address b, address s) payable returns()
func (deal *Deal) PackConstructor(b common.Address, s common.Address) []byte {
	enc, err := deal.abi.Pack("", b, s)
	if err != nil {
		panic(err)
	}
	return enc
}

// PackBuyer is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x7150d8ae.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function buyer() view returns(address)
func (deal *Deal) PackBuyer() []byte {
	enc, err := deal.abi.Pack("buyer")
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackBuyer is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x7150d8ae.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function buyer() view returns(address)
func (deal *Deal) TryPackBuyer() ([]byte, error) {
	return deal.abi.Pack("buyer")
}

// UnpackBuyer is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0x7150d8ae.
//
// Solidity: function buyer() view returns(address)
func (deal *Deal) UnpackBuyer(data []byte) (common.Address, error) {
	out, err := deal.abi.Unpack("buyer", data)
	if err != nil {
		return *new(common.Address), err
	}
	out0 := *abi.ConvertType(out[0], new(common.Address)).(*common.Address)
	return out0, nil
}

// PackCancel is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x0b4f3f3d.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function cancel(string reason) returns()
func (deal *Deal) PackCancel(reason string) []byte {
	enc, err := deal.abi.Pack("cancel", reason)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackCancel is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x0b4f3f3d.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function cancel(string reason) returns()
func (deal *Deal) TryPackCancel(reason string) ([]byte, error) {
	return deal.abi.Pack("cancel", reason)
}

// PackExpire is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x79599f96.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function expire() returns()
func (deal *Deal) PackExpire() []byte {
	enc, err := deal.abi.Pack("expire")
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackExpire is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x79599f96.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function expire() returns()
func (deal *Deal) TryPackExpire() ([]byte, error) {
	return deal.abi.Pack("expire")
}

// PackSeller is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x08551a53.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function seller() view returns(address)
func (deal *Deal) PackSeller() []byte {
	enc, err := deal.abi.Pack("seller")
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackSeller is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x08551a53.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function seller() view returns(address)
func (deal *Deal) TryPackSeller() ([]byte, error) {
	return deal.abi.Pack("seller")
}

// UnpackSeller is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0x08551a53.
//
// Solidity: function seller() view returns(address)
func (deal *Deal) UnpackSeller(data []byte) (common.Address, error) {
	out, err := deal.abi.Unpack("seller", data)
	if err != nil {
		return *new(common.Address), err
	}
	out0 := *abi.ConvertType(out[0], new(common.Address)).(*common.Address)
	return out0, nil
}

// PackSettle is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x11da60b4.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function settle() returns()
func (deal *Deal) PackSettle() []byte {
	enc, err := deal.abi.Pack("settle")
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackSettle is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x11da60b4.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function settle() returns()
func (deal *Deal) TryPackSettle() ([]byte, error) {
	return deal.abi.Pack("settle")
}

// PackStarted is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x1f2698ab.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function started() returns()
func (deal *Deal) PackStarted() []byte {
	enc, err := deal.abi.Pack("started")
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackStarted is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x1f2698ab.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function started() returns()
func (deal *Deal) TryPackStarted() ([]byte, error) {
	return deal.abi.Pack("started")
}

// DealCancelled represents a Cancelled event raised by the Deal contract.
type DealCancelled struct {
	Reason string
	Raw    *types.Log // Blockchain specific contextual infos
}

const DealCancelledEventName = "Cancelled"

// ContractEventName returns the user-defined event name.
func (DealCancelled) ContractEventName() string {
	return DealCancelledEventName
}

// UnpackCancelledEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event Cancelled(string reason)
func (deal *Deal) UnpackCancelledEvent(log *types.Log) (*DealCancelled, error) {
	event := "Cancelled"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != deal.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(DealCancelled)
	if len(log.Data) > 0 {
		if err := deal.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range deal.abi.Events[event].Inputs {
		if arg.Indexed {
			indexed = append(indexed, arg)
		}
	}
	if err := abi.ParseTopics(out, indexed, log.Topics[1:]); err != nil {
		return nil, err
	}
	out.Raw = log
	return out, nil
}

// DealExpired represents a Expired event raised by the Deal contract.
type DealExpired struct {
	Raw *types.Log // Blockchain specific contextual infos
}

const DealExpiredEventName = "Expired"

// ContractEventName returns the user-defined event name.
func (DealExpired) ContractEventName() string {
	return DealExpiredEventName
}

// UnpackExpiredEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event Expired()
func (deal *Deal) UnpackExpiredEvent(log *types.Log) (*DealExpired, error) {
	event := "Expired"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != deal.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(DealExpired)
	if len(log.Data) > 0 {
		if err := deal.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range deal.abi.Events[event].Inputs {
		if arg.Indexed {
			indexed = append(indexed, arg)
		}
	}
	if err := abi.ParseTopics(out, indexed, log.Topics[1:]); err != nil {
		return nil, err
	}
	out.Raw = log
	return out, nil
}

// DealSettled represents a Settled event raised by the Deal contract.
type DealSettled struct {
	To    common.Address
	Price *big.Int
	Raw   *types.Log // Blockchain specific contextual infos
}

const DealSettledEventName = "Settled"

// ContractEventName returns the user-defined event name.
func (DealSettled) ContractEventName() string {
	return DealSettledEventName
}

// UnpackSettledEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event Settled(address indexed to, uint256 price)
func (deal *Deal) UnpackSettledEvent(log *types.Log) (*DealSettled, error) {
	event := "Settled"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != deal.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(DealSettled)
	if len(log.Data) > 0 {
		if err := deal.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range deal.abi.Events[event].Inputs {
		if arg.Indexed {
			indexed = append(indexed, arg)
		}
	}
	if err := abi.ParseTopics(out, indexed, log.Topics[1:]); err != nil {
		return nil, err
	}
	out.Raw = log
	return out, nil
}

// DealStarted represents a Started event raised by the Deal contract.
type DealStarted struct {
	Price *big.Int
	Raw   *types.Log // Blockchain specific contextual infos
}

const DealStartedEventName = "Started"

// ContractEventName returns the user-defined event name.
func (DealStarted) ContractEventName() string {
	return DealStartedEventName
}

// UnpackStartedEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event Started(uint256 price)
func (deal *Deal) UnpackStartedEvent(log *types.Log) (*DealStarted, error) {
	event := "Started"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != deal.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(DealStarted)
	if len(log.Data) > 0 {
		if err := deal.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range deal.abi.Events[event].Inputs {
		if arg.Indexed {
			indexed = append(indexed, arg)
		}
	}
	if err := abi.ParseTopics(out, indexed, log.Topics[1:]); err != nil {
		return nil, err
	}
	out.Raw = log
	return out, nil
}

// DealsMetaData contains all meta data concerning the Deals contract.
var DealsMetaData = bind.MetaData{
	ABI: "[{\"anonymous\":false,\"inputs\":[{\"indexed\":true,\"internalType\":\"uint256\",\"name\":\"id\",\"type\":\"uint256\"},{\"indexed\":true,\"internalType\":\"address\",\"name\":\"deal\",\"type\":\"address\"},{\"indexed\":false,\"internalType\":\"address\",\"name\":\"buyer\",\"type\":\"address\"},{\"indexed\":false,\"internalType\":\"uint256\",\"name\":\"price\",\"type\":\"uint256\"}],\"name\":\"Opened\",\"type\":\"event\"},{\"inputs\":[],\"name\":\"count\",\"outputs\":[{\"internalType\":\"uint256\",\"name\":\"\",\"type\":\"uint256\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"addresspayable\",\"name\":\"seller\",\"type\":\"address\"}],\"name\":\"open\",\"outputs\":[{\"internalType\":\"contractDeal\",\"name\":\"deal\",\"type\":\"address\"}],\"stateMutability\":\"payable\",\"type\":\"function\"}]",
	ID:  "Deals",
	Bin: "0x6080604052348015600e575f5ffd5b506105f08061001c5f395ff3fe608060405260043610610028575f3560e01c806306661abd1461002c578063b95460f814610053575b5f5ffd5b348015610037575f5ffd5b506100405f5481565b6040519081526020015b60405180910390f35b610066610061366004610177565b61007e565b6040516001600160a01b03909116815260200161004a565b5f34338360405161008e9061016a565b6001600160a01b039283168152911660208201526040016040518091039082f09050801580156100c0573d5f5f3e3d5ffd5b509050806001600160a01b03165f5f81546100da906101a4565b9182905550604080513381523460208201527f23f3594e94955c18b73f9c006a291dfcec541676a1797820889b70e4215427ed910160405180910390a3806001600160a01b0316631f2698ab6040518163ffffffff1660e01b81526004015f604051808303815f87803b15801561014f575f5ffd5b505af1158015610161573d5f5f3e3d5ffd5b50505050919050565b610427806101c983390190565b5f60208284031215610187575f5ffd5b81356001600160a01b038116811461019d575f5ffd5b9392505050565b5f600182016101c157634e487b7160e01b5f52601160045260245ffd5b506001019056fe60c060405260405161042738038061042783398101604081905261002291610054565b6001600160a01b0390811660a05216608052610085565b80516001600160a01b038116811461004f575f5ffd5b919050565b5f5f60408385031215610065575f5ffd5b61006e83610039565b915061007c60208401610039565b90509250929050565b60805160a0516103676100c05f395f818160690152818161016301526101c901525f818160d101528181610139015261025001526103675ff3fe608060405234801561000f575f5ffd5b5060043610610060575f3560e01c806308551a53146100645780630b4f3f3d146100a757806311da60b4146100bc5780631f2698ab146100c45780637150d8ae146100cc57806379599f96146100f3575b5f5ffd5b61008b7f000000000000000000000000000000000000000000000000000000000000000081565b6040516001600160a01b03909116815260200160405180910390f35b6100ba6100b53660046102cb565b6100fb565b005b6100ba610161565b6100ba6101ef565b61008b7f000000000000000000000000000000000000000000000000000000000000000081565b6100ba610223565b7f2ac842f90dab3279148f7e55ac91d911f75c1c300a202a5250e05400b15fa156828260405161012c929190610339565b60405180910390a161015d7f0000000000000000000000000000000000000000000000000000000000000000610270565b5050565b7f00000000000000000000000000000000000000000000000000000000000000006001600160a01b03167f7823e479a1a4ebe2418874847436f8a1680c5ee5b17f38bb59dbff28e1b45552476040516101bc91815260200190565b60405180910390a26101ed7f0000000000000000000000000000000000000000000000000000000000000000610270565b565b6040514781527e6e0c97de781a7389d44ba8fd35d1467cabb17ed04d038d166d34ab819213f39060200160405180910390a1565b6040517f203d82d8d99f63bfecc8335216735e0271df4249ea752b030f9ab305b94e5afe905f90a16101ed7f00000000000000000000000000000000000000000000000000000000000000005b5f816001600160a01b0316476040515f6040518083038185875af1925050503d805f81146102b9576040519150601f19603f3d011682016040523d82523d5f602084013e6102be565b606091505b505090508061015d575f5ffd5b5f5f602083850312156102dc575f5ffd5b823567ffffffffffffffff8111156102f2575f5ffd5b8301601f81018513610302575f5ffd5b803567ffffffffffffffff811115610318575f5ffd5b856020828401011115610329575f5ffd5b6020919091019590945092505050565b60208152816020820152818360408301375f818301604090810191909152601f909201601f1916010191905056",
}

// Deals is an auto generated Go binding around an Ethereum contract.
type Deals struct {
	abi abi.ABI
}

// GetABI returns the ABI associated with this contract binding.
func (c *Deals) GetABI() abi.ABI {
	return c.abi
}

// NewDeals creates a new instance of Deals.
func NewDeals() *Deals {
	parsed, err := DealsMetaData.ParseABI()
	if err != nil {
		panic(errors.New("invalid ABI: " + err.Error()))
	}
	return &Deals{abi: *parsed}
}

// Instance creates a wrapper for a deployed contract instance at the given address.
// Use this to create the instance object passed to abigen v2 library functions Call, Transact, etc.
func (c *Deals) Instance(backend bind.ContractBackend, addr common.Address) *bind.BoundContract {
	return bind.NewBoundContract(addr, c.abi, backend, backend, backend)
}

// PackCount is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x06661abd.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function count() view returns(uint256)
func (deals *Deals) PackCount() []byte {
	enc, err := deals.abi.Pack("count")
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackCount is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x06661abd.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function count() view returns(uint256)
func (deals *Deals) TryPackCount() ([]byte, error) {
	return deals.abi.Pack("count")
}

// UnpackCount is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0x06661abd.
//
// Solidity: function count() view returns(uint256)
func (deals *Deals) UnpackCount(data []byte) (*big.Int, error) {
	out, err := deals.abi.Unpack("count", data)
	if err != nil {
		return new(big.Int), err
	}
	out0 := abi.ConvertType(out[0], new(big.Int)).(*big.Int)
	return out0, nil
}

// PackOpen is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xb95460f8.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function open(address seller) payable returns(address deal)
func (deals *Deals) PackOpen(seller common.Address) []byte {
	enc, err := deals.abi.Pack("open", seller)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackOpen is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xb95460f8.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function open(address seller) payable returns(address deal)
func (deals *Deals) TryPackOpen(seller common.Address) ([]byte, error) {
	return deals.abi.Pack("open", seller)
}

// UnpackOpen is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0xb95460f8.
//
// Solidity: function open(address seller) payable returns(address deal)
func (deals *Deals) UnpackOpen(data []byte) (common.Address, error) {
	out, err := deals.abi.Unpack("open", data)
	if err != nil {
		return *new(common.Address), err
	}
	out0 := *abi.ConvertType(out[0], new(common.Address)).(*common.Address)
	return out0, nil
}

// DealsOpened represents a Opened event raised by the Deals contract.
type DealsOpened struct {
	Id    *big.Int
	Deal  common.Address
	Buyer common.Address
	Price *big.Int
	Raw   *types.Log // Blockchain specific contextual infos
}

const DealsOpenedEventName = "Opened"

// ContractEventName returns the user-defined event name.
func (DealsOpened) ContractEventName() string {
	return DealsOpenedEventName
}

// UnpackOpenedEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event Opened(uint256 indexed id, address indexed deal, address buyer, uint256 price)
func (deals *Deals) UnpackOpenedEvent(log *types.Log) (*DealsOpened, error) {
	event := "Opened"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != deals.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(DealsOpened)
	if len(log.Data) > 0 {
		if err := deals.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range deals.abi.Events[event].Inputs {
		if arg.Indexed {
			indexed = append(indexed, arg)
		}
	}
	if err := abi.ParseTopics(out, indexed, log.Topics[1:]); err != nil {
		return nil, err
	}
	out.Raw = log
	return out, nil
}

// EscrowMetaData contains all meta data concerning the Escrow contract.
var EscrowMetaData = bind.MetaData{
	ABI: "[{\"inputs\":[{\"internalType\":\"address\",\"name\":\"payer_\",\"type\":\"address\"},{\"internalType\":\"address\",\"name\":\"payee_\",\"type\":\"address\"},{\"internalType\":\"uint256\",\"name\":\"releaseDelay\",\"type\":\"uint256\"},{\"internalType\":\"uint8\",\"name\":\"approvalsRequired_\",\"type\":\"uint8\"},{\"internalType\":\"address\",\"name\":\"arbiter_\",\"type\":\"address\"}],\"stateMutability\":\"payable\",\"type\":\"constructor\"},{\"inputs\":[],\"name\":\"AlreadyApproved\",\"type\":\"error\"},{\"inputs\":[],\"name\":\"NotAllowed\",\"type\":\"error\"},{\"inputs\":[],\"name\":\"NotEnoughApprovals\",\"type\":\"error\"},{\"inputs\":[],\"name\":\"Settled\",\"type\":\"error\"},{\"inputs\":[],\"name\":\"TooEarly\",\"type\":\"error\"},{\"anonymous\":false,\"inputs\":[{\"indexed\":true,\"internalType\":\"address\",\"name\":\"approver\",\"type\":\"address\"}],\"name\":\"Approved\",\"type\":\"event\"},{\"anonymous\":false,\"inputs\":[{\"indexed\":true,\"internalType\":\"address\",\"name\":\"oldArbiter\",\"type\":\"address\"},{\"indexed\":true,\"internalType\":\"address\",\"name\":\"newArbiter\",\"type\":\"address\"}],\"name\":\"ArbiterChanged\",\"type\":\"event\"},{\"anonymous\":false,\"inputs\":[{\"indexed\":true,\"internalType\":\"address\",\"name\":\"payer\",\"type\":\"address\"},{\"indexed\":true,\"internalType\":\"address\",\"name\":\"payee\",\"type\":\"address\"},{\"indexed\":true,\"internalType\":\"address\",\"name\":\"arbiter\",\"type\":\"address\"},{\"indexed\":false,\"internalType\":\"uint256\",\"name\":\"amount\",\"type\":\"uint256\"},{\"indexed\":false,\"internalType\":\"uint256\",\"name\":\"releaseTime\",\"type\":\"uint256\"},{\"indexed\":false,\"internalType\":\"uint8\",\"name\":\"approvalsRequired\",\"type\":\"uint8\"}],\"name\":\"EscrowCreated\",\"type\":\"event\"},{\"anonymous\":false,\"inputs\":[{\"indexed\":true,\"internalType\":\"address\",\"name\":\"payer\",\"type\":\"address\"},{\"indexed\":false,\"internalType\":\"uint256\",\"name\":\"amount\",\"type\":\"uint256\"},{\"indexed\":false,\"internalType\":\"uint256\",\"name\":\"timestamp\",\"type\":\"uint256\"}],\"name\":\"EscrowRefunded\",\"type\":\"event\"},{\"anonymous\":false,\"inputs\":[{\"indexed\":true,\"internalType\":\"address\",\"name\":\"payee\",\"type\":\"address\"},{\"indexed\":false,\"internalType\":\"uint256\",\"name\":\"amount\",\"type\":\"uint256\"},{\"indexed\":false,\"internalType\":\"uint256\",\"name\":\"timestamp\",\"type\":\"uint256\"}],\"name\":\"EscrowReleased\",\"type\":\"event\"},{\"inputs\":[],\"name\":\"REFUND_AFTER\",\"outputs\":[{\"internalType\":\"uint256\",\"name\":\"\",\"type\":\"uint256\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[],\"name\":\"amount\",\"outputs\":[{\"internalType\":\"uint256\",\"name\":\"\",\"type\":\"uint256\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[],\"name\":\"approvals\",\"outputs\":[{\"internalType\":\"uint8\",\"name\":\"\",\"type\":\"uint8\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[],\"name\":\"approvalsRequired\",\"outputs\":[{\"internalType\":\"uint8\",\"name\":\"\",\"type\":\"uint8\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[],\"name\":\"approve\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[],\"name\":\"arbiter\",\"outputs\":[{\"internalType\":\"address\",\"name\":\"\",\"type\":\"address\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"address\",\"name\":\"newArbiter\",\"type\":\"address\"}],\"name\":\"changeArbiter\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"address\",\"name\":\"\",\"type\":\"address\"}],\"name\":\"hasApproved\",\"outputs\":[{\"internalType\":\"bool\",\"name\":\"\",\"type\":\"bool\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[],\"name\":\"payee\",\"outputs\":[{\"internalType\":\"address\",\"name\":\"\",\"type\":\"address\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[],\"name\":\"payer\",\"outputs\":[{\"internalType\":\"address\",\"name\":\"\",\"type\":\"address\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[],\"name\":\"refund\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[],\"name\":\"release\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[],\"name\":\"releaseTime\",\"outputs\":[{\"internalType\":\"uint256\",\"name\":\"\",\"type\":\"uint256\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[],\"name\":\"settled\",\"outputs\":[{\"internalType\":\"bool\",\"name\":\"\",\"type\":\"bool\"}],\"stateMutability\":\"view\",\"type\":\"function\"}]",
	ID:  "Escrow",
	Bin: "0x610120604052604051610b53380380610b53833981016040819052610023916100e7565b6001600160a01b03808616608052841660a0523460c0526100448342610148565b60e05260ff8216610100525f80546001600160a01b0319166001600160a01b03838116918217909255908581169087167fe6937249bbc03fbc2004b1de77449df9901d6f3b5e685634282c4092637e2eb4346100a08842610148565b60408051928352602083019190915260ff88169082015260600160405180910390a4505050505061016d565b80516001600160a01b03811681146100e2575f5ffd5b919050565b5f5f5f5f5f60a086880312156100fb575f5ffd5b610104866100cc565b9450610112602087016100cc565b935060408601519250606086015160ff8116811461012e575f5ffd5b915061013c608087016100cc565b90509295509295909350565b8082018082111561016757634e487b7160e01b5f52601160045260245ffd5b92915050565b60805160a05160c05160e0516101005161093a6102195f395f81816102560152818161040201526106fb01525f818161020d01528181610437015281816104e5015261074601525f818161019a01528181610541015281816107a1015261085001525f81816101c1015281816102f3015281816107d2015261082301525f818160ee015281816102bf0152818161049e01528181610572015281816105c3015261061c015261093a5ff3fe608060405234801561000f575f5ffd5b50600436106100e5575f3560e01c8063aa8c217c11610088578063b91d400111610063578063b91d400114610208578063c73992e41461022f578063ea1d59c914610251578063fe25e00a14610278575f5ffd5b8063aa8c217c14610195578063ae90b213146101bc578063b05dba96146101e3575f5ffd5b8063590e1ae3116100c3578063590e1ae31461014f57806376cfa3121461015757806386d1a69f1461016a5780638f77583914610172575f5ffd5b8063123119cd146100e957806312424e3f1461012d57806319f2ed4d14610137575b5f5ffd5b6101107f000000000000000000000000000000000000000000000000000000000000000081565b6040516001600160a01b0390911681526020015b60405180910390f35b61013561028a565b005b61014162278d0081565b604051908152602001610124565b610135610469565b6101356101653660046108c2565b6105e7565b6101356106cb565b5f5461018590600160a81b900460ff1681565b6040519015158152602001610124565b6101417f000000000000000000000000000000000000000000000000000000000000000081565b6101107f000000000000000000000000000000000000000000000000000000000000000081565b5f546101f690600160a01b900460ff1681565b60405160ff9091168152602001610124565b6101417f000000000000000000000000000000000000000000000000000000000000000081565b61018561023d3660046108c2565b60016020525f908152604090205460ff1681565b6101f67f000000000000000000000000000000000000000000000000000000000000000081565b5f54610110906001600160a01b031681565b5f54600160a81b900460ff16156102b4576040516397088ec360e01b815260040160405180910390fd5b336001600160a01b037f000000000000000000000000000000000000000000000000000000000000000016148015906103165750336001600160a01b037f00000000000000000000000000000000000000000000000000000000000000001614155b801561032c57505f546001600160a01b03163314155b1561034a57604051631eb49d6d60e11b815260040160405180910390fd5b335f9081526001602052604090205460ff161561037a5760405163080fc0bd60e11b815260040160405180910390fd5b335f9081526001602081905260408220805460ff191690911790558054600160a01b900460ff169060146103ad83610903565b91906101000a81548160ff021916908360ff16021790555050336001600160a01b03167f5d91bd0cecc45fef102af61de92c5462fadc884a5ce9d21c15e8a85198f2349e60405160405180910390a25f5460ff7f00000000000000000000000000000000000000000000000000000000000000008116600160a01b909204161080159061045a57507f00000000000000000000000000000000000000000000000000000000000000004210155b1561046757610467610789565b565b5f54600160a81b900460ff1615610493576040516397088ec360e01b815260040160405180910390fd5b336001600160a01b037f000000000000000000000000000000000000000000000000000000000000000016146104dc57604051631eb49d6d60e11b815260040160405180910390fd5b61050962278d007f0000000000000000000000000000000000000000000000000000000000000000610921565b4210156105295760405163085de62560e01b815260040160405180910390fd5b5f805460ff60a81b1916600160a81b179055604080517f000000000000000000000000000000000000000000000000000000000000000081524260208201526001600160a01b037f000000000000000000000000000000000000000000000000000000000000000016917fefe2e8d9a1e53fd22b439f66298e9dc5146b8a429b9e1636e2334a59782e6904910160405180910390a26104677f0000000000000000000000000000000000000000000000000000000000000000610843565b5f54600160a81b900460ff1615610611576040516397088ec360e01b815260040160405180910390fd5b336001600160a01b037f0000000000000000000000000000000000000000000000000000000000000000161480159061065457505f546001600160a01b03163314155b1561067257604051631eb49d6d60e11b815260040160405180910390fd5b5f80546040516001600160a01b03808516939216917f8baeb8e9be10c233f000f8215f52a1038a77bc736883d06f9022545ef1ab1a7491a35f80546001600160a01b0319166001600160a01b0392909216919091179055565b5f54600160a81b900460ff16156106f5576040516397088ec360e01b815260040160405180910390fd5b5f5460ff7f00000000000000000000000000000000000000000000000000000000000000008116600160a01b9092041610156107445760405163125e6df560e11b815260040160405180910390fd5b7f00000000000000000000000000000000000000000000000000000000000000004210156107855760405163085de62560e01b815260040160405180910390fd5b6104675b5f805460ff60a81b1916600160a81b179055604080517f000000000000000000000000000000000000000000000000000000000000000081524260208201526001600160a01b037f000000000000000000000000000000000000000000000000000000000000000016917fe2dfcde598cb66b4f1b776076fc47ec832da9a3f92a82f224b0181ba2bfb9b9e910160405180910390a26104677f00000000000000000000000000000000000000000000000000000000000000005b5f816001600160a01b03167f00000000000000000000000000000000000000000000000000000000000000006040515f6040518083038185875af1925050503d805f81146108ac576040519150601f19603f3d011682016040523d82523d5f602084013e6108b1565b606091505b50509050806108be575f5ffd5b5050565b5f602082840312156108d2575f5ffd5b81356001600160a01b03811681146108e8575f5ffd5b9392505050565b634e487b7160e01b5f52601160045260245ffd5b5f60ff821660ff8103610918576109186108ef565b60010192915050565b80820180821115610934576109346108ef565b9291505056",
}

// Escrow is an auto generated Go binding around an Ethereum contract.
type Escrow struct {
	abi abi.ABI
}

// GetABI returns the ABI associated with this contract binding.
func (c *Escrow) GetABI() abi.ABI {
	return c.abi
}

// NewEscrow creates a new instance of Escrow.
func NewEscrow() *Escrow {
	parsed, err := EscrowMetaData.ParseABI()
	if err != nil {
		panic(errors.New("invalid ABI: " + err.Error()))
	}
	return &Escrow{abi: *parsed}
}

// Instance creates a wrapper for a deployed contract instance at the given address.
// Use this to create the instance object passed to abigen v2 library functions Call, Transact, etc.
func (c *Escrow) Instance(backend bind.ContractBackend, addr common.Address) *bind.BoundContract {
	return bind.NewBoundContract(addr, c.abi, backend, backend, backend)
}

// PackConstructor is the Go binding used to pack the parameters required for
// contract deployment.
//
// Solidity: constructor(address payer_, address payee_, uint256 releaseDelay, uint8 approvalsRequired_, address arbiter_) payable returns()
func (escrow *Escrow) PackConstructor(payer_ common.Address, payee_ common.Address, releaseDelay *big.Int, approvalsRequired_ uint8, arbiter_ common.Address) []byte {
	enc, err := escrow.abi.Pack("", payer_, payee_, releaseDelay, approvalsRequired_, arbiter_)
	if err != nil {
		panic(err)
	}
	return enc
}

// PackREFUNDAFTER is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x19f2ed4d.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function REFUND_AFTER() view returns(uint256)
func (escrow *Escrow) PackREFUNDAFTER() []byte {
	enc, err := escrow.abi.Pack("REFUND_AFTER")
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackREFUNDAFTER is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x19f2ed4d.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function REFUND_AFTER() view returns(uint256)
func (escrow *Escrow) TryPackREFUNDAFTER() ([]byte, error) {
	return escrow.abi.Pack("REFUND_AFTER")
}

// UnpackREFUNDAFTER is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0x19f2ed4d.
//
// Solidity: function REFUND_AFTER() view returns(uint256)
func (escrow *Escrow) UnpackREFUNDAFTER(data []byte) (*big.Int, error) {
	out, err := escrow.abi.Unpack("REFUND_AFTER", data)
	if err != nil {
		return new(big.Int), err
	}
	out0 := abi.ConvertType(out[0], new(big.Int)).(*big.Int)
	return out0, nil
}

// PackAmount is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xaa8c217c.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function amount() view returns(uint256)
func (escrow *Escrow) PackAmount() []byte {
	enc, err := escrow.abi.Pack("amount")
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackAmount is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xaa8c217c.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function amount() view returns(uint256)
func (escrow *Escrow) TryPackAmount() ([]byte, error) {
	return escrow.abi.Pack("amount")
}

// UnpackAmount is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0xaa8c217c.
//
// Solidity: function amount() view returns(uint256)
func (escrow *Escrow) UnpackAmount(data []byte) (*big.Int, error) {
	out, err := escrow.abi.Unpack("amount", data)
	if err != nil {
		return new(big.Int), err
	}
	out0 := abi.ConvertType(out[0], new(big.Int)).(*big.Int)
	return out0, nil
}

// PackApprovals is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xb05dba96.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function approvals() view returns(uint8)
func (escrow *Escrow) PackApprovals() []byte {
	enc, err := escrow.abi.Pack("approvals")
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackApprovals is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xb05dba96.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function approvals() view returns(uint8)
func (escrow *Escrow) TryPackApprovals() ([]byte, error) {
	return escrow.abi.Pack("approvals")
}

// UnpackApprovals is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0xb05dba96.
//
// Solidity: function approvals() view returns(uint8)
func (escrow *Escrow) UnpackApprovals(data []byte) (uint8, error) {
	out, err := escrow.abi.Unpack("approvals", data)
	if err != nil {
		return *new(uint8), err
	}
	out0 := *abi.ConvertType(out[0], new(uint8)).(*uint8)
	return out0, nil
}

// PackApprovalsRequired is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xea1d59c9.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function approvalsRequired() view returns(uint8)
func (escrow *Escrow) PackApprovalsRequired() []byte {
	enc, err := escrow.abi.Pack("approvalsRequired")
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackApprovalsRequired is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xea1d59c9.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function approvalsRequired() view returns(uint8)
func (escrow *Escrow) TryPackApprovalsRequired() ([]byte, error) {
	return escrow.abi.Pack("approvalsRequired")
}

// UnpackApprovalsRequired is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0xea1d59c9.
//
// Solidity: function approvalsRequired() view returns(uint8)
func (escrow *Escrow) UnpackApprovalsRequired(data []byte) (uint8, error) {
	out, err := escrow.abi.Unpack("approvalsRequired", data)
	if err != nil {
		return *new(uint8), err
	}
	out0 := *abi.ConvertType(out[0], new(uint8)).(*uint8)
	return out0, nil
}

// PackApprove is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x12424e3f.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function approve() returns()
func (escrow *Escrow) PackApprove() []byte {
	enc, err := escrow.abi.Pack("approve")
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackApprove is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x12424e3f.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function approve() returns()
func (escrow *Escrow) TryPackApprove() ([]byte, error) {
	return escrow.abi.Pack("approve")
}

// PackArbiter is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xfe25e00a.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function arbiter() view returns(address)
func (escrow *Escrow) PackArbiter() []byte {
	enc, err := escrow.abi.Pack("arbiter")
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackArbiter is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xfe25e00a.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function arbiter() view returns(address)
func (escrow *Escrow) TryPackArbiter() ([]byte, error) {
	return escrow.abi.Pack("arbiter")
}

// UnpackArbiter is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0xfe25e00a.
//
// Solidity: function arbiter() view returns(address)
func (escrow *Escrow) UnpackArbiter(data []byte) (common.Address, error) {
	out, err := escrow.abi.Unpack("arbiter", data)
	if err != nil {
		return *new(common.Address), err
	}
	out0 := *abi.ConvertType(out[0], new(common.Address)).(*common.Address)
	return out0, nil
}

// PackChangeArbiter is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x76cfa312.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function changeArbiter(address newArbiter) returns()
func (escrow *Escrow) PackChangeArbiter(newArbiter common.Address) []byte {
	enc, err := escrow.abi.Pack("changeArbiter", newArbiter)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackChangeArbiter is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x76cfa312.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function changeArbiter(address newArbiter) returns()
func (escrow *Escrow) TryPackChangeArbiter(newArbiter common.Address) ([]byte, error) {
	return escrow.abi.Pack("changeArbiter", newArbiter)
}

// PackHasApproved is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xc73992e4.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function hasApproved(address ) view returns(bool)
func (escrow *Escrow) PackHasApproved(arg0 common.Address) []byte {
	enc, err := escrow.abi.Pack("hasApproved", arg0)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackHasApproved is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xc73992e4.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function hasApproved(address ) view returns(bool)
func (escrow *Escrow) TryPackHasApproved(arg0 common.Address) ([]byte, error) {
	return escrow.abi.Pack("hasApproved", arg0)
}

// UnpackHasApproved is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0xc73992e4.
//
// Solidity: function hasApproved(address ) view returns(bool)
func (escrow *Escrow) UnpackHasApproved(data []byte) (bool, error) {
	out, err := escrow.abi.Unpack("hasApproved", data)
	if err != nil {
		return *new(bool), err
	}
	out0 := *abi.ConvertType(out[0], new(bool)).(*bool)
	return out0, nil
}

// PackPayee is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xae90b213.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function payee() view returns(address)
func (escrow *Escrow) PackPayee() []byte {
	enc, err := escrow.abi.Pack("payee")
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackPayee is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xae90b213.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function payee() view returns(address)
func (escrow *Escrow) TryPackPayee() ([]byte, error) {
	return escrow.abi.Pack("payee")
}

// UnpackPayee is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0xae90b213.
//
// Solidity: function payee() view returns(address)
func (escrow *Escrow) UnpackPayee(data []byte) (common.Address, error) {
	out, err := escrow.abi.Unpack("payee", data)
	if err != nil {
		return *new(common.Address), err
	}
	out0 := *abi.ConvertType(out[0], new(common.Address)).(*common.Address)
	return out0, nil
}

// PackPayer is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x123119cd.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function payer() view returns(address)
func (escrow *Escrow) PackPayer() []byte {
	enc, err := escrow.abi.Pack("payer")
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackPayer is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x123119cd.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function payer() view returns(address)
func (escrow *Escrow) TryPackPayer() ([]byte, error) {
	return escrow.abi.Pack("payer")
}

// UnpackPayer is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0x123119cd.
//
// Solidity: function payer() view returns(address)
func (escrow *Escrow) UnpackPayer(data []byte) (common.Address, error) {
	out, err := escrow.abi.Unpack("payer", data)
	if err != nil {
		return *new(common.Address), err
	}
	out0 := *abi.ConvertType(out[0], new(common.Address)).(*common.Address)
	return out0, nil
}

// PackRefund is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x590e1ae3.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function refund() returns()
func (escrow *Escrow) PackRefund() []byte {
	enc, err := escrow.abi.Pack("refund")
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackRefund is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x590e1ae3.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function refund() returns()
func (escrow *Escrow) TryPackRefund() ([]byte, error) {
	return escrow.abi.Pack("refund")
}

// PackRelease is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x86d1a69f.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function release() returns()
func (escrow *Escrow) PackRelease() []byte {
	enc, err := escrow.abi.Pack("release")
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackRelease is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x86d1a69f.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function release() returns()
func (escrow *Escrow) TryPackRelease() ([]byte, error) {
	return escrow.abi.Pack("release")
}

// PackReleaseTime is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xb91d4001.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function releaseTime() view returns(uint256)
func (escrow *Escrow) PackReleaseTime() []byte {
	enc, err := escrow.abi.Pack("releaseTime")
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackReleaseTime is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xb91d4001.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function releaseTime() view returns(uint256)
func (escrow *Escrow) TryPackReleaseTime() ([]byte, error) {
	return escrow.abi.Pack("releaseTime")
}

// UnpackReleaseTime is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0xb91d4001.
//
// Solidity: function releaseTime() view returns(uint256)
func (escrow *Escrow) UnpackReleaseTime(data []byte) (*big.Int, error) {
	out, err := escrow.abi.Unpack("releaseTime", data)
	if err != nil {
		return new(big.Int), err
	}
	out0 := abi.ConvertType(out[0], new(big.Int)).(*big.Int)
	return out0, nil
}

// PackSettled is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x8f775839.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function settled() view returns(bool)
func (escrow *Escrow) PackSettled() []byte {
	enc, err := escrow.abi.Pack("settled")
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackSettled is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x8f775839.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function settled() view returns(bool)
func (escrow *Escrow) TryPackSettled() ([]byte, error) {
	return escrow.abi.Pack("settled")
}

// UnpackSettled is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0x8f775839.
//
// Solidity: function settled() view returns(bool)
func (escrow *Escrow) UnpackSettled(data []byte) (bool, error) {
	out, err := escrow.abi.Unpack("settled", data)
	if err != nil {
		return *new(bool), err
	}
	out0 := *abi.ConvertType(out[0], new(bool)).(*bool)
	return out0, nil
}

// EscrowApproved represents a Approved event raised by the Escrow contract.
type EscrowApproved struct {
	Approver common.Address
	Raw      *types.Log // Blockchain specific contextual infos
}

const EscrowApprovedEventName = "Approved"

// ContractEventName returns the user-defined event name.
func (EscrowApproved) ContractEventName() string {
	return EscrowApprovedEventName
}

// UnpackApprovedEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event Approved(address indexed approver)
func (escrow *Escrow) UnpackApprovedEvent(log *types.Log) (*EscrowApproved, error) {
	event := "Approved"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != escrow.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(EscrowApproved)
	if len(log.Data) > 0 {
		if err := escrow.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range escrow.abi.Events[event].Inputs {
		if arg.Indexed {
			indexed = append(indexed, arg)
		}
	}
	if err := abi.ParseTopics(out, indexed, log.Topics[1:]); err != nil {
		return nil, err
	}
	out.Raw = log
	return out, nil
}

// EscrowArbiterChanged represents a ArbiterChanged event raised by the Escrow contract.
type EscrowArbiterChanged struct {
	OldArbiter common.Address
	NewArbiter common.Address
	Raw        *types.Log // Blockchain specific contextual infos
}

const EscrowArbiterChangedEventName = "ArbiterChanged"

// ContractEventName returns the user-defined event name.
func (EscrowArbiterChanged) ContractEventName() string {
	return EscrowArbiterChangedEventName
}

// UnpackArbiterChangedEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event ArbiterChanged(address indexed oldArbiter, address indexed newArbiter)
func (escrow *Escrow) UnpackArbiterChangedEvent(log *types.Log) (*EscrowArbiterChanged, error) {
	event := "ArbiterChanged"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != escrow.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(EscrowArbiterChanged)
	if len(log.Data) > 0 {
		if err := escrow.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range escrow.abi.Events[event].Inputs {
		if arg.Indexed {
			indexed = append(indexed, arg)
		}
	}
	if err := abi.ParseTopics(out, indexed, log.Topics[1:]); err != nil {
		return nil, err
	}
	out.Raw = log
	return out, nil
}

// EscrowEscrowCreated represents a EscrowCreated event raised by the Escrow contract.
type EscrowEscrowCreated struct {
	Payer             common.Address
	Payee             common.Address
	Arbiter           common.Address
	Amount            *big.Int
	ReleaseTime       *big.Int
	ApprovalsRequired uint8
	Raw               *types.Log // Blockchain specific contextual infos
}

const EscrowEscrowCreatedEventName = "EscrowCreated"

// ContractEventName returns the user-defined event name.
func (EscrowEscrowCreated) ContractEventName() string {
	return EscrowEscrowCreatedEventName
}

// UnpackEscrowCreatedEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event EscrowCreated(address indexed payer, address indexed payee, address indexed arbiter, uint256 amount, uint256 releaseTime, uint8 approvalsRequired)
func (escrow *Escrow) UnpackEscrowCreatedEvent(log *types.Log) (*EscrowEscrowCreated, error) {
	event := "EscrowCreated"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != escrow.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(EscrowEscrowCreated)
	if len(log.Data) > 0 {
		if err := escrow.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range escrow.abi.Events[event].Inputs {
		if arg.Indexed {
			indexed = append(indexed, arg)
		}
	}
	if err := abi.ParseTopics(out, indexed, log.Topics[1:]); err != nil {
		return nil, err
	}
	out.Raw = log
	return out, nil
}

// EscrowEscrowRefunded represents a EscrowRefunded event raised by the Escrow contract.
type EscrowEscrowRefunded struct {
	Payer     common.Address
	Amount    *big.Int
	Timestamp *big.Int
	Raw       *types.Log // Blockchain specific contextual infos
}

const EscrowEscrowRefundedEventName = "EscrowRefunded"

// ContractEventName returns the user-defined event name.
func (EscrowEscrowRefunded) ContractEventName() string {
	return EscrowEscrowRefundedEventName
}

// UnpackEscrowRefundedEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event EscrowRefunded(address indexed payer, uint256 amount, uint256 timestamp)
func (escrow *Escrow) UnpackEscrowRefundedEvent(log *types.Log) (*EscrowEscrowRefunded, error) {
	event := "EscrowRefunded"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != escrow.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(EscrowEscrowRefunded)
	if len(log.Data) > 0 {
		if err := escrow.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range escrow.abi.Events[event].Inputs {
		if arg.Indexed {
			indexed = append(indexed, arg)
		}
	}
	if err := abi.ParseTopics(out, indexed, log.Topics[1:]); err != nil {
		return nil, err
	}
	out.Raw = log
	return out, nil
}

// EscrowEscrowReleased represents a EscrowReleased event raised by the Escrow contract.
type EscrowEscrowReleased struct {
	Payee     common.Address
	Amount    *big.Int
	Timestamp *big.Int
	Raw       *types.Log // Blockchain specific contextual infos
}

const EscrowEscrowReleasedEventName = "EscrowReleased"

// ContractEventName returns the user-defined event name.
func (EscrowEscrowReleased) ContractEventName() string {
	return EscrowEscrowReleasedEventName
}

// UnpackEscrowReleasedEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event EscrowReleased(address indexed payee, uint256 amount, uint256 timestamp)
func (escrow *Escrow) UnpackEscrowReleasedEvent(log *types.Log) (*EscrowEscrowReleased, error) {
	event := "EscrowReleased"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != escrow.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(EscrowEscrowReleased)
	if len(log.Data) > 0 {
		if err := escrow.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range escrow.abi.Events[event].Inputs {
		if arg.Indexed {
			indexed = append(indexed, arg)
		}
	}
	if err := abi.ParseTopics(out, indexed, log.Topics[1:]); err != nil {
		return nil, err
	}
	out.Raw = log
	return out, nil
}

// UnpackError attempts to decode the provided error data using user-defined
// error definitions.
func (escrow *Escrow) UnpackError(raw []byte) (any, error) {
	if bytes.Equal(raw[:4], escrow.abi.Errors["AlreadyApproved"].ID.Bytes()[:4]) {
		return escrow.UnpackAlreadyApprovedError(raw[4:])
	}
	if bytes.Equal(raw[:4], escrow.abi.Errors["NotAllowed"].ID.Bytes()[:4]) {
		return escrow.UnpackNotAllowedError(raw[4:])
	}
	if bytes.Equal(raw[:4], escrow.abi.Errors["NotEnoughApprovals"].ID.Bytes()[:4]) {
		return escrow.UnpackNotEnoughApprovalsError(raw[4:])
	}
	if bytes.Equal(raw[:4], escrow.abi.Errors["Settled"].ID.Bytes()[:4]) {
		return escrow.UnpackSettledError(raw[4:])
	}
	if bytes.Equal(raw[:4], escrow.abi.Errors["TooEarly"].ID.Bytes()[:4]) {
		return escrow.UnpackTooEarlyError(raw[4:])
	}
	return nil, errors.New("Unknown error")
}

// EscrowAlreadyApproved represents a AlreadyApproved error raised by the Escrow contract.
type EscrowAlreadyApproved struct {
}

// ErrorID returns the hash of canonical representation of the error's signature.
//
// Solidity: error AlreadyApproved()
func EscrowAlreadyApprovedErrorID() common.Hash {
	return common.HexToHash("0x101f817a2457b2fcd2728e709f840e8180b3b74a761c9cbd09a4fa605a43f8b1")
}

// UnpackAlreadyApprovedError is the Go binding used to decode the provided
// error data into the corresponding Go error struct.
//
// Solidity: error AlreadyApproved()
func (escrow *Escrow) UnpackAlreadyApprovedError(raw []byte) (*EscrowAlreadyApproved, error) {
	out := new(EscrowAlreadyApproved)
	if err := escrow.abi.UnpackIntoInterface(out, "AlreadyApproved", raw); err != nil {
		return nil, err
	}
	return out, nil
}

// EscrowNotAllowed represents a NotAllowed error raised by the Escrow contract.
type EscrowNotAllowed struct {
}

// ErrorID returns the hash of canonical representation of the error's signature.
//
// Solidity: error NotAllowed()
func EscrowNotAllowedErrorID() common.Hash {
	return common.HexToHash("0x3d693ada2b7d6a2edee20ea0cf19d7267a84cc4ae96aafe9d465faf4dde58518")
}

// UnpackNotAllowedError is the Go binding used to decode the provided
// error data into the corresponding Go error struct.
//
// Solidity: error NotAllowed()
func (escrow *Escrow) UnpackNotAllowedError(raw []byte) (*EscrowNotAllowed, error) {
	out := new(EscrowNotAllowed)
	if err := escrow.abi.UnpackIntoInterface(out, "NotAllowed", raw); err != nil {
		return nil, err
	}
	return out, nil
}

// EscrowNotEnoughApprovals represents a NotEnoughApprovals error raised by the Escrow contract.
type EscrowNotEnoughApprovals struct {
}

// ErrorID returns the hash of canonical representation of the error's signature.
//
// Solidity: error NotEnoughApprovals()
func EscrowNotEnoughApprovalsErrorID() common.Hash {
	return common.HexToHash("0x24bcdbeafed80bf93d38e10a9f5069d56354bfe3c6e803baf964d8c082caff94")
}

// UnpackNotEnoughApprovalsError is the Go binding used to decode the provided
// error data into the corresponding Go error struct.
//
// Solidity: error NotEnoughApprovals()
func (escrow *Escrow) UnpackNotEnoughApprovalsError(raw []byte) (*EscrowNotEnoughApprovals, error) {
	out := new(EscrowNotEnoughApprovals)
	if err := escrow.abi.UnpackIntoInterface(out, "NotEnoughApprovals", raw); err != nil {
		return nil, err
	}
	return out, nil
}

// EscrowSettled represents a Settled error raised by the Escrow contract.
type EscrowSettled struct {
}

// ErrorID returns the hash of canonical representation of the error's signature.
//
// Solidity: error Settled()
func EscrowSettledErrorID() common.Hash {
	return common.HexToHash("0x97088ec3606cfe8cc112180570d03fcde05f9b8e1bfef8e27784eaf5dd5691b6")
}

// UnpackSettledError is the Go binding used to decode the provided
// error data into the corresponding Go error struct.
//
// Solidity: error Settled()
func (escrow *Escrow) UnpackSettledError(raw []byte) (*EscrowSettled, error) {
	out := new(EscrowSettled)
	if err := escrow.abi.UnpackIntoInterface(out, "Settled", raw); err != nil {
		return nil, err
	}
	return out, nil
}

// EscrowTooEarly represents a TooEarly error raised by the Escrow contract.
type EscrowTooEarly struct {
}

// ErrorID returns the hash of canonical representation of the error's signature.
//
// Solidity: error TooEarly()
func EscrowTooEarlyErrorID() common.Hash {
	return common.HexToHash("0x085de625ed51bbce95c12627fc263453b8d214878d184bd1eaa2cc357a507a30")
}

// UnpackTooEarlyError is the Go binding used to decode the provided
// error data into the corresponding Go error struct.
//
// Solidity: error TooEarly()
func (escrow *Escrow) UnpackTooEarlyError(raw []byte) (*EscrowTooEarly, error) {
	out := new(EscrowTooEarly)
	if err := escrow.abi.UnpackIntoInterface(out, "TooEarly", raw); err != nil {
		return nil, err
	}
	return out, nil
}

// EscrowFactoryMetaData contains all meta data concerning the EscrowFactory contract.
var EscrowFactoryMetaData = bind.MetaData{
	ABI: "[{\"anonymous\":false,\"inputs\":[{\"indexed\":true,\"internalType\":\"address\",\"name\":\"escrow\",\"type\":\"address\"},{\"indexed\":true,\"internalType\":\"address\",\"name\":\"payer\",\"type\":\"address\"},{\"indexed\":true,\"internalType\":\"address\",\"name\":\"payee\",\"type\":\"address\"},{\"indexed\":false,\"internalType\":\"address\",\"name\":\"arbiter\",\"type\":\"address\"},{\"indexed\":false,\"internalType\":\"uint256\",\"name\":\"amount\",\"type\":\"uint256\"},{\"indexed\":false,\"internalType\":\"uint256\",\"name\":\"releaseDelay\",\"type\":\"uint256\"},{\"indexed\":false,\"internalType\":\"uint8\",\"name\":\"approvalsRequired\",\"type\":\"uint8\"}],\"name\":\"EscrowDeployed\",\"type\":\"event\"},{\"inputs\":[{\"internalType\":\"address\",\"name\":\"payee\",\"type\":\"address\"},{\"internalType\":\"uint256\",\"name\":\"releaseDelay\",\"type\":\"uint256\"},{\"internalType\":\"uint8\",\"name\":\"approvalsRequired\",\"type\":\"uint8\"},{\"internalType\":\"address\",\"name\":\"arbiter\",\"type\":\"address\"}],\"name\":\"createEscrow\",\"outputs\":[{\"internalType\":\"address\",\"name\":\"\",\"type\":\"address\"}],\"stateMutability\":\"payable\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"address\",\"name\":\"payee\",\"type\":\"address\"},{\"internalType\":\"uint256\",\"name\":\"releaseDelay\",\"type\":\"uint256\"},{\"internalType\":\"uint8\",\"name\":\"approvalsRequired\",\"type\":\"uint8\"},{\"internalType\":\"address\",\"name\":\"arbiter\",\"type\":\"address\"},{\"internalType\":\"bytes32\",\"name\":\"salt\",\"type\":\"bytes32\"}],\"name\":\"createEscrowDeterministic\",\"outputs\":[{\"internalType\":\"address\",\"name\":\"\",\"type\":\"address\"}],\"stateMutability\":\"payable\",\"type\":\"function\"}]",
	ID:  "EscrowFactory",
	Bin: "0x6080604052348015600e575f5ffd5b50610e2b8061001c5f395ff3fe608060405260043610610028575f3560e01c80635f2bb96b1461002c5780639afbabfc1461005b575b5f5ffd5b61003f61003a36600461023c565b61006e565b6040516001600160a01b03909116815260200160405180910390f35b61003f610069366004610286565b610136565b5f5f34338787878760405161008290610204565b6001600160a01b0395861681529385166020850152604084019290925260ff166060830152909116608082015260a0016040518091039082f09050801580156100cd573d5f5f3e3d5ffd5b50604080516001600160a01b03868116825234602083015291810188905260ff871660608201529192508088169133918416907f94de54d4de95fe813702db78e6398ce699c34fa6db663d3f60a826923fb7ace99060800160405180910390a495945050505050565b5f5f348390338989898960405161014c90610204565b6001600160a01b0395861681529385166020850152604084019290925260ff166060830152909116608082015260a00182906040518091039083f59150508015801561019a573d5f5f3e3d5ffd5b50604080516001600160a01b03878116825234602083015291810189905260ff881660608201529192508089169133918416907f94de54d4de95fe813702db78e6398ce699c34fa6db663d3f60a826923fb7ace99060800160405180910390a49695505050505050565b610b53806102d883390190565b80356001600160a01b0381168114610227575f5ffd5b919050565b803560ff81168114610227575f5ffd5b5f5f5f5f6080858703121561024f575f5ffd5b61025885610211565b93506020850135925061026d6040860161022c565b915061027b60608601610211565b905092959194509250565b5f5f5f5f5f60a0868803121561029a575f5ffd5b6102a386610211565b9450602086013593506102b86040870161022c565b92506102c660608701610211565b94979396509194608001359291505056fe610120604052604051610b53380380610b53833981016040819052610023916100e7565b6001600160a01b03808616608052841660a0523460c0526100448342610148565b60e05260ff8216610100525f80546001600160a01b0319166001600160a01b03838116918217909255908581169087167fe6937249bbc03fbc2004b1de77449df9901d6f3b5e685634282c4092637e2eb4346100a08842610148565b60408051928352602083019190915260ff88169082015260600160405180910390a4505050505061016d565b80516001600160a01b03811681146100e2575f5ffd5b919050565b5f5f5f5f5f60a086880312156100fb575f5ffd5b610104866100cc565b9450610112602087016100cc565b935060408601519250606086015160ff8116811461012e575f5ffd5b915061013c608087016100cc565b90509295509295909350565b8082018082111561016757634e487b7160e01b5f52601160045260245ffd5b92915050565b60805160a05160c05160e0516101005161093a6102195f395f81816102560152818161040201526106fb01525f818161020d01528181610437015281816104e5015261074601525f818161019a01528181610541015281816107a1015261085001525f81816101c1015281816102f3015281816107d2015261082301525f818160ee015281816102bf0152818161049e01528181610572015281816105c3015261061c015261093a5ff3fe608060405234801561000f575f5ffd5b50600436106100e5575f3560e01c8063aa8c217c11610088578063b91d400111610063578063b91d400114610208578063c73992e41461022f578063ea1d59c914610251578063fe25e00a14610278575f5ffd5b8063aa8c217c14610195578063ae90b213146101bc578063b05dba96146101e3575f5ffd5b8063590e1ae3116100c3578063590e1ae31461014f57806376cfa3121461015757806386d1a69f1461016a5780638f77583914610172575f5ffd5b8063123119cd146100e957806312424e3f1461012d57806319f2ed4d14610137575b5f5ffd5b6101107f000000000000000000000000000000000000000000000000000000000000000081565b6040516001600160a01b0390911681526020015b60405180910390f35b61013561028a565b005b61014162278d0081565b604051908152602001610124565b610135610469565b6101356101653660046108c2565b6105e7565b6101356106cb565b5f5461018590600160a81b900460ff1681565b6040519015158152602001610124565b6101417f000000000000000000000000000000000000000000000000000000000000000081565b6101107f000000000000000000000000000000000000000000000000000000000000000081565b5f546101f690600160a01b900460ff1681565b60405160ff9091168152602001610124565b6101417f000000000000000000000000000000000000000000000000000000000000000081565b61018561023d3660046108c2565b60016020525f908152604090205460ff1681565b6101f67f000000000000000000000000000000000000000000000000000000000000000081565b5f54610110906001600160a01b031681565b5f54600160a81b900460ff16156102b4576040516397088ec360e01b815260040160405180910390fd5b336001600160a01b037f000000000000000000000000000000000000000000000000000000000000000016148015906103165750336001600160a01b037f00000000000000000000000000000000000000000000000000000000000000001614155b801561032c57505f546001600160a01b03163314155b1561034a57604051631eb49d6d60e11b815260040160405180910390fd5b335f9081526001602052604090205460ff161561037a5760405163080fc0bd60e11b815260040160405180910390fd5b335f9081526001602081905260408220805460ff191690911790558054600160a01b900460ff169060146103ad83610903565b91906101000a81548160ff021916908360ff16021790555050336001600160a01b03167f5d91bd0cecc45fef102af61de92c5462fadc884a5ce9d21c15e8a85198f2349e60405160405180910390a25f5460ff7f00000000000000000000000000000000000000000000000000000000000000008116600160a01b909204161080159061045a57507f00000000000000000000000000000000000000000000000000000000000000004210155b1561046757610467610789565b565b5f54600160a81b900460ff1615610493576040516397088ec360e01b815260040160405180910390fd5b336001600160a01b037f000000000000000000000000000000000000000000000000000000000000000016146104dc57604051631eb49d6d60e11b815260040160405180910390fd5b61050962278d007f0000000000000000000000000000000000000000000000000000000000000000610921565b4210156105295760405163085de62560e01b815260040160405180910390fd5b5f805460ff60a81b1916600160a81b179055604080517f000000000000000000000000000000000000000000000000000000000000000081524260208201526001600160a01b037f000000000000000000000000000000000000000000000000000000000000000016917fefe2e8d9a1e53fd22b439f66298e9dc5146b8a429b9e1636e2334a59782e6904910160405180910390a26104677f0000000000000000000000000000000000000000000000000000000000000000610843565b5f54600160a81b900460ff1615610611576040516397088ec360e01b815260040160405180910390fd5b336001600160a01b037f0000000000000000000000000000000000000000000000000000000000000000161480159061065457505f546001600160a01b03163314155b1561067257604051631eb49d6d60e11b815260040160405180910390fd5b5f80546040516001600160a01b03808516939216917f8baeb8e9be10c233f000f8215f52a1038a77bc736883d06f9022545ef1ab1a7491a35f80546001600160a01b0319166001600160a01b0392909216919091179055565b5f54600160a81b900460ff16156106f5576040516397088ec360e01b815260040160405180910390fd5b5f5460ff7f00000000000000000000000000000000000000000000000000000000000000008116600160a01b9092041610156107445760405163125e6df560e11b815260040160405180910390fd5b7f00000000000000000000000000000000000000000000000000000000000000004210156107855760405163085de62560e01b815260040160405180910390fd5b6104675b5f805460ff60a81b1916600160a81b179055604080517f000000000000000000000000000000000000000000000000000000000000000081524260208201526001600160a01b037f000000000000000000000000000000000000000000000000000000000000000016917fe2dfcde598cb66b4f1b776076fc47ec832da9a3f92a82f224b0181ba2bfb9b9e910160405180910390a26104677f00000000000000000000000000000000000000000000000000000000000000005b5f816001600160a01b03167f00000000000000000000000000000000000000000000000000000000000000006040515f6040518083038185875af1925050503d805f81146108ac576040519150601f19603f3d011682016040523d82523d5f602084013e6108b1565b606091505b50509050806108be575f5ffd5b5050565b5f602082840312156108d2575f5ffd5b81356001600160a01b03811681146108e8575f5ffd5b9392505050565b634e487b7160e01b5f52601160045260245ffd5b5f60ff821660ff8103610918576109186108ef565b60010192915050565b80820180821115610934576109346108ef565b9291505056",
}

// EscrowFactory is an auto generated Go binding around an Ethereum contract.
type EscrowFactory struct {
	abi abi.ABI
}

// GetABI returns the ABI associated with this contract binding.
func (c *EscrowFactory) GetABI() abi.ABI {
	return c.abi
}

// NewEscrowFactory creates a new instance of EscrowFactory.
func NewEscrowFactory() *EscrowFactory {
	parsed, err := EscrowFactoryMetaData.ParseABI()
	if err != nil {
		panic(errors.New("invalid ABI: " + err.Error()))
	}
	return &EscrowFactory{abi: *parsed}
}

// Instance creates a wrapper for a deployed contract instance at the given address.
// Use this to create the instance object passed to abigen v2 library functions Call, Transact, etc.
func (c *EscrowFactory) Instance(backend bind.ContractBackend, addr common.Address) *bind.BoundContract {
	return bind.NewBoundContract(addr, c.abi, backend, backend, backend)
}

// PackCreateEscrow is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x5f2bb96b.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function createEscrow(address payee, uint256 releaseDelay, uint8 approvalsRequired, address arbiter) payable returns(address)
func (escrowFactory *EscrowFactory) PackCreateEscrow(payee common.Address, releaseDelay *big.Int, approvalsRequired uint8, arbiter common.Address) []byte {
	enc, err := escrowFactory.abi.Pack("createEscrow", payee, releaseDelay, approvalsRequired, arbiter)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackCreateEscrow is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x5f2bb96b.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function createEscrow(address payee, uint256 releaseDelay, uint8 approvalsRequired, address arbiter) payable returns(address)
func (escrowFactory *EscrowFactory) TryPackCreateEscrow(payee common.Address, releaseDelay *big.Int, approvalsRequired uint8, arbiter common.Address) ([]byte, error) {
	return escrowFactory.abi.Pack("createEscrow", payee, releaseDelay, approvalsRequired, arbiter)
}

// UnpackCreateEscrow is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0x5f2bb96b.
//
// Solidity: function createEscrow(address payee, uint256 releaseDelay, uint8 approvalsRequired, address arbiter) payable returns(address)
func (escrowFactory *EscrowFactory) UnpackCreateEscrow(data []byte) (common.Address, error) {
	out, err := escrowFactory.abi.Unpack("createEscrow", data)
	if err != nil {
		return *new(common.Address), err
	}
	out0 := *abi.ConvertType(out[0], new(common.Address)).(*common.Address)
	return out0, nil
}

// PackCreateEscrowDeterministic is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x9afbabfc.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function createEscrowDeterministic(address payee, uint256 releaseDelay, uint8 approvalsRequired, address arbiter, bytes32 salt) payable returns(address)
func (escrowFactory *EscrowFactory) PackCreateEscrowDeterministic(payee common.Address, releaseDelay *big.Int, approvalsRequired uint8, arbiter common.Address, salt [32]byte) []byte {
	enc, err := escrowFactory.abi.Pack("createEscrowDeterministic", payee, releaseDelay, approvalsRequired, arbiter, salt)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackCreateEscrowDeterministic is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x9afbabfc.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function createEscrowDeterministic(address payee, uint256 releaseDelay, uint8 approvalsRequired, address arbiter, bytes32 salt) payable returns(address)
func (escrowFactory *EscrowFactory) TryPackCreateEscrowDeterministic(payee common.Address, releaseDelay *big.Int, approvalsRequired uint8, arbiter common.Address, salt [32]byte) ([]byte, error) {
	return escrowFactory.abi.Pack("createEscrowDeterministic", payee, releaseDelay, approvalsRequired, arbiter, salt)
}

// UnpackCreateEscrowDeterministic is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0x9afbabfc.
//
// Solidity: function createEscrowDeterministic(address payee, uint256 releaseDelay, uint8 approvalsRequired, address arbiter, bytes32 salt) payable returns(address)
func (escrowFactory *EscrowFactory) UnpackCreateEscrowDeterministic(data []byte) (common.Address, error) {
	out, err := escrowFactory.abi.Unpack("createEscrowDeterministic", data)
	if err != nil {
		return *new(common.Address), err
	}
	out0 := *abi.ConvertType(out[0], new(common.Address)).(*common.Address)
	return out0, nil
}

// EscrowFactoryEscrowDeployed represents a EscrowDeployed event raised by the EscrowFactory contract.
type EscrowFactoryEscrowDeployed struct {
	Escrow            common.Address
	Payer             common.Address
	Payee             common.Address
	Arbiter           common.Address
	Amount            *big.Int
	ReleaseDelay      *big.Int
	ApprovalsRequired uint8
	Raw               *types.Log // Blockchain specific contextual infos
}

const EscrowFactoryEscrowDeployedEventName = "EscrowDeployed"

// ContractEventName returns the user-defined event name.
func (EscrowFactoryEscrowDeployed) ContractEventName() string {
	return EscrowFactoryEscrowDeployedEventName
}

// UnpackEscrowDeployedEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event EscrowDeployed(address indexed escrow, address indexed payer, address indexed payee, address arbiter, uint256 amount, uint256 releaseDelay, uint8 approvalsRequired)
func (escrowFactory *EscrowFactory) UnpackEscrowDeployedEvent(log *types.Log) (*EscrowFactoryEscrowDeployed, error) {
	event := "EscrowDeployed"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != escrowFactory.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(EscrowFactoryEscrowDeployed)
	if len(log.Data) > 0 {
		if err := escrowFactory.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range escrowFactory.abi.Events[event].Inputs {
		if arg.Indexed {
			indexed = append(indexed, arg)
		}
	}
	if err := abi.ParseTopics(out, indexed, log.Topics[1:]); err != nil {
		return nil, err
	}
	out.Raw = log
	return out, nil
}

// LegacyEscrowFactoryMetaData contains all meta data concerning the LegacyEscrowFactory contract.
var LegacyEscrowFactoryMetaData = bind.MetaData{
	ABI: "[{\"anonymous\":false,\"inputs\":[{\"indexed\":true,\"internalType\":\"address\",\"name\":\"escrow\",\"type\":\"address\"},{\"indexed\":true,\"internalType\":\"address\",\"name\":\"payer\",\"type\":\"address\"},{\"indexed\":true,\"internalType\":\"address\",\"name\":\"payee\",\"type\":\"address\"},{\"indexed\":false,\"internalType\":\"uint256\",\"name\":\"amount\",\"type\":\"uint256\"},{\"indexed\":false,\"internalType\":\"uint256\",\"name\":\"releaseDelay\",\"type\":\"uint256\"},{\"indexed\":false,\"internalType\":\"uint8\",\"name\":\"approvalsRequired\",\"type\":\"uint8\"}],\"name\":\"EscrowDeployed\",\"type\":\"event\"},{\"inputs\":[{\"internalType\":\"address\",\"name\":\"payee\",\"type\":\"address\"},{\"internalType\":\"uint256\",\"name\":\"releaseDelay\",\"type\":\"uint256\"},{\"internalType\":\"uint8\",\"name\":\"approvalsRequired\",\"type\":\"uint8\"}],\"name\":\"createEscrow\",\"outputs\":[{\"internalType\":\"address\",\"name\":\"\",\"type\":\"address\"}],\"stateMutability\":\"payable\",\"type\":\"function\"}]",
	ID:  "LegacyEscrowFactory",
	Bin: "0x6080604052348015600e575f5ffd5b50610cc08061001c5f395ff3fe60806040526004361061001d575f3560e01c80639c34c4fc14610021575b5f5ffd5b61003461002f36600461011d565b610050565b6040516001600160a01b03909116815260200160405180910390f35b5f5f34338686865f60405161006490610110565b6001600160a01b0395861681529385166020850152604084019290925260ff166060830152909116608082015260a0016040518091039082f09050801580156100af573d5f5f3e3d5ffd5b50604080513481526020810187905260ff86168183015290519192506001600160a01b03878116923392918516917f3c9dc28f6be15c80198ca199cf06b1dce0f9ce0398ff42ee14daf86edf02a252919081900360600190a4949350505050565b610b538061016d83390190565b5f5f5f6060848603121561012f575f5ffd5b83356001600160a01b0381168114610145575f5ffd5b925060208401359150604084013560ff81168114610161575f5ffd5b80915050925092509256fe610120604052604051610b53380380610b53833981016040819052610023916100e7565b6001600160a01b03808616608052841660a0523460c0526100448342610148565b60e05260ff8216610100525f80546001600160a01b0319166001600160a01b03838116918217909255908581169087167fe6937249bbc03fbc2004b1de77449df9901d6f3b5e685634282c4092637e2eb4346100a08842610148565b60408051928352602083019190915260ff88169082015260600160405180910390a4505050505061016d565b80516001600160a01b03811681146100e2575f5ffd5b919050565b5f5f5f5f5f60a086880312156100fb575f5ffd5b610104866100cc565b9450610112602087016100cc565b935060408601519250606086015160ff8116811461012e575f5ffd5b915061013c608087016100cc565b90509295509295909350565b8082018082111561016757634e487b7160e01b5f52601160045260245ffd5b92915050565b60805160a05160c05160e0516101005161093a6102195f395f81816102560152818161040201526106fb01525f818161020d01528181610437015281816104e5015261074601525f818161019a01528181610541015281816107a1015261085001525f81816101c1015281816102f3015281816107d2015261082301525f818160ee015281816102bf0152818161049e01528181610572015281816105c3015261061c015261093a5ff3fe608060405234801561000f575f5ffd5b50600436106100e5575f3560e01c8063aa8c217c11610088578063b91d400111610063578063b91d400114610208578063c73992e41461022f578063ea1d59c914610251578063fe25e00a14610278575f5ffd5b8063aa8c217c14610195578063ae90b213146101bc578063b05dba96146101e3575f5ffd5b8063590e1ae3116100c3578063590e1ae31461014f57806376cfa3121461015757806386d1a69f1461016a5780638f77583914610172575f5ffd5b8063123119cd146100e957806312424e3f1461012d57806319f2ed4d14610137575b5f5ffd5b6101107f000000000000000000000000000000000000000000000000000000000000000081565b6040516001600160a01b0390911681526020015b60405180910390f35b61013561028a565b005b61014162278d0081565b604051908152602001610124565b610135610469565b6101356101653660046108c2565b6105e7565b6101356106cb565b5f5461018590600160a81b900460ff1681565b6040519015158152602001610124565b6101417f000000000000000000000000000000000000000000000000000000000000000081565b6101107f000000000000000000000000000000000000000000000000000000000000000081565b5f546101f690600160a01b900460ff1681565b60405160ff9091168152602001610124565b6101417f000000000000000000000000000000000000000000000000000000000000000081565b61018561023d3660046108c2565b60016020525f908152604090205460ff1681565b6101f67f000000000000000000000000000000000000000000000000000000000000000081565b5f54610110906001600160a01b031681565b5f54600160a81b900460ff16156102b4576040516397088ec360e01b815260040160405180910390fd5b336001600160a01b037f000000000000000000000000000000000000000000000000000000000000000016148015906103165750336001600160a01b037f00000000000000000000000000000000000000000000000000000000000000001614155b801561032c57505f546001600160a01b03163314155b1561034a57604051631eb49d6d60e11b815260040160405180910390fd5b335f9081526001602052604090205460ff161561037a5760405163080fc0bd60e11b815260040160405180910390fd5b335f9081526001602081905260408220805460ff191690911790558054600160a01b900460ff169060146103ad83610903565b91906101000a81548160ff021916908360ff16021790555050336001600160a01b03167f5d91bd0cecc45fef102af61de92c5462fadc884a5ce9d21c15e8a85198f2349e60405160405180910390a25f5460ff7f00000000000000000000000000000000000000000000000000000000000000008116600160a01b909204161080159061045a57507f00000000000000000000000000000000000000000000000000000000000000004210155b1561046757610467610789565b565b5f54600160a81b900460ff1615610493576040516397088ec360e01b815260040160405180910390fd5b336001600160a01b037f000000000000000000000000000000000000000000000000000000000000000016146104dc57604051631eb49d6d60e11b815260040160405180910390fd5b61050962278d007f0000000000000000000000000000000000000000000000000000000000000000610921565b4210156105295760405163085de62560e01b815260040160405180910390fd5b5f805460ff60a81b1916600160a81b179055604080517f000000000000000000000000000000000000000000000000000000000000000081524260208201526001600160a01b037f000000000000000000000000000000000000000000000000000000000000000016917fefe2e8d9a1e53fd22b439f66298e9dc5146b8a429b9e1636e2334a59782e6904910160405180910390a26104677f0000000000000000000000000000000000000000000000000000000000000000610843565b5f54600160a81b900460ff1615610611576040516397088ec360e01b815260040160405180910390fd5b336001600160a01b037f0000000000000000000000000000000000000000000000000000000000000000161480159061065457505f546001600160a01b03163314155b1561067257604051631eb49d6d60e11b815260040160405180910390fd5b5f80546040516001600160a01b03808516939216917f8baeb8e9be10c233f000f8215f52a1038a77bc736883d06f9022545ef1ab1a7491a35f80546001600160a01b0319166001600160a01b0392909216919091179055565b5f54600160a81b900460ff16156106f5576040516397088ec360e01b815260040160405180910390fd5b5f5460ff7f00000000000000000000000000000000000000000000000000000000000000008116600160a01b9092041610156107445760405163125e6df560e11b815260040160405180910390fd5b7f00000000000000000000000000000000000000000000000000000000000000004210156107855760405163085de62560e01b815260040160405180910390fd5b6104675b5f805460ff60a81b1916600160a81b179055604080517f000000000000000000000000000000000000000000000000000000000000000081524260208201526001600160a01b037f000000000000000000000000000000000000000000000000000000000000000016917fe2dfcde598cb66b4f1b776076fc47ec832da9a3f92a82f224b0181ba2bfb9b9e910160405180910390a26104677f00000000000000000000000000000000000000000000000000000000000000005b5f816001600160a01b03167f00000000000000000000000000000000000000000000000000000000000000006040515f6040518083038185875af1925050503d805f81146108ac576040519150601f19603f3d011682016040523d82523d5f602084013e6108b1565b606091505b50509050806108be575f5ffd5b5050565b5f602082840312156108d2575f5ffd5b81356001600160a01b03811681146108e8575f5ffd5b9392505050565b634e487b7160e01b5f52601160045260245ffd5b5f60ff821660ff8103610918576109186108ef565b60010192915050565b80820180821115610934576109346108ef565b9291505056",
}

// LegacyEscrowFactory is an auto generated Go binding around an Ethereum contract.
type LegacyEscrowFactory struct {
	abi abi.ABI
}

// GetABI returns the ABI associated with this contract binding.
func (c *LegacyEscrowFactory) GetABI() abi.ABI {
	return c.abi
}

// NewLegacyEscrowFactory creates a new instance of LegacyEscrowFactory.
func NewLegacyEscrowFactory() *LegacyEscrowFactory {
	parsed, err := LegacyEscrowFactoryMetaData.ParseABI()
	if err != nil {
		panic(errors.New("invalid ABI: " + err.Error()))
	}
	return &LegacyEscrowFactory{abi: *parsed}
}

// Instance creates a wrapper for a deployed contract instance at the given address.
// Use this to create the instance object passed to abigen v2 library functions Call, Transact, etc.
func (c *LegacyEscrowFactory) Instance(backend bind.ContractBackend, addr common.Address) *bind.BoundContract {
	return bind.NewBoundContract(addr, c.abi, backend, backend, backend)
}

// PackCreateEscrow is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x9c34c4fc.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function createEscrow(address payee, uint256 releaseDelay, uint8 approvalsRequired) payable returns(address)
func (legacyEscrowFactory *LegacyEscrowFactory) PackCreateEscrow(payee common.Address, releaseDelay *big.Int, approvalsRequired uint8) []byte {
	enc, err := legacyEscrowFactory.abi.Pack("createEscrow", payee, releaseDelay, approvalsRequired)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackCreateEscrow is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x9c34c4fc.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function createEscrow(address payee, uint256 releaseDelay, uint8 approvalsRequired) payable returns(address)
func (legacyEscrowFactory *LegacyEscrowFactory) TryPackCreateEscrow(payee common.Address, releaseDelay *big.Int, approvalsRequired uint8) ([]byte, error) {
	return legacyEscrowFactory.abi.Pack("createEscrow", payee, releaseDelay, approvalsRequired)
}

// UnpackCreateEscrow is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0x9c34c4fc.
//
// Solidity: function createEscrow(address payee, uint256 releaseDelay, uint8 approvalsRequired) payable returns(address)
func (legacyEscrowFactory *LegacyEscrowFactory) UnpackCreateEscrow(data []byte) (common.Address, error) {
	out, err := legacyEscrowFactory.abi.Unpack("createEscrow", data)
	if err != nil {
		return *new(common.Address), err
	}
	out0 := *abi.ConvertType(out[0], new(common.Address)).(*common.Address)
	return out0, nil
}

// LegacyEscrowFactoryEscrowDeployed represents a EscrowDeployed event raised by the LegacyEscrowFactory contract.
type LegacyEscrowFactoryEscrowDeployed struct {
	Escrow            common.Address
	Payer             common.Address
	Payee             common.Address
	Amount            *big.Int
	ReleaseDelay      *big.Int
	ApprovalsRequired uint8
	Raw               *types.Log // Blockchain specific contextual infos
}

const LegacyEscrowFactoryEscrowDeployedEventName = "EscrowDeployed"

// ContractEventName returns the user-defined event name.
func (LegacyEscrowFactoryEscrowDeployed) ContractEventName() string {
	return LegacyEscrowFactoryEscrowDeployedEventName
}

// UnpackEscrowDeployedEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event EscrowDeployed(address indexed escrow, address indexed payer, address indexed payee, uint256 amount, uint256 releaseDelay, uint8 approvalsRequired)
func (legacyEscrowFactory *LegacyEscrowFactory) UnpackEscrowDeployedEvent(log *types.Log) (*LegacyEscrowFactoryEscrowDeployed, error) {
	event := "EscrowDeployed"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != legacyEscrowFactory.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(LegacyEscrowFactoryEscrowDeployed)
	if len(log.Data) > 0 {
		if err := legacyEscrowFactory.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range legacyEscrowFactory.abi.Events[event].Inputs {
		if arg.Indexed {
			indexed = append(indexed, arg)
		}
	}
	if err := abi.ParseTopics(out, indexed, log.Topics[1:]); err != nil {
		return nil, err
	}
	out.Raw = log
	return out, nil
}

// LoadMetaData contains all meta data concerning the Load contract.
var LoadMetaData = bind.MetaData{
	ABI: "[{\"anonymous\":false,\"inputs\":[{\"indexed\":true,\"internalType\":\"address\",\"name\":\"escrow\",\"type\":\"address\"},{\"indexed\":true,\"internalType\":\"address\",\"name\":\"payer\",\"type\":\"address\"},{\"indexed\":true,\"internalType\":\"address\",\"name\":\"payee\",\"type\":\"address\"},{\"indexed\":false,\"internalType\":\"address\",\"name\":\"arbiter\",\"type\":\"address\"},{\"indexed\":false,\"internalType\":\"uint256\",\"name\":\"amount\",\"type\":\"uint256\"},{\"indexed\":false,\"internalType\":\"uint256\",\"name\":\"releaseDelay\",\"type\":\"uint256\"},{\"indexed\":false,\"internalType\":\"uint8\",\"name\":\"approvalsRequired\",\"type\":\"uint8\"}],\"name\":\"EscrowDeployed\",\"type\":\"event\"},{\"inputs\":[{\"internalType\":\"uint256\",\"name\":\"first\",\"type\":\"uint256\"},{\"internalType\":\"uint256\",\"name\":\"n\",\"type\":\"uint256\"}],\"name\":\"announce\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"contractNoise[]\",\"name\":\"clones\",\"type\":\"address[]\"},{\"internalType\":\"uint256\",\"name\":\"times\",\"type\":\"uint256\"}],\"name\":\"approve\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"contractEscrow[]\",\"name\":\"escrows\",\"type\":\"address[]\"}],\"name\":\"approveEscrows\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"address\",\"name\":\"noise\",\"type\":\"address\"},{\"internalType\":\"uint256\",\"name\":\"n\",\"type\":\"uint256\"}],\"name\":\"clone\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"contractEscrowFactory\",\"name\":\"factory\",\"type\":\"address\"},{\"internalType\":\"uint256\",\"name\":\"n\",\"type\":\"uint256\"},{\"internalType\":\"address\",\"name\":\"payee\",\"type\":\"address\"},{\"internalType\":\"uint256\",\"name\":\"releaseDelay\",\"type\":\"uint256\"},{\"internalType\":\"uint8\",\"name\":\"approvalsRequired\",\"type\":\"uint8\"},{\"internalType\":\"address\",\"name\":\"arbiter\",\"type\":\"address\"}],\"name\":\"create\",\"outputs\":[],\"stateMutability\":\"payable\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"uint256\",\"name\":\"i\",\"type\":\"uint256\"}],\"name\":\"phantom\",\"outputs\":[{\"internalType\":\"address\",\"name\":\"\",\"type\":\"address\"}],\"stateMutability\":\"view\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"contractEscrowFactory\",\"name\":\"factory\",\"type\":\"address\"},{\"internalType\":\"uint256\",\"name\":\"n\",\"type\":\"uint256\"},{\"internalType\":\"address\",\"name\":\"payee\",\"type\":\"address\"},{\"internalType\":\"address\",\"name\":\"arbiter\",\"type\":\"address\"}],\"name\":\"settle\",\"outputs\":[],\"stateMutability\":\"payable\",\"type\":\"function\"},{\"stateMutability\":\"payable\",\"type\":\"receive\"}]",
	ID:  "Load",
	Bin: "0x6080604052348015600e575f5ffd5b506109108061001c5f395ff3fe608060405260043610610071575f3560e01c806374ce35a31161004c57806374ce35a314610114578063c5ce203914610127578063ca12ba2e14610146578063cf530b0d14610165575f5ffd5b806308e2eb001461007c57806325e4005b146100915780633c046960146100f5575f5ffd5b3661007857005b5f5ffd5b61008f61008a366004610676565b610184565b005b34801561009c575f5ffd5b506100d96100ab3660046106e7565b6040805130602080830191909152818301939093528151808203830181526060909101909152805191012090565b6040516001600160a01b03909116815260200160405180910390f35b348015610100575f5ffd5b5061008f61010f366004610746565b610238565b61008f61012236600461078e565b6102d5565b348015610132575f5ffd5b5061008f6101413660046107de565b610472565b348015610151575f5ffd5b5061008f61016036600461081d565b610501565b348015610170575f5ffd5b5061008f61017f366004610847565b6105c3565b5f5b8581101561022f576001600160a01b038716635f2bb96b6101a78834610867565b6040516001600160e01b031960e084901b1681526001600160a01b03808a1660048301526024820189905260ff881660448301528616606482015260840160206040518083038185885af1158015610201573d5f5f3e3d5ffd5b50505050506040513d601f19601f820116820180604052508101906102269190610886565b50600101610186565b50505050505050565b5f5b828110156102cf57838382818110610254576102546108a8565b905060200201602081019061026991906108bc565b6001600160a01b0316637d4061e6836040518263ffffffff1660e01b815260040161029691815260200190565b5f604051808303815f87803b1580156102ad575f5ffd5b505af11580156102bf573d5f5f3e3d5ffd5b50506001909201915061023a9050565b50505050565b5f8367ffffffffffffffff8111156102ef576102ef6108d7565b604051908082528060200260200182016040528015610318578160200160208202803683370190505b5090505f5b848110156103ec576001600160a01b038616635f2bb96b61033e8734610867565b6040516001600160e01b031960e084901b1681526001600160a01b0380891660048301525f6024830152600160448301528716606482015260840160206040518083038185885af1158015610395573d5f5f3e3d5ffd5b50505050506040513d601f19601f820116820180604052508101906103ba9190610886565b8282815181106103cc576103cc6108a8565b6001600160a01b039092166020928302919091019091015260010161031d565b505f5b8481101561046a57818181518110610409576104096108a8565b60200260200101516001600160a01b03166312424e3f6040518163ffffffff1660e01b81526004015f604051808303815f87803b158015610448575f5ffd5b505af115801561045a573d5f5f3e3d5ffd5b5050600190920191506103ef9050565b505050505050565b5f5b818110156104fc5782828281811061048e5761048e6108a8565b90506020020160208101906104a391906108bc565b6001600160a01b03166312424e3f6040518163ffffffff1660e01b81526004015f604051808303815f87803b1580156104da575f5ffd5b505af11580156104ec573d5f5f3e3d5ffd5b5050600190920191506104749050565b505050565b5f5b818110156104fc575f604051733d602d80600a3d3981f3363d3d373d3d3d363d7360601b81528460601b60148201526e5af43d82803e903d91602b57fd5bf360881b60288201526037815ff09150506001600160a01b038116610564575f5ffd5b604080515f8082526020820185905281830152600160608201529051339182916001600160a01b038516917f94de54d4de95fe813702db78e6398ce699c34fa6db663d3f60a826923fb7ace9919081900360800190a450600101610503565b815b6105cf82846108eb565b8110156104fc5760408051306020808301919091528183018490528251808303840181526060909201909252805191012033908190604080515f80825260208201879052818301526001606082015290516001600160a01b0392909216917f94de54d4de95fe813702db78e6398ce699c34fa6db663d3f60a826923fb7ace99181900360800190a46001016105c5565b6001600160a01b0381168114610673575f5ffd5b50565b5f5f5f5f5f5f60c0878903121561068b575f5ffd5b86356106968161065f565b95506020870135945060408701356106ad8161065f565b935060608701359250608087013560ff811681146106c9575f5ffd5b915060a08701356106d98161065f565b809150509295509295509295565b5f602082840312156106f7575f5ffd5b5035919050565b5f5f83601f84011261070e575f5ffd5b50813567ffffffffffffffff811115610725575f5ffd5b6020830191508360208260051b850101111561073f575f5ffd5b9250929050565b5f5f5f60408486031215610758575f5ffd5b833567ffffffffffffffff81111561076e575f5ffd5b61077a868287016106fe565b909790965060209590950135949350505050565b5f5f5f5f608085870312156107a1575f5ffd5b84356107ac8161065f565b93506020850135925060408501356107c38161065f565b915060608501356107d38161065f565b939692955090935050565b5f5f602083850312156107ef575f5ffd5b823567ffffffffffffffff811115610805575f5ffd5b610811858286016106fe565b90969095509350505050565b5f5f6040838503121561082e575f5ffd5b82356108398161065f565b946020939093013593505050565b5f5f60408385031215610858575f5ffd5b50508035926020909101359150565b5f8261088157634e487b7160e01b5f52601260045260245ffd5b500490565b5f60208284031215610896575f5ffd5b81516108a18161065f565b9392505050565b634e487b7160e01b5f52603260045260245ffd5b5f602082840312156108cc575f5ffd5b81356108a18161065f565b634e487b7160e01b5f52604160045260245ffd5b8082018082111561090a57634e487b7160e01b5f52601160045260245ffd5b9291505056",
}

// Load is an auto generated Go binding around an Ethereum contract.
type Load struct {
	abi abi.ABI
}

// GetABI returns the ABI associated with this contract binding.
func (c *Load) GetABI() abi.ABI {
	return c.abi
}

// NewLoad creates a new instance of Load.
func NewLoad() *Load {
	parsed, err := LoadMetaData.ParseABI()
	if err != nil {
		panic(errors.New("invalid ABI: " + err.Error()))
	}
	return &Load{abi: *parsed}
}

// Instance creates a wrapper for a deployed contract instance at the given address.
// Use this to create the instance object passed to abigen v2 library functions Call, Transact, etc.
func (c *Load) Instance(backend bind.ContractBackend, addr common.Address) *bind.BoundContract {
	return bind.NewBoundContract(addr, c.abi, backend, backend, backend)
}

// PackAnnounce is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xcf530b0d.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function announce(uint256 first, uint256 n) returns()
func (load *Load) PackAnnounce(first *big.Int, n *big.Int) []byte {
	enc, err := load.abi.Pack("announce", first, n)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackAnnounce is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xcf530b0d.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function announce(uint256 first, uint256 n) returns()
func (load *Load) TryPackAnnounce(first *big.Int, n *big.Int) ([]byte, error) {
	return load.abi.Pack("announce", first, n)
}

// PackApprove is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x3c046960.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function approve(address[] clones, uint256 times) returns()
func (load *Load) PackApprove(clones []common.Address, times *big.Int) []byte {
	enc, err := load.abi.Pack("approve", clones, times)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackApprove is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x3c046960.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function approve(address[] clones, uint256 times) returns()
func (load *Load) TryPackApprove(clones []common.Address, times *big.Int) ([]byte, error) {
	return load.abi.Pack("approve", clones, times)
}

// PackApproveEscrows is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xc5ce2039.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function approveEscrows(address[] escrows) returns()
func (load *Load) PackApproveEscrows(escrows []common.Address) []byte {
	enc, err := load.abi.Pack("approveEscrows", escrows)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackApproveEscrows is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xc5ce2039.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function approveEscrows(address[] escrows) returns()
func (load *Load) TryPackApproveEscrows(escrows []common.Address) ([]byte, error) {
	return load.abi.Pack("approveEscrows", escrows)
}

// PackClone is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xca12ba2e.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function clone(address noise, uint256 n) returns()
func (load *Load) PackClone(noise common.Address, n *big.Int) []byte {
	enc, err := load.abi.Pack("clone", noise, n)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackClone is the Go binding used to pack the parameters required for calling
// the contract method with ID 0xca12ba2e.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function clone(address noise, uint256 n) returns()
func (load *Load) TryPackClone(noise common.Address, n *big.Int) ([]byte, error) {
	return load.abi.Pack("clone", noise, n)
}

// PackCreate is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x08e2eb00.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function create(address factory, uint256 n, address payee, uint256 releaseDelay, uint8 approvalsRequired, address arbiter) payable returns()
func (load *Load) PackCreate(factory common.Address, n *big.Int, payee common.Address, releaseDelay *big.Int, approvalsRequired uint8, arbiter common.Address) []byte {
	enc, err := load.abi.Pack("create", factory, n, payee, releaseDelay, approvalsRequired, arbiter)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackCreate is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x08e2eb00.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function create(address factory, uint256 n, address payee, uint256 releaseDelay, uint8 approvalsRequired, address arbiter) payable returns()
func (load *Load) TryPackCreate(factory common.Address, n *big.Int, payee common.Address, releaseDelay *big.Int, approvalsRequired uint8, arbiter common.Address) ([]byte, error) {
	return load.abi.Pack("create", factory, n, payee, releaseDelay, approvalsRequired, arbiter)
}

// PackPhantom is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x25e4005b.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function phantom(uint256 i) view returns(address)
func (load *Load) PackPhantom(i *big.Int) []byte {
	enc, err := load.abi.Pack("phantom", i)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackPhantom is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x25e4005b.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function phantom(uint256 i) view returns(address)
func (load *Load) TryPackPhantom(i *big.Int) ([]byte, error) {
	return load.abi.Pack("phantom", i)
}

// UnpackPhantom is the Go binding that unpacks the parameters returned
// from invoking the contract method with ID 0x25e4005b.
//
// Solidity: function phantom(uint256 i) view returns(address)
func (load *Load) UnpackPhantom(data []byte) (common.Address, error) {
	out, err := load.abi.Unpack("phantom", data)
	if err != nil {
		return *new(common.Address), err
	}
	out0 := *abi.ConvertType(out[0], new(common.Address)).(*common.Address)
	return out0, nil
}

// PackSettle is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x74ce35a3.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function settle(address factory, uint256 n, address payee, address arbiter) payable returns()
func (load *Load) PackSettle(factory common.Address, n *big.Int, payee common.Address, arbiter common.Address) []byte {
	enc, err := load.abi.Pack("settle", factory, n, payee, arbiter)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackSettle is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x74ce35a3.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function settle(address factory, uint256 n, address payee, address arbiter) payable returns()
func (load *Load) TryPackSettle(factory common.Address, n *big.Int, payee common.Address, arbiter common.Address) ([]byte, error) {
	return load.abi.Pack("settle", factory, n, payee, arbiter)
}

// LoadEscrowDeployed represents a EscrowDeployed event raised by the Load contract.
type LoadEscrowDeployed struct {
	Escrow            common.Address
	Payer             common.Address
	Payee             common.Address
	Arbiter           common.Address
	Amount            *big.Int
	ReleaseDelay      *big.Int
	ApprovalsRequired uint8
	Raw               *types.Log // Blockchain specific contextual infos
}

const LoadEscrowDeployedEventName = "EscrowDeployed"

// ContractEventName returns the user-defined event name.
func (LoadEscrowDeployed) ContractEventName() string {
	return LoadEscrowDeployedEventName
}

// UnpackEscrowDeployedEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event EscrowDeployed(address indexed escrow, address indexed payer, address indexed payee, address arbiter, uint256 amount, uint256 releaseDelay, uint8 approvalsRequired)
func (load *Load) UnpackEscrowDeployedEvent(log *types.Log) (*LoadEscrowDeployed, error) {
	event := "EscrowDeployed"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != load.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(LoadEscrowDeployed)
	if len(log.Data) > 0 {
		if err := load.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range load.abi.Events[event].Inputs {
		if arg.Indexed {
			indexed = append(indexed, arg)
		}
	}
	if err := abi.ParseTopics(out, indexed, log.Topics[1:]); err != nil {
		return nil, err
	}
	out.Raw = log
	return out, nil
}

// NoiseMetaData contains all meta data concerning the Noise contract.
var NoiseMetaData = bind.MetaData{
	ABI: "[{\"anonymous\":false,\"inputs\":[{\"indexed\":true,\"internalType\":\"address\",\"name\":\"approver\",\"type\":\"address\"}],\"name\":\"Approved\",\"type\":\"event\"},{\"anonymous\":false,\"inputs\":[{\"indexed\":true,\"internalType\":\"address\",\"name\":\"escrow\",\"type\":\"address\"},{\"indexed\":true,\"internalType\":\"address\",\"name\":\"payer\",\"type\":\"address\"},{\"indexed\":true,\"internalType\":\"address\",\"name\":\"payee\",\"type\":\"address\"},{\"indexed\":false,\"internalType\":\"address\",\"name\":\"arbiter\",\"type\":\"address\"},{\"indexed\":false,\"internalType\":\"uint256\",\"name\":\"amount\",\"type\":\"uint256\"},{\"indexed\":false,\"internalType\":\"uint256\",\"name\":\"releaseDelay\",\"type\":\"uint256\"},{\"indexed\":false,\"internalType\":\"uint8\",\"name\":\"approvalsRequired\",\"type\":\"uint8\"}],\"name\":\"EscrowDeployed\",\"type\":\"event\"},{\"inputs\":[{\"internalType\":\"uint256\",\"name\":\"n\",\"type\":\"uint256\"}],\"name\":\"approved\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"uint256\",\"name\":\"n\",\"type\":\"uint256\"}],\"name\":\"approvedUnindexed\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"},{\"inputs\":[{\"internalType\":\"address\",\"name\":\"escrow\",\"type\":\"address\"}],\"name\":\"deployed\",\"outputs\":[],\"stateMutability\":\"nonpayable\",\"type\":\"function\"}]",
	ID:  "Noise",
	Bin: "0x6080604052348015600e575f5ffd5b5061019a8061001c5f395ff3fe608060405234801561000f575f5ffd5b506004361061003f575f3560e01c80633d99b711146100435780637d4061e61461005857806385bb39231461006b575b5f5ffd5b610056610051366004610156565b61007e565b005b610056610066366004610156565b6100be565b61005661007936600461016d565b6100fe565b7f5d91bd0cecc45fef102af61de92c5462fadc884a5ce9d21c15e8a85198f2349e5f5b828110156100b957335f528160205fa16001016100a1565b505050565b5f5b818110156100fa5760405133907f5d91bd0cecc45fef102af61de92c5462fadc884a5ce9d21c15e8a85198f2349e905f90a26001016100c0565b5050565b60408051338082526001602083015260028284015260036060830152915182916001600160a01b038516917f94de54d4de95fe813702db78e6398ce699c34fa6db663d3f60a826923fb7ace99181900360800190a450565b5f60208284031215610166575f5ffd5b5035919050565b5f6020828403121561017d575f5ffd5b81356001600160a01b0381168114610193575f5ffd5b939250505056",
}

// Noise is an auto generated Go binding around an Ethereum contract.
type Noise struct {
	abi abi.ABI
}

// GetABI returns the ABI associated with this contract binding.
func (c *Noise) GetABI() abi.ABI {
	return c.abi
}

// NewNoise creates a new instance of Noise.
func NewNoise() *Noise {
	parsed, err := NoiseMetaData.ParseABI()
	if err != nil {
		panic(errors.New("invalid ABI: " + err.Error()))
	}
	return &Noise{abi: *parsed}
}

// Instance creates a wrapper for a deployed contract instance at the given address.
// Use this to create the instance object passed to abigen v2 library functions Call, Transact, etc.
func (c *Noise) Instance(backend bind.ContractBackend, addr common.Address) *bind.BoundContract {
	return bind.NewBoundContract(addr, c.abi, backend, backend, backend)
}

// PackApproved is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x7d4061e6.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function approved(uint256 n) returns()
func (noise *Noise) PackApproved(n *big.Int) []byte {
	enc, err := noise.abi.Pack("approved", n)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackApproved is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x7d4061e6.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function approved(uint256 n) returns()
func (noise *Noise) TryPackApproved(n *big.Int) ([]byte, error) {
	return noise.abi.Pack("approved", n)
}

// PackApprovedUnindexed is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x3d99b711.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function approvedUnindexed(uint256 n) returns()
func (noise *Noise) PackApprovedUnindexed(n *big.Int) []byte {
	enc, err := noise.abi.Pack("approvedUnindexed", n)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackApprovedUnindexed is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x3d99b711.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function approvedUnindexed(uint256 n) returns()
func (noise *Noise) TryPackApprovedUnindexed(n *big.Int) ([]byte, error) {
	return noise.abi.Pack("approvedUnindexed", n)
}

// PackDeployed is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x85bb3923.  This method will panic if any
// invalid/nil inputs are passed.
//
// Solidity: function deployed(address escrow) returns()
func (noise *Noise) PackDeployed(escrow common.Address) []byte {
	enc, err := noise.abi.Pack("deployed", escrow)
	if err != nil {
		panic(err)
	}
	return enc
}

// TryPackDeployed is the Go binding used to pack the parameters required for calling
// the contract method with ID 0x85bb3923.  This method will return an error
// if any inputs are invalid/nil.
//
// Solidity: function deployed(address escrow) returns()
func (noise *Noise) TryPackDeployed(escrow common.Address) ([]byte, error) {
	return noise.abi.Pack("deployed", escrow)
}

// NoiseApproved represents a Approved event raised by the Noise contract.
type NoiseApproved struct {
	Approver common.Address
	Raw      *types.Log // Blockchain specific contextual infos
}

const NoiseApprovedEventName = "Approved"

// ContractEventName returns the user-defined event name.
func (NoiseApproved) ContractEventName() string {
	return NoiseApprovedEventName
}

// UnpackApprovedEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event Approved(address indexed approver)
func (noise *Noise) UnpackApprovedEvent(log *types.Log) (*NoiseApproved, error) {
	event := "Approved"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != noise.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(NoiseApproved)
	if len(log.Data) > 0 {
		if err := noise.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range noise.abi.Events[event].Inputs {
		if arg.Indexed {
			indexed = append(indexed, arg)
		}
	}
	if err := abi.ParseTopics(out, indexed, log.Topics[1:]); err != nil {
		return nil, err
	}
	out.Raw = log
	return out, nil
}

// NoiseEscrowDeployed represents a EscrowDeployed event raised by the Noise contract.
type NoiseEscrowDeployed struct {
	Escrow            common.Address
	Payer             common.Address
	Payee             common.Address
	Arbiter           common.Address
	Amount            *big.Int
	ReleaseDelay      *big.Int
	ApprovalsRequired uint8
	Raw               *types.Log // Blockchain specific contextual infos
}

const NoiseEscrowDeployedEventName = "EscrowDeployed"

// ContractEventName returns the user-defined event name.
func (NoiseEscrowDeployed) ContractEventName() string {
	return NoiseEscrowDeployedEventName
}

// UnpackEscrowDeployedEvent is the Go binding that unpacks the event data emitted
// by contract.
//
// Solidity: event EscrowDeployed(address indexed escrow, address indexed payer, address indexed payee, address arbiter, uint256 amount, uint256 releaseDelay, uint8 approvalsRequired)
func (noise *Noise) UnpackEscrowDeployedEvent(log *types.Log) (*NoiseEscrowDeployed, error) {
	event := "EscrowDeployed"
	if len(log.Topics) == 0 {
		return nil, bind.ErrNoEventSignature
	}
	if log.Topics[0] != noise.abi.Events[event].ID {
		return nil, bind.ErrEventSignatureMismatch
	}
	out := new(NoiseEscrowDeployed)
	if len(log.Data) > 0 {
		if err := noise.abi.UnpackIntoInterface(out, event, log.Data); err != nil {
			return nil, err
		}
	}
	var indexed abi.Arguments
	for _, arg := range noise.abi.Events[event].Inputs {
		if arg.Indexed {
			indexed = append(indexed, arg)
		}
	}
	if err := abi.ParseTopics(out, indexed, log.Topics[1:]); err != nil {
		return nil, err
	}
	out.Raw = log
	return out, nil
}
