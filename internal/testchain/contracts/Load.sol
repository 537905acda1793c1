// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Escrow} from "./Escrow.sol";
import {EscrowFactory} from "./EscrowFactory.sol";
import {Noise} from "./Noise.sol";

/// Much in one transaction. It is the payer of the escrows that it creates.
contract Load {
    event EscrowDeployed(address indexed escrow, address indexed payer, address indexed payee, address arbiter, uint256 amount, uint256 releaseDelay, uint8 approvalsRequired);

    /// Creates n escrows through the factory, each with an n-th of the value.
    function create(EscrowFactory factory, uint256 n, address payee, uint256 releaseDelay, uint8 approvalsRequired, address arbiter) external payable {
        for (uint256 i = 0; i < n; i++) factory.createEscrow{value: msg.value / n}(payee, releaseDelay, approvalsRequired, arbiter);
    }

    /// Creates n escrows, and then approves each, which releases it: four events of each escrow in one transaction, not next to each other.
    function settle(EscrowFactory factory, uint256 n, address payee, address arbiter) external payable {
        address[] memory made = new address[](n);
        for (uint256 i = 0; i < n; i++) made[i] = factory.createEscrow{value: msg.value / n}(payee, 0, 1, arbiter);
        for (uint256 i = 0; i < n; i++) Escrow(made[i]).approve();
    }

    /// Deploys n proxies of a Noise and announces each as a factory would: contracts that emit Approved at a tenth of an escrow's cost,
    /// with this contract as the factory.
    function clone(address noise, uint256 n) external {
        for (uint256 i = 0; i < n; i++) {
            address made;
            assembly ("memory-safe") { // the minimal proxy of EIP-1167
                let code := mload(0x40)
                mstore(code, 0x3d602d80600a3d3981f3363d3d373d3d3d363d73000000000000000000000000)
                mstore(add(code, 0x14), shl(0x60, noise))
                mstore(add(code, 0x28), 0x5af43d82803e903d91602b57fd5bf30000000000000000000000000000000000)
                made := create(0, code, 0x37)
            }
            require(made != address(0));
            emit EscrowDeployed(made, msg.sender, msg.sender, address(0), i, 0, 1);
        }
    }

    /// Makes each clone emit Approved times times.
    function approve(Noise[] calldata clones, uint256 times) external {
        for (uint256 i = 0; i < clones.length; i++) clones[i].approved(times);
    }

    /// Approves escrows that create made, once each, as their payer.
    function approveEscrows(Escrow[] calldata escrows) external {
        for (uint256 i = 0; i < escrows.length; i++) escrows[i].approve();
    }

    /// Announces escrows first to first+n-1 as a factory would, without deploying them: for fleets of a million, with this contract as
    /// the factory. Escrow i is phantom(i).
    function announce(uint256 first, uint256 n) external {
        for (uint256 i = first; i < first + n; i++) emit EscrowDeployed(phantom(i), msg.sender, msg.sender, address(0), i, 0, 1);
    }

    function phantom(uint256 i) public view returns (address) {
        return address(uint160(uint256(keccak256(abi.encode(address(this), i)))));
    }

    receive() external payable {}
}
