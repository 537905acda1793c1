#!/bin/sh
# Creates the topics and a subscription in the emulator; what exists already (409) is left as it is.
set -eu
base=http://$PUBSUB_EMULATOR_HOST/v1/projects/local
put() {
  code=$(curl --silent --output /dev/null --write-out '%{http_code}' --retry 60 --retry-delay 1 --retry-all-errors \
    --request PUT "$base/$1" --header 'Content-Type: application/json' --data "$2") ||
    { echo "$1: the emulator does not answer at $PUBSUB_EMULATOR_HOST" >&2; exit 1; }
  case $code in 200 | 409) echo "$1: $code" ;; *) echo "$1: $code" >&2; exit 1 ;; esac
}
put topics/settlement.events.v1 '{}'
put topics/settlement.retractions.v1 '{}'
put subscriptions/look '{"topic": "projects/local/topics/settlement.events.v1", "enableMessageOrdering": true}'
