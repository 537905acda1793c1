// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Escrow} from "./Escrow.sol";
import {EscrowFactory} from "./EscrowFactory.sol";

/// Much in one transaction. It is the payer of the escrows that it creates.
contract Load {
    event EscrowDeployed(address indexed escrow, address indexed payer, address indexed payee, address arbiter, uint256 amount, uint256 releaseDelay, uint8 approvalsRequired);

    /// Creates n escrows through the factory, each with an n-th of the value.
    function create(EscrowFactory factory, uint256 n, address payee, uint256 releaseDelay, uint8 approvalsRequired, address arbiter) external payable {
        for (uint256 i = 0; i < n; i++) factory.createEscrow{value: msg.value / n}(payee, releaseDelay, approvalsRequired, arbiter);
    }

    /// Approves as the payer.
    function approve(Escrow[] calldata escrows) external {
        for (uint256 i = 0; i < escrows.length; i++) escrows[i].approve();
    }

    /// Changes the arbiter of each escrow times times: the cheapest event that one escrow can emit without end.
    function changeArbiters(Escrow[] calldata escrows, uint256 times) external {
        for (uint256 i = 0; i < escrows.length; i++) {
            for (uint256 k = 0; k < times; k++) escrows[i].changeArbiter(address(uint160(k + 1)));
        }
    }

    /// Announces escrows first to first+n-1 as a factory would, without deploying them: for fleets of a million, with this contract as
    /// the factory. The address of escrow i is that of phantom(i).
    function announce(uint256 first, uint256 n) external {
        for (uint256 i = first; i < first + n; i++) emit EscrowDeployed(phantom(i), msg.sender, msg.sender, address(0), i, 0, 1);
    }

    function phantom(uint256 i) public view returns (address) {
        return address(uint160(uint256(keccak256(abi.encode(address(this), i)))));
    }

    receive() external payable {}
}
