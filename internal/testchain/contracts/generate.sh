#!/bin/sh
# Compiles the contracts into contracts.json and writes the Go bindings from that. Needs node, npm and go. The compiler is pinned here, the
# generator of bindings in go.mod. Whether the committed files belong to the sources is tested without a compiler.
set -eu
cd "$(dirname "$0")"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
npm install --prefix "$tmp" --no-save --no-audit --no-fund --ignore-scripts --loglevel=error solc@0.8.37 >/dev/null
NODE_PATH="$tmp/node_modules" node compile.js >"$tmp/contracts.json"
cp "$tmp/contracts.json" contracts.json
go test -count=1 -run '^TestBindings$' . -update
