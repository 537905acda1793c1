#!/usr/bin/env bash
# Stops a whole fleet on Cloud Run and makes sure that it has stopped, or starts it again. A service never has more than one instance.
#
#   deploy/scale.sh stop  --partitions 3            shows what it would do
#   deploy/scale.sh stop  --partitions 3 --apply    sets every service to 0 instances, and waits until no session is left in the database
#   deploy/scale.sh start --partitions 3 --apply    sets them to 1, one after the other, and waits until the fleet is whole
#
#   --partitions N        how many services
#   --prefix NAME         services are NAME-0, NAME-1, … (escrow-relayer)
#   --timeout DURATION    of each wait, in seconds (1500: Cloud Run may keep an instance for 15 minutes)
#   --no-database         stop: the database is gone, so do not ask it; look in the console that every service has no instance
#   --region R, --project P   for gcloud; without them gcloud's configuration is used
#
# Needs gcloud with manual scaling (--scaling), and escrow-relayer (or $ESCROW_RELAYER) with CHAIN_ID and DATABASE_URL in the environment.
# Exit codes: 0 done, 1 not done in time, 2 wrong arguments.
set -euo pipefail

relayer=${ESCROW_RELAYER:-escrow-relayer}
what='' partitions='' prefix=escrow-relayer timeout=1500 region='' project='' apply=false database=true

usage() { sed -n '2,/^set -euo/{/^set /d;s/^# \{0,1\}//;p}' "$0"; }
refuse() {
  printf 'scale: %s\n' "$*" >&2
  exit 2
}

while (($#)); do
  case $1 in
    stop | start) what=$1 ;;
    --apply) apply=true ;;
    --no-database) database=false ;;
    -h | --help) usage && exit 0 ;;
    --partitions | --prefix | --timeout | --region | --project)
      (($# > 1)) || refuse "$1 needs a value"
      printf -v "${1#--}" %s "$2"
      shift
      ;;
    *) refuse "unknown argument $1; see --help" ;;
  esac
  shift
done
[[ -n $what ]] || refuse "say stop or start; see --help"
[[ $partitions =~ ^[1-9][0-9]{0,3}$ ]] || refuse "--partitions is a number from 1 on, got '$partitions'"
[[ $timeout =~ ^[1-9][0-9]*$ ]] || refuse "--timeout is a number of seconds, got '$timeout'"

where=()
[[ -z $region ]] || where+=("--region=$region")
[[ -z $project ]] || where+=("--project=$project")

run() {
  printf '  %s\n' "$*"
  if $apply; then "$@"; fi
}

# alive counts the instances whose session the database sees; it fails when the database cannot be asked. status exits with 1 when something is
# wrong with the fleet, which is expected here.
alive() {
  local text
  text=$("$relayer" status --json 2>/dev/null) || (($? == 1)) || return 1
  [[ $text == *'"instances"'* ]] || return 1
  grep -c '"alive": *true' <<<"$text" || true
}

if [[ $what == stop ]]; then
  for ((i = 0; i < partitions; i++)); do
    run gcloud run services update "$prefix-$i" ${where[@]+"${where[@]}"} --scaling=0 --quiet
  done
  $apply || exit 0
  if ! $database; then
    echo "scale: every service is set to 0. The database was not asked whether an instance is left: look in the console before anything else starts."
    exit 0
  fi
  for ((waited = 0; ; waited++)); do
    left=$(alive) || left=unknown
    [[ $left != 0 ]] || break
    ((waited < timeout)) || { echo "scale: not stopped within ${timeout}s: $left instances are alive for the database" >&2; exit 1; }
    sleep "${SCALE_PAUSE:-1}"
  done
  echo "scale: stopped; no instance has a session in the database"
  exit 0
fi

for ((i = 0; i < partitions; i++)); do
  run gcloud run services update "$prefix-$i" ${where[@]+"${where[@]}"} --scaling=1 --quiet
done
run "$relayer" plan wait --timeout "${timeout}s"
