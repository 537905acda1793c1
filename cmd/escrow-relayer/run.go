package main

import (
	"bytes"
	"log/slog"
	"os"

	"github.com/mattn/go-isatty"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/relayer"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/logging"
)

func runCommand() *cobra.Command {
	var variables bytes.Buffer
	config.Help(&variables)
	return &cobra.Command{
		Use:   "run",
		Short: "Run one instance until SIGTERM or SIGINT",
		Long: `Run one instance until SIGTERM or SIGINT; a second signal exits at once.

Exit codes: 0 stopped cleanly; 2 the configuration is wrong or does not fit the chain, the database or Pub/Sub; 1 anything else.

The configuration comes from the environment:

` + variables.String() + `
DATABASE_URL, RPC_URL and RPC_URLS hold secrets; they are shown nowhere.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(config.Environ())
			if err != nil {
				return err
			}
			log := logger(cfg)
			reg := prometheus.NewRegistry()
			reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
			v, revision := built()
			r, err := relayer.New(cfg, log, reg, v, revision)
			if err != nil {
				return cfg.Secrets().Error(err)
			}
			log.InfoContext(cmd.Context(), "starting", slog.String("version", v), slog.String("revision", revision), slog.String("instance", cfg.InstanceID))
			return cfg.Secrets().Error(r.Run(cmd.Context()))
		},
	}
}

func logger(cfg *config.Config) *slog.Logger {
	format := cfg.LogFormat
	if format == "auto" {
		format = "json"
		if isatty.IsTerminal(os.Stderr.Fd()) {
			format = "text"
		}
	}
	return logging.New(os.Stderr, format, cfg.LogLevel, cfg.Secrets())
}
