#!/bin/sh
# Deploys the factory of factory.hex once for each of $FACTORIES, from anvil's first account, unless the address has code already.
set -eu
for factory in $FACTORIES; do
  if [ "$(cast code "$factory")" != 0x ]; then
    echo "the factory is there already: $factory"
    continue
  fi
  # anvil knows the keys of its accounts: no key is needed here. The number of the account's transaction decides the address.
  cast send --unlocked --from 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266 --create "$(cat "$(dirname "$0")/factory.hex")"
  [ "$(cast code "$factory")" != 0x ] || { echo "no code at $factory: the chain was not fresh" >&2; exit 1; }
done
