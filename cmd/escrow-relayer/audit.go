package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/relayer"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/send"
	"github.com/fusion-prime/escrow-relayer/relayer/source"
	"github.com/fusion-prime/escrow-relayer/relayer/verify"
)

func auditCommand() *cobra.Command {
	o := &auditOptions{}
	cmd := &cobra.Command{
		Use:   "audit --from BLOCK [--to BLOCK]",
		Short: "Compare the chain with the database and print every missing, extra or differing event",
		Long: `Compare the chain with the database, block range by block range. Nothing is changed. Configuration as for run.

Where commands were used, each sender's transactions since its first nonce are compared with what was signed and answered too.`,
		RunE: o.run,
	}
	cmd.Flags().Int64Var(&o.from, "from", 0, "first block; START_BLOCK if lower")
	cmd.Flags().Int64Var(&o.to, "to", 0, "last block; default: everything that is stored as a whole")
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "one JSON object per difference")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "only say what would be compared")
	cmd.Flags().BoolVar(&o.sendersOnly, "senders-only", false, "compare the senders of commands, and no events")

	return cmd
}

// auditOptions are the flags of audit.
type auditOptions struct {
	from, to                    int64
	asJSON, dryRun, sendersOnly bool
}

func (o *auditOptions) run(cmd *cobra.Command, _ []string) error {
	return askWith(cmd, config.Load, func(ctx context.Context, cfg *config.Config, db *database.Database) error {
		led := relayer.NewLedger(cfg, db)
		if err := o.limit(ctx, cfg, led); err != nil {
			return err
		}

		if o.dryRun {
			fmt.Fprintf(cmd.OutOrStdout(), "would compare blocks %d to %d (%d blocks) of chain %d\n", o.from, o.to,
				o.to-o.from+1, cfg.ChainID)
			return nil
		}

		src, stop, err := startSource(ctx, cfg)
		if err != nil {
			return err
		}
		defer stop()

		return o.compare(ctx, cmd, cfg, src, led, db)
	})
}

// compare compares events and senders. A difference is the answer no.
func (o *auditOptions) compare(ctx context.Context, cmd *cobra.Command, cfg *config.Config, src *source.Source,
	led *ledger.Ledger, db *database.Database) (err error) {
	differing := 0
	if !o.sendersOnly {
		if differing, err = o.events(ctx, cmd, cfg, src, led); err != nil {
			return err
		}
	}

	n, err := o.senders(ctx, cmd, cfg, src, db)
	if err != nil {
		return err
	}

	if differing+n > 0 {
		return errQuiet
	}

	return nil
}

// limit decides which range of blocks is compared.
func (o *auditOptions) limit(ctx context.Context, cfg *config.Config, led *ledger.Ledger) error {
	if o.sendersOnly {
		return nil
	}

	stored, err := led.Verifiable(ctx)
	if err != nil {
		return err
	}

	if o.to == 0 {
		o.to = stored.To
	}

	o.from = max(o.from, cfg.StartBlock)
	if o.from > o.to {
		return usage{fmt.Errorf("nothing to audit from block %d to %d", o.from, o.to)}
	}

	if o.to > stored.To {
		return usage{fmt.Errorf("--to %d: only blocks up to %d are stored as a whole; audit up to there", o.to, stored.To)}
	}

	return nil
}

