// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

/// One payment held until enough parties approve and its time has come. Emits the events of the deployed system.
contract Escrow {
    event EscrowCreated(address indexed payer, address indexed payee, address indexed arbiter, uint256 amount, uint256 releaseTime, uint8 approvalsRequired);
    event Approved(address indexed approver);
    event ArbiterChanged(address indexed oldArbiter, address indexed newArbiter);
    event EscrowReleased(address indexed payee, uint256 amount, uint256 timestamp);
    event EscrowRefunded(address indexed payer, uint256 amount, uint256 timestamp);

    error NotAllowed();
    error AlreadyApproved();
    error Settled();
    error TooEarly();
    error NotEnoughApprovals();

    uint256 public constant REFUND_AFTER = 30 days;

    address public immutable payer;
    address public immutable payee;
    uint256 public immutable amount;
    uint256 public immutable releaseTime;
    uint8 public immutable approvalsRequired;
    address public arbiter;
    uint8 public approvals;
    bool public settled;
    mapping(address => bool) public hasApproved;

    constructor(address payer_, address payee_, uint256 releaseDelay, uint8 approvalsRequired_, address arbiter_) payable {
        payer = payer_;
        payee = payee_;
        amount = msg.value;
        releaseTime = block.timestamp + releaseDelay;
        approvalsRequired = approvalsRequired_;
        arbiter = arbiter_;
        emit EscrowCreated(payer_, payee_, arbiter_, msg.value, block.timestamp + releaseDelay, approvalsRequired_);
    }

    /// By payer, payee or arbiter, once each. The last approval needed also releases, if the time has come.
    function approve() external {
        if (settled) revert Settled();
        if (msg.sender != payer && msg.sender != payee && msg.sender != arbiter) revert NotAllowed();
        if (hasApproved[msg.sender]) revert AlreadyApproved();
        hasApproved[msg.sender] = true;
        approvals++;
        emit Approved(msg.sender);
        if (approvals >= approvalsRequired && block.timestamp >= releaseTime) _release();
    }

    /// By anybody, for approvals that were complete before the release time.
    function release() external {
        if (settled) revert Settled();
        if (approvals < approvalsRequired) revert NotEnoughApprovals();
        if (block.timestamp < releaseTime) revert TooEarly();
        _release();
    }

    /// By the payer, 30 days after the release time.
    function refund() external {
        if (settled) revert Settled();
        if (msg.sender != payer) revert NotAllowed();
        if (block.timestamp < releaseTime + REFUND_AFTER) revert TooEarly();
        settled = true;
        emit EscrowRefunded(payer, amount, block.timestamp);
        _pay(payer);
    }

    /// By the payer or the arbiter.
    function changeArbiter(address newArbiter) external {
        if (settled) revert Settled();
        if (msg.sender != payer && msg.sender != arbiter) revert NotAllowed();
        emit ArbiterChanged(arbiter, newArbiter);
        arbiter = newArbiter;
    }

    function _release() private {
        settled = true;
        emit EscrowReleased(payee, amount, block.timestamp);
        _pay(payee);
    }

    function _pay(address to) private {
        (bool ok, ) = to.call{value: amount}("");
        require(ok);
    }
}
