# Every target works on a fresh clone with Go (see go.mod for the version) and nothing else, unless it says so.
SHELL := /bin/bash
BIN := bin/escrow-relayer
DEMO := bin/escrow-demo
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
DATE ?= $(shell TZ=UTC git show -s --format=%cd --date=format-local:%Y-%m-%dT%H:%M:%SZ HEAD 2>/dev/null || echo unknown)
GOLANGCI_LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
CRANE := github.com/google/go-containerregistry/cmd/crane@v0.22.1
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
# What is built, tested and measured is what ships: without C, and so without a C compiler. The race detector needs one.
export CGO_ENABLED := 0
RACE = CGO_ENABLED=1 GOFLAGS="$(TESTFLAGS)" go test -race
GO_SOURCES := $(shell git ls-files '*.go' 2>/dev/null)

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-14s %s\n", $$1, $$2}'

.PHONY: build
build: ## the binary, in bin/
	go build -trimpath -ldflags '-X main.version=$(VERSION) -X main.commit=$(COMMIT) -X main.date=$(DATE)' -o $(BIN) ./cmd/escrow-relayer

.PHONY: demo
demo: slow-at-first build $(DEMO) ## three relayers on two chains: watch them lose a leader, get a second factory, and lose no event
	$(DEMO) $(ARGS)

.PHONY: dev
dev: slow-at-first build $(DEMO) ## one relayer with a local chain, Postgres and Pub/Sub, to write a consumer against (ARGS=--help)
	$(DEMO) dev $(ARGS)

.PHONY: slow-at-first
slow-at-first:
	@test -e $(DEMO) || echo "building: one to three minutes the first time, seconds later …"

.PHONY: $(DEMO)
$(DEMO):
	go build -o $@ ./cmd/escrow-demo

# Lint has vet's checks. Nobody debugs the programs that tests build: without symbols each links in half the time.
TESTFLAGS := -vet=off -ldflags=-s

.PHONY: test
test: ## the whole behaviour, against a real Postgres, real chains and Google's Pub/Sub server
	GOFLAGS="$(TESTFLAGS)" go test -p 4 -parallel 4 -timeout 60m ./... # they mostly wait

.PHONY: check
check: lint model race seeds long browser pgbouncer languages outages deploy-check ## what test leaves out: lint, models, races, long simulation, outages

# RACES=ci is what .ci/run has time for: the packages whose goroutines share most.
RACES_full := ./election ./partition ./registry ./relayer/... ./internal/chaos
RACES_ci := ./election ./relayer ./relayer/publish ./relayer/chain/rpc ./relayer/command/intake ./relayer/web

.PHONY: race
race: ## the product's packages and the simulation with the race detector (RACES=ci: fewer)
	$(RACE) -timeout 60m $(RACES_$(or $(RACES),full))

.PHONY: seeds
seeds: ## the simulation with the race detector: a fixed seed each of events, of commands and of two chains
	$(RACE) -tags long -run '^TestSeedOfEach$$' -timeout 60m ./internal/chaos

.PHONY: long
long: ## what takes minutes: fixed seeds, instances cut off for long, every figure, the largest blocks, whole tables of lies and costs
	GOFLAGS="$(TESTFLAGS)" go test -tags long -timeout 60m \
	  -run '^(TestSeedOf|TestFixed|TestEveryFigure|TestLargeBlocks|TestLi|TestHostile|TestPruned|TestCost|TestFirstStart|TestDatabaseFails|TestNothingTwice|TestIndependent|TestDemo|TestConsumer)' \
	  ./internal/chaos ./internal/bench ./relayer ./relayer/chain ./relayer/publish ./cmd/escrow-relayer ./cmd/escrow-demo

.PHONY: browser
browser: ## the status page in a headless Chromium
	$(RACE) -tags browser ./relayer/web

.PHONY: pgbouncer
pgbouncer: ## session and pool through a pool of connections (needs the program pgbouncer)
	$(RACE) -tags pgbouncer -run Pools ./election ./relayer/database ./cmd/escrow-relayer

.PHONY: languages
languages: ## the consumers in Python and TypeScript (needs npm and Debian's python3-psycopg, -cryptography, -grpcio)
	GOFLAGS="$(TESTFLAGS)" relayer/message/check.sh

.PHONY: outages
outages: ## what pages in outages, in shortened time (needs the program prometheus)
	GOFLAGS="$(TESTFLAGS)" go test -tags outage -run TestOutages -count=1 -timeout 25m ./deploy

