// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

/// Escrows as another project could have them: other names, other arguments, and two ways to end without payment.
contract Deals {
    uint256 public count;

    event Opened(uint256 indexed id, address indexed deal, address buyer, uint256 price);

    function open(address payable seller) external payable returns (Deal deal) {
        deal = new Deal{value: msg.value}(payable(msg.sender), seller);
        emit Opened(++count, address(deal), msg.sender, msg.value);
        deal.started();
    }
}

contract Deal {
    address payable public immutable buyer;
    address payable public immutable seller;

    event Started(uint256 price);
    event Settled(address indexed to, uint256 price);
    event Cancelled(string reason);
    event Expired();

    constructor(address payable b, address payable s) payable {
        (buyer, seller) = (b, s);
    }

    function started() external {
        emit Started(address(this).balance);
    }

    function settle() external {
        emit Settled(seller, address(this).balance);
        pay(seller);
    }

    function cancel(string calldata reason) external {
        emit Cancelled(reason);
        pay(buyer);
    }

    function expire() external {
        emit Expired();
        pay(buyer);
    }

    function pay(address payable to) private {
        (bool ok,) = to.call{value: address(this).balance}("");
        require(ok);
    }
}
