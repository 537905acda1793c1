// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

/// Emits what a relayer must ignore: the signatures of escrow events, from an address that is not an escrow.
contract Noise {
    event Approved(address indexed approver);
    event EscrowDeployed(address indexed escrow, address indexed payer, address indexed payee, address arbiter, uint256 amount, uint256 releaseDelay, uint8 approvalsRequired);

    /// The generic event, n times, as many other contracts emit it.
    function approved(uint256 n) external {
        for (uint256 i = 0; i < n; i++) emit Approved(msg.sender);
    }

    /// The same signature, hence the same topic, with the argument not indexed: another shape of log.
    function approvedUnindexed(uint256 n) external {
        bytes32 topic = Approved.selector;
        for (uint256 i = 0; i < n; i++) {
            assembly ("memory-safe") {
                mstore(0, caller())
                log1(0, 32, topic)
            }
        }
    }

    /// A deployment that no factory of ours made.
    function deployed(address escrow) external {
        emit EscrowDeployed(escrow, msg.sender, msg.sender, msg.sender, 1, 2, 3);
    }
}
