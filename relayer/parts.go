package relayer

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/verify"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

// An instance, `audit`, `replay` and `doctor` read the same chain and the same tables: their common
// parts are created from the configuration here.

// NewSource returns the chain as the endpoints of RPC_URLS show it.
func NewSource(cfg *config.Config, log *slog.Logger, reg prometheus.Registerer) *chain.Source {
	return chain.New(chain.Config{
		URLs: cfg.RPCURLs, ChainID: uint64(cfg.ChainID), Finality: cfg.Finality, Confirmations: cfg.Confirmations,
		Agreement: cfg.Agreement, Proof: cfg.Proof, PollInterval: cfg.PollInterval, Timeout: cfg.RPCTimeout,
		MaxRPS: cfg.RPCMaxRPS, MaxRange: cfg.RPCMaxRange, MaxAddresses: cfg.RPCMaxAddress, Sharing: cfg.Chains,
		Logger: log, Registerer: reg,
	})
}

// NewFilters returns the filters for requesting logs.
func NewFilters(cfg *config.Config, factories *registry.Followed) *watch.Filters {
	return watch.NewFilters(cfg.ABI, factories, watch.FilterMode(cfg.LogFilter), cfg.RPCMaxAddress)
}

// NewLedger returns the stored events of the chain.
func NewLedger(cfg *config.Config, db *database.Database) *ledger.Ledger {
	return ledger.New(ledger.Config{
		DB: db.Pool, ChainID: cfg.ChainID, InstanceID: cfg.InstanceID, EventNames: cfg.ABI.EventNames(),
		Publishes: cfg.Publishes, Reopen: send.Reopen,
	})
}

// NewVerifier returns the verifier, which reads the chain a second time and compares it with the
// ledger.
func NewVerifier(cfg *config.Config, src *chain.Source, factories *registry.Followed, filters *watch.Filters,
	led *ledger.Ledger, log *slog.Logger, metrics *verify.Metrics) *verify.Verifier {
	return verify.New(verify.Config{
		Source: src, Filters: filters.Again(), Ledger: led, ABI: cfg.ABI, Factories: factories,
		Every: cfg.VerifyInterval, Log: log, Metrics: metrics,
	})
}
