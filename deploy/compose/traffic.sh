#!/bin/sh
# By each of $FACTORIES, creates escrows that need two approvals, and approves them as payer and as payee: the second approval releases at once.
set -eu
payer=0x70997970C51812dc3A010C7d01b50e0d17dc79C8
payee=0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC
arbiter=0x90F79bf6EB2c4f870365E785982E1f101E93b906
send() { cast send --unlocked --json "$@"; }
while :; do
  for factory in $FACTORIES; do
    # The escrow's address is the first indexed argument of the factory's own log.
    escrow=$(send --from "$payer" --value 1000 "$factory" 'createEscrow(address,uint256,uint8,address)' "$payee" 0 2 "$arbiter" |
      sed -n 's/.*"topics":\["0x[0-9a-f]*","0x000000000000000000000000\([0-9a-f]\{40\}\)".*/0x\1/p')
    send --from "$payer" "$escrow" 'approve()' >/dev/null
    send --from "$payee" "$escrow" 'approve()' >/dev/null
    echo "escrow $escrow created, approved twice, released"
  done
done
