#!/usr/bin/env bash
# Takes a fleet on Cloud Run from N to M partitions, one service at a time, while it runs.
#
#   deploy/repartition.sh --from 3 --to 4 --manifests DIR            shows what it would do
#   deploy/repartition.sh --from 3 --to 4 --manifests DIR --apply    does it
#
# Growing: the new services first (from DIR/PREFIX-N.yaml …, made by `escrow-relayer plan manifests`), then the others get the new
# TOTAL_PARTITIONS. Shrinking: the services that stay get the new total first, the last one before the others, then the services
# that are left over are deleted. After each step it waits until the changed instance is alive with the new total, every slot is served, and the
# lag is back to normal.
#
# It can be stopped and run again at any point: what is done already is left alone, and what was begun and did not start is begun again. A fleet
# that stopped half way is safe, since each instance judges by its own number and total, and every slot has one owner. The way back is the same
# command with --from and --to swapped: it undoes the steps in reverse, so what did not start is removed first.
#
#   --from N --to M       numbers of partitions, before and after
#   --apply               change things; without it nothing is changed
#   --manifests DIR       manifests of the new services; needed for growing
#   --prefix NAME         services are NAME-0, NAME-1, … (escrow-relayer)
#   --strategy NAME       modulo or consistent, for the forecast only (modulo)
#   --timeout DURATION    of each wait (25m: Cloud Run may keep an old instance for 15 minutes)
#   --lag BLOCKS          how far the slowest may be behind the head (200: with finality `finalized` about 100 are normal)
#   --region R, --project P   for gcloud; without them gcloud's configuration is used
#
# Needs gcloud, and escrow-relayer (or $ESCROW_RELAYER) with CHAIN_ID and DATABASE_URL of the fleet in the environment.
# Exit codes: 0 done, 1 stopped half way, 2 wrong arguments or a fleet that is not what --from says.
set -euo pipefail

relayer=${ESCROW_RELAYER:-escrow-relayer}
from='' to='' apply=false manifests='' prefix=escrow-relayer strategy=modulo timeout=25m lag=200 region='' project=''

usage() { sed -n '2,/^set -euo/{/^set /d;s/^# \{0,1\}//;p}' "$0"; }
refuse() {
  printf 'repartition: %s\n' "$*" >&2
  exit 2
}

