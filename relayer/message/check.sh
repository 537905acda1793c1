#!/usr/bin/env bash
# The consumers in Python and TypeScript: their own tests, and a fleet that all three languages receive from.
# It needs npm, and Debian's python3-psycopg, python3-cryptography and python3-grpcio.
set -euo pipefail
cd "$(dirname "$0")/../.."
npm ci --prefix relayer/message/typescript --no-audit --no-fund --ignore-scripts
npm run --prefix relayer/message/typescript build
go test -tags languages -run 'TestPython|TestTypeScript' -count=1 -v ./relayer/message/subscriber
go test -tags languages,long -run TestConsumersInEveryLanguage -count=1 -v ./cmd/escrow-relayer