// events compares the events of the range, and returns how many differ.
func (o *auditOptions) events(ctx context.Context, cmd *cobra.Command, cfg *config.Config, src *source.Source,
	led *ledger.Ledger) (int, error) {
	v := relayer.NewVerifier(cfg, src, relayer.NewFilters(cfg), led, logger(cfg),
		verify.NewMetrics(prometheus.NewRegistry()))
	bar := progress(cmd.ErrOrStderr(), o.to-o.from+1, "blocks")
	count := map[string]int{}
	err := v.Compare(ctx, o.from, o.to, func(first, last int64, found []verify.Difference) error {
		for _, d := range found {
			if count[d.Kind]++; d.Kind == verify.Pruned {
				continue
			}

			e := d.Chain
			if e.Name == "" {
				e = d.Stored
			}

			if err := o.print(cmd, d, "%-9s %s %s escrow %s block %d %s\n", d.Kind, d.ID(), e.Name, e.Escrow, e.BlockNumber,
				d.Why); err != nil {
				return err
			}
		}

		return bar.Add64(last - first + 1)
	})
	_ = bar.Finish()
	if err != nil {
		return 0, err
	}

	fmt.Fprintf(cmd.ErrOrStderr(), "audited blocks %d to %d: %d missing, %d extra, %d differing\n", o.from, o.to,
		count[verify.Missing], count[verify.Extra], count[verify.Differing])
	if n := count[verify.Pruned]; n > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "%d events of ended escrows are not compared: RETENTION has removed them\n", n)
	}

	return count[verify.Missing] + count[verify.Extra] + count[verify.Differing], nil
}

// senders compares every transaction of the senders of commands, and returns how many differ.
func (o *auditOptions) senders(ctx context.Context, cmd *cobra.Command, cfg *config.Config, src *source.Source,
	db *database.Database) (int, error) {
	count := map[string]int{}
	done, err := send.Audit(ctx, send.AuditConfig{DB: db.Pool, ChainID: cfg.ChainID, Factory: cfg.Factory,
		Chain: send.NewNodes(src)}, func(f send.Finding) error {
		count[f.Kind]++
		return o.print(cmd, f, "%-10s sender %s nonce %d command %s: %s\n", f.Kind, f.Sender, f.Nonce, f.Command, f.Why)
	})
	if err != nil {
		return 0, err
	}

	if done.Senders > 0 || o.sendersOnly {
		fmt.Fprintf(cmd.ErrOrStderr(),
			"audited %d transactions of %d senders for %d commands: %d foreign, %d differing, %d unanswered\n", done.Nonces,
			done.Senders, done.Commands, count[send.FindingForeign], count[send.FindingDiffering],
			count[send.FindingUnanswered])
	}

	return count[send.FindingForeign] + count[send.FindingDiffering] + count[send.FindingUnanswered], nil
}

// print writes one difference, as JSON or as a line.
func (o *auditOptions) print(cmd *cobra.Command, difference any, format string, args ...any) error {
	if o.asJSON {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(difference)
	}

	_, err := fmt.Fprintf(cmd.OutOrStdout(), format, args...)

	return err
}

// progress is a bar on a terminal, and nothing elsewhere.
func progress(w io.Writer, n int64, what string) *progressbar.ProgressBar {
	if !isTerminal(w) {
		return progressbar.DefaultSilent(n)
	}

	return progressbar.NewOptions64(n, progressbar.OptionSetWriter(w), progressbar.OptionSetDescription(what),
		progressbar.OptionShowCount(),
		progressbar.OptionShowIts(), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
}

// openSource returns the chain for a command, whose metrics nobody reads.
func openSource(cfg *config.Config) (*source.Source, error) {
	return relayer.NewSource(cfg, logger(cfg), prometheus.NewRegistry())
}

// startSource runs a source until stop is called, and returns once its endpoints have been heard.
func startSource(ctx context.Context, cfg *config.Config) (src *source.Source, stop func(), err error) {
	if src, err = openSource(cfg); err != nil {
		return nil, nil, err
	}

	if err := src.Check(ctx, cfg.Factory); err != nil {
		return nil, nil, err
	}

	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		_ = src.Run(ctx)
	}()
	stop = func() { cancel(); <-done }
	for {
		changed := src.Changed()
		if src.View().Ready {
			return src, stop, nil
		}

		select {
		case <-ctx.Done():
			stop()
			return nil, nil, ctx.Err()
		case <-changed:
		}
	}
}
