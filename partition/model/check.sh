#!/usr/bin/env bash
# Checks the model of the ownership protocol with Spin (Debian: spin, gcc).
#   check.sh ci      bounded: about half a minute
#   check.sh full    more blocks, more misfortunes: minutes
# Each negative check takes one rule out and fails unless Spin finds a violation.
set -euo pipefail
model=$(cd "$(dirname "$0")" && pwd)/ownership.pml
case ${1:-ci} in
  ci) safety='-DBLOCKS=2 -DBUDGET=2' live='-DBLOCKS=1 -DBUDGET=1' ;;
  full) safety='-DBLOCKS=3 -DBUDGET=4' live='-DBLOCKS=2 -DBUDGET=2' ;;
  *) echo "usage: check.sh ci|full" >&2; exit 2 ;;
esac
command -v spin >/dev/null || { echo "spin is not installed (Debian: apt-get install spin)" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# verify FLAGS RUNFLAGS: prints Spin's summary; true if there was no error and the search was complete.
verify() {
  # shellcheck disable=SC2086 # flags are several words
  spin $1 -a "$model" >/dev/null
  gcc -O2 -w -DVECTORSZ=2048 -DMEMLIM=3000 $3 -o pan pan.c
  # shellcheck disable=SC2086
  ./pan -m200000 $2 >out.txt 2>&1 || true
  grep -E 'errors: |states, stored|max search depth too small|out of memory' out.txt | tr -s ' ' | tr '\n' ';'
  echo
  grep -q 'errors: 0' out.txt && ! grep -qE 'depth too small|out of memory|Search not completed' out.txt
}

echo "== safety"
verify "$safety" "-noclaim" "-DSAFETY -DCOLLAPSE -DNOCLAIM" || { echo "violated, or not searched to the end"; exit 1; }
echo "== liveness: every slot is served again"
verify "$live" "-a -f -N served" "-DCOLLAPSE -DNFAIR=3" || { echo "violated, or not searched to the end"; exit 1; }
for rule in NO_FENCE NO_OWN_RAISE NO_MIN NO_TERM; do
  echo "== without the rule: $rule"
  if verify "$safety -D$rule" "-noclaim" "-DSAFETY -DCOLLAPSE -DNOCLAIM"; then
    echo "nothing found: the model does not see what the rule is for"
    exit 1
  fi
  grep -q 'assertion violated' out.txt || { cat out.txt; exit 1; }
done
echo "the model holds, and each rule is needed"
