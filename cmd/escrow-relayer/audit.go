package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/source"
	"github.com/fusion-prime/escrow-relayer/relayer/verify"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

func auditCommand() *cobra.Command {
	var from, to int64
	var asJSON, dryRun bool
	cmd := &cobra.Command{
		Use:   "audit --from BLOCK [--to BLOCK]",
		Short: "Compare the chain with the database and print every missing, extra or differing event",
		Long:  "Compare the chain with the database, block range by block range. Nothing is changed. Configuration as for run.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(config.Environ())
			if err != nil {
				return err
			}

			ctx := cmd.Context()
			db, err := database.Open(ctx, cfg)
			if err != nil {
				return err
			}
			defer db.Close()
			led := ledger.New(ledger.Config{DB: db.Pool, ChainID: cfg.ChainID, InstanceID: cfg.InstanceID,
				EventNames: cfg.ABI.EventNames(), Publishes: cfg.Publishes})
			stored, err := led.Verifiable(ctx)
			if err != nil {
				return explain(cfg, err)
			}

			if to == 0 {
				to = stored.To
			}

			switch {
			case from < cfg.StartBlock:
				from = cfg.StartBlock
			}

			if from > to {
				return usage{fmt.Errorf("nothing to audit from block %d to %d", from, to)}
			}

			if to > stored.To {
				return usage{fmt.Errorf("--to %d: only blocks up to %d are stored as a whole; audit up to there", to, stored.To)}
			}

			if dryRun {
				fmt.Fprintf(cmd.OutOrStdout(), "would compare blocks %d to %d (%d blocks) of chain %d\n", from, to,
					to-from+1, cfg.ChainID)
				return nil
			}

			src, err := openSource(cfg)
			if err != nil {
				return explain(cfg, err)
			}

			if err := src.Check(ctx, cfg.Factory); err != nil {
				return explain(cfg, err)
			}

			running, err := runSource(ctx, src)
			if err != nil {
				return explain(cfg, err)
			}
			defer running()
			filters := watch.NewFilters(cfg.ABI, cfg.Factory, watch.FilterMode(cfg.LogFilter), cfg.RPCMaxAddress,
				cfg.RPCRequestPrice)
			v := verify.New(verify.Config{Source: src, Filters: filters.Again(), Ledger: led, ABI: cfg.ABI,
				Factory: cfg.Factory, Every: time.Second, Log: logger(cfg), Metrics: verify.NewMetrics(prometheus.NewRegistry())})
			bar := progress(cmd.ErrOrStderr(), to-from+1, "blocks")
			count := map[string]int{}
			out := json.NewEncoder(cmd.OutOrStdout())
			err = v.Compare(ctx, from, to, func(first, last int64, found []verify.Difference) error {
				for _, d := range found {
					if count[d.Kind]++; d.Kind == verify.Pruned {
						continue
					}

					if asJSON {
						if err := out.Encode(d); err != nil {
							return err
						}

						continue
					}

					e := d.Chain
					if e.Name == "" {
						e = d.Stored
					}

					fmt.Fprintf(cmd.OutOrStdout(), "%-9s %s %s escrow %s block %d %s\n", d.Kind, d.ID(), e.Name, e.Escrow,
						e.BlockNumber, d.Why)
				}

				return bar.Add64(last - first + 1)
			})
			_ = bar.Finish()
			if err != nil {
				return explain(cfg, err)
			}

			fmt.Fprintf(cmd.ErrOrStderr(), "audited blocks %d to %d: %d missing, %d extra, %d differing\n", from, to,
				count[verify.Missing], count[verify.Extra], count[verify.Differing])
			if n := count[verify.Pruned]; n > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "%d events of ended escrows are not compared: RETENTION has removed them\n", n)
			}

			if count[verify.Missing]+count[verify.Extra]+count[verify.Differing] > 0 {
				return errQuiet
			}

			return nil
		},
	}
	cmd.Flags().Int64Var(&from, "from", 0, "first block; START_BLOCK if lower")
	cmd.Flags().Int64Var(&to, "to", 0, "last block; default: everything that is stored as a whole")
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON object a difference")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be compared")

	return cmd
}

// progress is a bar on a terminal, and nothing elsewhere.
func progress(w io.Writer, n int64, what string) *progressbar.ProgressBar {
	f, ok := w.(*os.File)
	if !ok || !isatty.IsTerminal(f.Fd()) {
		return progressbar.DefaultSilent(n)
	}

	return progressbar.NewOptions64(n, progressbar.OptionSetWriter(w), progressbar.OptionSetDescription(what),
		progressbar.OptionShowCount(),
		progressbar.OptionShowIts(), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
}

func openSource(cfg *config.Config) (*source.Source, error) {
	return source.New(source.Config{
		URLs: cfg.RPCURLs, ChainID: uint64(cfg.ChainID), Finality: cfg.Finality, Confirmations: cfg.Confirmations,
		PollInterval: cfg.PollInterval,
		Timeout:      cfg.RPCTimeout, MaxRPS: cfg.RPCMaxRPS, MaxRange: cfg.RPCMaxRange, MaxAddresses: cfg.RPCMaxAddress,
		Logger: logger(cfg), Registerer: prometheus.NewRegistry(),
	})
}