while (($#)); do
  case $1 in
    --apply) apply=true ;;
    -h | --help) usage && exit 0 ;;
    --from | --to | --manifests | --prefix | --strategy | --timeout | --lag | --region | --project)
      (($# > 1)) || refuse "$1 needs a value"
      printf -v "${1#--}" %s "$2"
      shift
      ;;
    *) refuse "unknown argument $1; see --help" ;;
  esac
  shift
done

for n in "$from" "$to"; do
  if ! [[ $n =~ ^[1-9][0-9]{0,3}$ ]] || ((n > 2520)); then
    refuse "--from and --to are numbers from 1 to 2520, got '$from' and '$to'"
  fi
done
((from != to)) || refuse "--from and --to are both $from: nothing to do"
((to < from)) || [[ -n $manifests ]] || refuse "growing needs --manifests DIR: make them with 'escrow-relayer plan manifests' for $to partitions"

where=()
[[ -z $region ]] || where+=("--region=$region")
[[ -z $project ]] || where+=("--project=$project")
smaller=$((from < to ? from : to))

# look reads a service into total[i], empty when there is no such service, and ready[i]: whether its newest revision ever became ready. Until
# then the service shows the new total while an instance with the old one runs. It fails when gcloud cannot tell.
total=() ready=()
look() {
  local text name=$prefix-$1
  total[$1]='' ready[$1]=true
  if ! text=$(gcloud run services describe "$name" ${where[@]+"${where[@]}"} --format=yaml 2>&1); then
    [[ $text == *"Cannot find service"* || $text == *NOT_FOUND* ]] && return 0
    printf '%s\n' "$text" >&2
    return 1
  fi
  total[$1]=$(total_in <<<"$text")
  ready[$1]=$(awk '$1 == "latestCreatedRevisionName:" { c = $2 } $1 == "latestReadyRevisionName:" { r = $2 } END { print c == r ? "true" : "false" }' <<<"$text")
}

# total_in prints the TOTAL_PARTITIONS of a manifest on standard input.
total_in() { awk '/name: TOTAL_PARTITIONS$/ { getline; gsub(/[^0-9]/, ""); print; exit }'; }

done_steps=()
stopped() {
  trap - INT TERM
  {
    printf '\nrepartition: STOPPED: %s\n\n' "$*"
    if ((${#done_steps[@]})); then
      printf '  done so far: %s\n' "${done_steps[*]}"
    else
      printf '  nothing was changed\n'
    fi
    printf '  The fleet is safe as it is: every slot has one owner, judged by each instance'"'"'s own total.\n'
    printf '  See what is wrong:   %s status\n' "$relayer"
    printf '  Go on, when mended:  %s\n' "$(again "$from" "$to")"
    ((${#done_steps[@]} == 0)) || printf '  Go back:             %s\n' "$(again "$to" "$from")"
    if ((${#done_steps[@]} && to < from)); then printf "                       (DIR: from 'escrow-relayer plan manifests' for %s partitions)\n" "$from"; fi
    printf '  deploy/runbooks/repartition.md has the background.\n'
  } >&2
  exit 1
}

# again is the command line of a run from $1 to $2.
again() {
  local line="$0 --from $1 --to $2 --prefix $prefix --timeout $timeout --lag $lag --apply"
  [[ -z $region ]] || line+=" --region $region"
  [[ -z $project ]] || line+=" --project $project"
  if (($2 > $1)); then line+=" --manifests ${manifests:-DIR}"; fi
  printf %s "$line"
}

# run shows a command, and runs it when --apply was given.
run() {
  printf '  %s\n' "$*"
  if $apply; then "$@"; fi
}

whole() { run "$relayer" plan wait --timeout "$timeout" --lag "$lag" "$@"; }

create() {
  local name=$prefix-$1
  printf '\n== %s: create\n' "$name"
  run gcloud run services replace "$manifests/$name.yaml" ${where[@]+"${where[@]}"} --quiet ||
    { done_steps+=("$name in part;") && stopped "$name could not be created"; }
  done_steps+=("created $name;")
  whole --instance "$name" --total "$to" || stopped "the fleet is not whole after $name was created"
}

change() {
  local name=$prefix-$1 anew=()
  printf '\n== %s: %s -> %s partitions\n' "$name" "$from" "$to"
  # The variable alone would change nothing in a service that has it already: the label makes a new revision.
  if [[ ${ready[$1]:-true} == false ]]; then anew=("--update-labels=repartition=$(date +%s)"); fi
  run gcloud run services update "$name" ${where[@]+"${where[@]}"} --quiet ${anew[@]+"${anew[@]}"} --container=relayer "--update-env-vars=TOTAL_PARTITIONS=$to" ||
    { done_steps+=("$name in part;") && stopped "$name could not be changed"; }
  done_steps+=("changed $name;")
  whole --instance "$name" --total "$to" || stopped "the fleet is not whole after $name was changed"
}

remove() {
  local name=$prefix-$1
  printf '\n== %s: delete\n' "$name"
  run gcloud run services delete "$name" ${where[@]+"${where[@]}"} --quiet ||
    { done_steps+=("$name in part;") && stopped "$name could not be deleted"; }
  done_steps+=("deleted $name;")
  whole --gone "$name" || stopped "the fleet is not whole after $name was deleted"
}

printf 'repartition %s-* from %s to %s partitions%s\n' "$prefix" "$from" "$to" "$($apply || echo ' (dry run: nothing is changed)')"
"$relayer" plan move --from "$from" --to "$to" --strategy "$strategy" || printf '  (no forecast: %s plan move failed)\n' "$relayer"

# Everything is looked at before anything is changed. Without --apply gcloud is not asked: a dry run needs no login.
for ((i = smaller; i < to; i++)); do
  manifest=$manifests/$prefix-$i.yaml
  [[ -r $manifest ]] || refuse "$manifest is missing: make it with 'escrow-relayer plan manifests' for $to partitions"
  [[ $(total_in <"$manifest") == "$to" ]] || refuse "$manifest is not for TOTAL_PARTITIONS=$to: make it again"
done
if $apply; then
  for ((i = 0; i < from || i < to; i++)); do
    look "$i" || refuse "cannot look at $prefix-$i"
    case ${total[i]} in
      "$from") ;;
      "$to") done_steps=("what an earlier run did;") ;;
      '')
        # A new service is not there yet; one that an earlier run deleted is not there any more.
        ((i >= smaller)) || refuse "$prefix-$i does not exist, or has no TOTAL_PARTITIONS: is --from right?"
        ;;
      *) refuse "$prefix-$i has TOTAL_PARTITIONS=${total[i]}, neither $from nor $to: is --from right?" ;;
    esac
  done
  trap 'stopped "interrupted"' INT TERM
  if ((${#done_steps[@]})); then
    # Half way the fleet need not be whole: the next steps may mend or delete the service that did not start.
    printf '\n== the fleet stands half way: going on\n'
  else
    printf '\n== the fleet is whole before anything is changed\n'
    whole || stopped "the fleet is not whole to begin with"
  fi
fi

left_alone=()
for ((i = smaller; i < to; i++)); do
  if [[ ${total[i]:-} != "$to" ]]; then
    create "$i"
  elif [[ ${ready[i]} == false ]]; then
    printf '\n== %s-%s: is there, and did not start: delete it\n' "$prefix" "$i"
    run gcloud run services delete "$prefix-$i" ${where[@]+"${where[@]}"} --quiet || stopped "$prefix-$i could not be deleted"
    create "$i"
  else
    printf '\n== %s-%s: is there already\n' "$prefix" "$i"
    left_alone+=("$i")
  fi
done
stay=()
for ((i = 0; i < smaller; i++)); do
  if ((from < to)); then stay+=("$i"); else stay=("$i" ${stay[@]+"${stay[@]}"}); fi
done
for i in "${stay[@]}"; do
  if [[ ${total[i]:-} != "$to" || ${ready[i]} == false ]]; then
    change "$i"
  else
    printf '\n== %s-%s: has %s already\n' "$prefix" "$i" "$to"
    left_alone+=("$i")
  fi
done
for ((i = from - 1; i >= to; i--)); do
  if $apply && [[ -z ${total[i]} ]]; then printf '\n== %s-%s: is gone already\n' "$prefix" "$i"; else remove "$i"; fi
done
for i in ${left_alone[@]+"${left_alone[@]}"}; do
  whole --instance "$prefix-$i" --total "$to" || stopped "$prefix-$i has $to partitions and is not well"
done

if $apply; then
  printf '\nrepartition: done, %s partitions. Set partitions = %s for Terraform, so that its next plan is empty.\n' "$to" "$to"
else
  printf '\nrepartition: dry run, nothing was changed. Add --apply.\n'
fi
