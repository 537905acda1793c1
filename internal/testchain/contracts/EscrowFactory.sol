// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Escrow} from "./Escrow.sol";

/// Deploys escrows and announces them, after the child's constructor has emitted EscrowCreated.
contract EscrowFactory {
    event EscrowDeployed(address indexed escrow, address indexed payer, address indexed payee, address arbiter, uint256 amount, uint256 releaseDelay, uint8 approvalsRequired);

    function createEscrow(address payee, uint256 releaseDelay, uint8 approvalsRequired, address arbiter) external payable returns (address) {
        Escrow escrow = new Escrow{value: msg.value}(msg.sender, payee, releaseDelay, approvalsRequired, arbiter);
        emit EscrowDeployed(address(escrow), msg.sender, payee, arbiter, msg.value, releaseDelay, approvalsRequired);
        return address(escrow);
    }

    function createEscrowDeterministic(address payee, uint256 releaseDelay, uint8 approvalsRequired, address arbiter, bytes32 salt) external payable returns (address) {
        Escrow escrow = new Escrow{value: msg.value, salt: salt}(msg.sender, payee, releaseDelay, approvalsRequired, arbiter);
        emit EscrowDeployed(address(escrow), msg.sender, payee, arbiter, msg.value, releaseDelay, approvalsRequired);
        return address(escrow);
    }
}

/// The older factory: its EscrowDeployed has no arbiter, and so another topic.
contract LegacyEscrowFactory {
    event EscrowDeployed(address indexed escrow, address indexed payer, address indexed payee, uint256 amount, uint256 releaseDelay, uint8 approvalsRequired);

    function createEscrow(address payee, uint256 releaseDelay, uint8 approvalsRequired) external payable returns (address) {
        Escrow escrow = new Escrow{value: msg.value}(msg.sender, payee, releaseDelay, approvalsRequired, address(0));
        emit EscrowDeployed(address(escrow), msg.sender, payee, msg.value, releaseDelay, approvalsRequired);
        return address(escrow);
    }
}
