#!/bin/sh
# Compiles the contracts into contracts.json and writes the Go bindings from that. With --check it only says whether contracts.json would
# change; whether the bindings belong to contracts.json, and that to the sources, is tested without a compiler.
# Needs node, npm and go. The compiler is pinned here, the generator of bindings in go.mod.
set -eu
cd "$(dirname "$0")"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
npm install --prefix "$tmp" --no-save --no-audit --no-fund --ignore-scripts --loglevel=error solc@0.8.37 >/dev/null
NODE_PATH="$tmp/node_modules" node compile.js >"$tmp/contracts.json"
if [ "${1:-}" = --check ]; then
	diff -u contracts.json "$tmp/contracts.json" || { echo "internal/testchain/contracts/contracts.json is out of date; run make generate" >&2; exit 1; }
	exit
fi
cp "$tmp/contracts.json" contracts.json
go test -count=1 -run '^TestBindings$' . -update
