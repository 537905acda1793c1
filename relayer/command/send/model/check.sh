#!/usr/bin/env bash
# Checks the model of a sender's nonces with Spin (Debian: spin, gcc).
#   check.sh ci      a small instance of it, as it is and with a restored database
#   check.sh full    two instances, two commands, two nonces: 60 million states, minutes and some GB
# Each negative check takes one rule out and fails unless Spin finds a violation. It is as small as the violation allows, so that it ends.
set -euo pipefail
model=$(cd "$(dirname "$0")" && pwd)/send.pml
command -v spin >/dev/null || { echo "spin is not installed (Debian: apt-get install spin)" >&2; exit 2; }
# The searches of ci are so short that gcc would take longer to optimise them than they take without.
case ${1:-ci} in
  ci) whole='-DINSTANCES=1/-DINSTANCES=1 -DNONCES=1 -DRESTORE -DOLD_LOOK' optimise=-O0 ;;
  full) whole='-DTAKEOVERS=2/-DINSTANCES=1 -DRESTORE/-DINSTANCES=1 -DNONCES=1 -DRESTORE -DOLD_LOOK' optimise=-O2 ;;
  *) echo "usage: check.sh ci|full" >&2; exit 2 ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# verify FLAGS: prints Spin's summary; true if there was no error and the search was complete.
verify() {
  # shellcheck disable=SC2086 # flags are several words
  spin $1 -a "$model" >/dev/null
  gcc "$optimise" -w -DSAFETY -DCOLLAPSE -DNOCLAIM -DMEMLIM=6000 -o pan pan.c
  ./pan -E -m300000 >out.txt 2>&1 || true
  grep -E 'errors: |states, stored|max search depth too small|out of memory' out.txt | tr -s ' ' | tr '\n' ';'
  echo
  grep -q 'errors: 0' out.txt && ! grep -qE 'depth too small|out of memory|Search not completed' out.txt
}

IFS=/ read -ra runs <<<"$whole"
for flags in "${runs[@]}"; do
  echo "== as it is: $flags"
  verify "$flags" || { cat out.txt; echo "violated, or not searched to the end"; exit 1; }
done

# By the rule: how many instances, commands, nonces and takeovers its violation takes. NO_EPOCH is an owner that never looks at the epoch: after a
# restore it gives out by what it saw before. Without a restore each step is also guarded by what it reads of the command's row.
while read -r rule flags; do
  echo "== without the rule: $rule"
  if verify "-D$rule $flags"; then
    echo "nothing found: the model does not see what the rule is for"
    exit 1
  fi
  grep -q 'assertion violated' out.txt || { cat out.txt; exit 1; }
done <<'RULES'
NO_RECORD -DINSTANCES=1 -DCMDS=1 -DNONCES=1 -DTAKEOVERS=2
NO_RECEIPT -DINSTANCES=1 -DCMDS=1 -DNONCES=1 -DTAKEOVERS=1
NO_FINAL -DINSTANCES=1 -DCMDS=1 -DNONCES=1 -DTAKEOVERS=1
FREE_NONCE -DINSTANCES=1 -DCMDS=2 -DNONCES=1 -DTAKEOVERS=1
NO_HALT -DINSTANCES=1 -DCMDS=2 -DNONCES=1 -DTAKEOVERS=2 -DRESTORE
NO_EPOCH -DINSTANCES=1 -DCMDS=2 -DNONCES=1 -DTAKEOVERS=1 -DRESTORE -DOLD_LOOK
NO_ORDER -DINSTANCES=1 -DCMDS=2 -DNONCES=2 -DTAKEOVERS=2 -DRESTORE
RULES
echo "the model holds, and each of these rules is needed"