.PHONY: deploy-check
deploy-check: ## scripts, manifests and rules below deploy (needs shellcheck, jq and prometheus; DEPLOY=ci is shorter)
	deploy/check.sh $(or $(DEPLOY),full)

.PHONY: lint
lint: ## formatting and the linters of .golangci.yml (golangci-lint is built from a Go module: a minute at first)
	@test -z "$$(gofmt -l $(GO_SOURCES))" || { gofmt -l $(GO_SOURCES); echo "run gofmt -w"; exit 1; }
	go run $(GOLANGCI_LINT) run ./...
	go run $(ACTIONLINT)

.PHONY: generate
generate: ## compile the contracts and write their bindings again (needs npm for the pinned compiler)
	go generate ./internal/testchain/...

.PHONY: verify
verify: generate ## fail if a generated file is not what its source says
	git diff --exit-code -- internal/testchain

.PHONY: model
model: ## the models of ownership, reorganisations and a sender's nonces (needs spin and gcc; MODEL=ci is shorter)
	partition/model/check.sh $(or $(MODEL),full)
	relayer/command/send/model/check.sh $(or $(MODEL),full)

.PHONY: chaos
chaos: ## try to break the guarantees: SEED=n repeats one plan, MINUTES=n tries new ones, ARGS=-commands with commands in the traffic, ARGS=-race with the race detector
	go run ./internal/chaos/cmd/chaos $(if $(SEED),-seed $(SEED)) $(if $(MINUTES),-minutes $(MINUTES)) $(ARGS)

.PHONY: outage
outage: ## what pages in real outages: a real Prometheus, real processes, real time, and that broken rules are told (needs the program prometheus; an hour)
	OUTAGE_FACTOR=1 go test -tags outage -run 'TestOutages|TestBrokenRulesAreTold|TestFaultsAreTold' -count=1 -v -timeout 100m ./deploy

.PHONY: image
image: ## the image for Linux (ARCH=amd64 or arm64; default: this machine's), in bin/image.tar, without Docker
	@mkdir -p bin
	go run ./internal/release/cmd/release -image bin/image.tar -only linux/$(or $(ARCH),$(shell go env GOARCH))

.PHONY: push
push: image ## the same to a registry, with Docker's credentials: IMAGE=REGISTRY/NAME:TAG; prints its digest
	go run $(CRANE) push bin/image.tar $(IMAGE)

.PHONY: compose
compose: image ## a local fleet with Prometheus and Grafana (needs docker compose)
	@test -e deploy/compose/.env || (umask 077; echo POSTGRES_PASSWORD=$$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n') >deploy/compose/.env)
	docker load -i bin/image.tar
	docker compose -f deploy/compose/compose.yaml up $(ARGS)

.PHONY: release
release: ## archives, image, Helm chart, SBOMs and checksums, in dist; built twice and compared (ARGS="-only linux/amd64")
	go run ./internal/release/cmd/release -out dist $(ARGS)
	@again=$$(mktemp -d) && trap 'rm -rf "$$again"' EXIT && git clone --quiet --no-local . "$$again/source" && \
	  (cd "$$again/source" && go run ./internal/release/cmd/release -out dist $(ARGS) >/dev/null) && \
	  diff dist/SHA256SUMS "$$again/source/dist/SHA256SUMS" && echo "built a second time elsewhere: the same bytes"

.PHONY: notices
notices: ## write deploy/THIRD_PARTY_NOTICES anew, after a change of go.mod
	go run ./internal/release/cmd/release -notices

.PHONY: fuzz
fuzz: ## each fuzz target for FUZZTIME (default 30s)
	@set -e; for pkg in $$(grep -rlE '^func Fuzz' --include='*_test.go' . | xargs -n1 dirname | sort -u); do \
	  for target in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]*' $$pkg/*_test.go | cut -d' ' -f2); do \
	    echo "== $$pkg $$target"; go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(or $(FUZZTIME),30s) $$pkg; done; done

.PHONY: bench
bench: ## measure: ONLY=name runs one figure, ARGS="-bin FILE" another binary in the same way
	go run ./internal/bench/cmd/bench $(if $(ONLY),-only $(ONLY)) $(ARGS)

.PHONY: microbench
microbench: ## Go benchmarks of decoding, matching, encoding and committing, with allocations: COUNT=n, BENCH=regexp; compare two outputs with benchstat
	@go test -run '^$$' -bench '$(or $(BENCH),.)' -benchmem -count $(or $(COUNT),6) -timeout 60m ./relayer/contract ./relayer/message ./relayer/chain ./relayer/watch ./relayer/ledger

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist
