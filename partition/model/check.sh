#!/usr/bin/env bash
# Checks the models with Spin (Debian: spin, gcc): who may commit (ownership.pml), what comes of a reorganisation (reorg.pml),
# what an event_id says across reorganisations (identity.pml), how a slot's log is passed on (log.pml), and in which order the
# messages of the log and of the outbox leave (order.pml).
#   check.sh ci      bounded: about a minute and a half
#   check.sh full    more blocks, more misfortunes: more than ten minutes and 6 GB
# Each negative check takes one rule out and fails unless Spin finds a violation.
set -euo pipefail
models=$(cd "$(dirname "$0")" && pwd)
# Each of several runs of a kind has its flags between slashes: ownership with two instances, and with three.
# The searches of ci are so short that gcc would take longer to optimise them than they take without.
case ${1:-ci} in
  ci) safety='-DBLOCKS=2 -DBUDGET=1' live='-DBLOCKS=1 -DBUDGET=1/-DN=3 -DBLOCKS=1 -DBUDGET=1' reorg='-DBUDGET=0' optimise=-O0
    log=('-DRELEASES=1 -DFLIPS=1' '-DRELEASES=1 -DOMITS=1 -DPAGE=1' '-DRELEASES=1 -DOMITS=1')
    order=(-DCRASHES=1 '-DFLIPS=1 -DASKS=1' '-DMOVES=2 -DASKS=1 -DLATE=1' '-DDEAF=1 -DASKS=2') ;;
  full) safety='-DBLOCKS=2 -DBUDGET=2/-DN=3 -DBLOCKS=1 -DBUDGET=1' live='-DBLOCKS=1 -DBUDGET=2/-DN=3 -DBLOCKS=1 -DBUDGET=1' reorg='-DBUDGET=1' optimise=-O2
    log=('-DRELEASES=1 -DPAGE=1' '-DRELEASES=1 -DDEAF=1 -DREFUSED=1' '-DFLIPS=1 -DREFUSED=1' -DKILLS=1 '-DKILLS=1 -DOMITS=1')
    order=('-DCRASHES=1 -DASKS=1' '-DMOVES=2 -DFLIPS=1' '-DFLIPS=1 -DASKS=1 -DDEAF=1' '-DMOVES=2 -DASKS=1 -DLATE=1 -DDEAF=1') ;;
  *) echo "usage: check.sh ci|full" >&2; exit 2 ;;
esac
command -v spin >/dev/null || { echo "spin is not installed (Debian: apt-get install spin)" >&2; exit 2; }
plain='-DSAFETY -DCOLLAPSE -DNOCLAIM'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# verify MODEL FLAGS RUNFLAGS COMPILEFLAGS: prints Spin's summary; true if there was no error and the search was complete.
verify() {
  local model=$models/$1
  shift
  # shellcheck disable=SC2086 # flags are several words
  spin $1 -a "$model" >/dev/null
  # shellcheck disable=SC2086
  gcc $optimise -w -DVECTORSZ=2048 -DMEMLIM=6000 $3 -o pan pan.c
  # shellcheck disable=SC2086
  ./pan -m300000 $2 >out.txt 2>&1 || true
  grep -E 'errors: |states, stored|max search depth too small|out of memory' out.txt | tr -s ' ' | tr '\n' ';'
  echo
  grep -q 'errors: 0' out.txt && ! grep -qE 'depth too small|out of memory|Search not completed' out.txt
}

live_flags='-DCOLLAPSE -DNFAIR=4'
IFS=/ read -ra runs <<<"$safety"
for flags in "${runs[@]}"; do
  echo "== safety: $flags"
  verify ownership.pml "$flags" "-noclaim" "$plain" || { echo "violated, or not searched to the end"; exit 1; }
done
IFS=/ read -ra runs <<<"$live"
for flags in "${runs[@]}"; do
  echo "== liveness: every slot is served again, by who should: $flags"
  verify ownership.pml "$flags -DNO_FACTORY" "-a -f -N served" "$live_flags" || { echo "violated, or not searched to the end"; exit 1; }
done
for rule in NO_FENCE NO_OWN_RAISE NO_RELEASE_RAISE NO_MIN NO_TERM; do
  echo "== without the rule: $rule"
  if verify ownership.pml "-DBLOCKS=2 -DBUDGET=1 -D$rule" "-noclaim" "$plain"; then
    echo "nothing found: the model does not see what the rule is for"
    exit 1
  fi
  grep -q 'assertion violated' out.txt || { cat out.txt; exit 1; }
done
for rule in NO_ADOPT NO_YIELD NO_LOOK NO_SITTING_OUT NO_OTHER; do
  echo "== without the rule: $rule"
  if verify ownership.pml "-DBLOCKS=1 -DBUDGET=2 -DNO_FACTORY -D$rule" "-a -f -N served" "$live_flags"; then
    echo "nothing found: the model does not see what the rule is for"
    exit 1
  fi
  grep -q 'acceptance cycle' out.txt || { cat out.txt; exit 1; }
done
echo "== reorganisation: published once, in order, or retracted"
verify reorg.pml "$reorg" -E "$plain" || { echo "violated, or not searched to the end"; exit 1; }
for rule in 0:NO_BRANCH 0:NO_LATE 0:NO_PATIENCE 1:NO_AHEAD 1:NO_HIGHEST; do # by the misfortunes it takes
  echo "== without the rule: ${rule#*:}"
  if verify reorg.pml "-DBUDGET=${rule%:*} -D${rule#*:}" -E "$plain"; then
    echo "nothing found: the model does not see what the rule is for"
    exit 1
  fi
  grep -q 'assertion violated' out.txt || { cat out.txt; exit 1; }
done
echo "== identity: an id has one content, and a consumer's set is the chain's"
verify identity.pml "-DBUDGET=0 -DLOST=0" -E "$plain" || { echo "violated, or not searched to the end"; exit 1; }
for rule in 0:NO_CONTENT 0:NO_OCCURRENCE 1:NO_TOLD 0:NO_SENT 1:NO_REPAIR; do # by what a node leaves out
  echo "== without the rule: ${rule#*:}"
  if verify identity.pml "-DBUDGET=0 -DLOST=0 -DOMITS=${rule%:*} -D${rule#*:}" -E "$plain"; then
    echo "nothing found: the model does not see what the rule is for"
    exit 1
  fi
  grep -q 'assertion violated' out.txt || { cat out.txt; exit 1; }
done
if [ "${1:-ci}" = full ]; then
  echo "== identity: what a node leaves out is stored by the verifier"
  verify identity.pml "-DBUDGET=0 -DLOST=0 -DOMITS=1" -E "$plain" || { echo "violated, or not searched to the end"; exit 1; }
  echo "== identity: an owner does not see a deployment"
  verify identity.pml "-DBUDGET=0 -DLOST=0 -DMISSES=1" -E "$plain" || { echo "violated, or not searched to the end"; exit 1; }
  echo "== identity: replays beside it all"
  verify identity.pml "-DBUDGET=0 -DLOST=0 -DREPLAYS=1" -E "$plain" || { echo "violated, or not searched to the end"; exit 1; }
fi
# holds NAME MODEL FLAGS...: each of the flags is a search.
holds() {
  local name=$1 model=$2
  shift 2
  for flags in "$@"; do
    echo "== $name: $flags"
    verify "$model" "$flags" -E "$plain" || { echo "violated, or not searched to the end"; exit 1; }
  done
}

# needs MODEL RULES...: each rule with the misfortunes it takes, RULE:A=1,B=1.
needs() {
  local model=$1
  shift
  for rule in "$@"; do
    echo "== without the rule: $rule"
    local flags=" ${rule#*:}"
    flags=${flags//,/ }
    if verify "$model" "-D${rule%%:*}${flags// / -D}" -E "$plain"; then
      echo "nothing found: the model does not see what the rule is for"
      exit 1
    fi
    grep -q 'assertion violated' out.txt || { cat out.txt; exit 1; }
  done
}

holds "log: what is sent is noted, by one owner after the other" log.pml "${log[@]}"
needs log.pml NO_EPOCH:RELEASES=1,OMITS=1 NO_GENERATION:FLIPS=1 NO_FRESH:FLIPS=1 NO_END:RELEASES=1,OMITS=1 \
  NO_BEHIND:RELEASES=1,OMITS=1 NO_ROWS:FLIPS=1 NO_LOWER:FLIPS=1 NO_HASH:FLIPS=1 NO_MARK:RELEASES=1 NO_LIMIT:RELEASES=1 \
  NO_ALL:RELEASES=1 NO_RAISE:RELEASES=1,OMITS=1,PAGE=1 NO_RIGHT:FLIPS=1
holds "order: first the log, then the rows" order.pml "${order[@]}"
needs order.pml NO_APART:LATE=1 NO_REQUESTS:ASKS=1 NO_LOGFIRST:FLIPS=1,ASKS=1 NO_CURSOR:FLIPS=1,ASKS=1 NO_PASS:DEAF=1,ASKS=1 \
  NO_MISSING:DEAF=1,ASKS=2 NO_AHEAD:FLIPS=1,ASKS=1 NO_REVIVED:FLIPS=1 \
  NO_LOOK:MOVES=1 NO_LOCK:MOVES=1 NO_LEAVE:MOVES=1 NO_CLOSED:MOVES=1,ASKS=1 NO_OLD:MOVES=1 NO_REST:MOVES=1 NO_REPEAT:MOVES=2 \
  NO_SNAPSHOT:MOVES=1,FLIPS=1 \
  NO_TOKEN:CRASHES=1,ASKS=1 NO_MEMORY:CRASHES=1,ASKS=1 NO_TENURE:CRASHES=1,ASKS=1
echo "the models hold, and each rule is needed"
