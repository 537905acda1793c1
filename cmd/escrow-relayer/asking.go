package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// askDatabase runs a command that needs the database and nothing else: it reads what connects to
// it, runs ask, and says in words, without a secret, why something could not be asked.
func askDatabase(cmd *cobra.Command, ask func(context.Context, *config.Config, *database.Database) error) error {
	return askDatabaseWith(cmd, config.Environ(), ask)
}

// askDatabaseWith is askDatabase with another environment than the process's.
func askDatabaseWith(cmd *cobra.Command, environ map[string]string,
	ask func(context.Context, *config.Config, *database.Database) error) error {
	cfg, err := config.LoadDatabase(environ)
	if err != nil {
		return err
	}

	db, err := database.Open(cmd.Context(), cfg)
	if err != nil {
		return explain(cfg, err)
	}
	defer db.Close()

	err = ask(cmd.Context(), cfg, db)
	if err != nil && cmd.Context().Err() != nil {
		return interrupted{context.Cause(cmd.Context())}
	}

	return explain(cfg, err)
}

// openLedger reads the configuration, and opens its database and the ledger on it. The caller closes
// the database.
func openLedger(ctx context.Context) (*config.Config, *database.Database, *ledger.Ledger, error) {
	cfg, err := config.Load(config.Environ())
	if err != nil {
		return nil, nil, nil, err
	}

	db, err := database.Open(ctx, cfg)
	if err != nil {
		return nil, nil, nil, err
	}

	return cfg, db, ledger.New(ledger.Config{DB: db.Pool, ChainID: cfg.ChainID, InstanceID: cfg.InstanceID,
		EventNames: cfg.ABI.EventNames(), Publishes: cfg.Publishes}), nil
}

// explain says what an error means, without any secret of the configuration.
func explain(cfg *config.Config, err error) error { return cfg.Secrets().Error(database.Explain(err)) }
