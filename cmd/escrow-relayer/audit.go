package main

import (
	"context"
	"fmt"
	"io"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/logging"
	"github.com/fusion-prime/escrow-relayer/relayer/verify"
)

func auditCommand() *cobra.Command {
	a := &audit{}
	cmd := &cobra.Command{
		Use:   "audit --from BLOCK [--to BLOCK]",
		Short: "Compare the chain with the database and print every missing, extra or differing event",
		Long: `Compare the chain with the database, block range by block range. Nothing is changed. Configuration as for run.

Where commands were used, each sender's transactions since its first nonce are compared with what was signed and answered too.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.cmd = cmd
			if err := blocks(a.from, a.to); err != nil {
				return err
			}

			return askWith(cmd, config.Load, a.run)
		},
	}
	cmd.Flags().Int64Var(&a.from, "from", 0, "first block; START_BLOCK if lower")
	cmd.Flags().Int64Var(&a.to, "to", 0, "last block; default: everything that is stored as a whole")
	cmd.Flags().BoolVar(&a.prove, "prove", false, "read every block by its hash and prove it: some requests per block")
	cmd.Flags().BoolVar(&a.sendersOnly, "senders-only", false, "compare the senders of commands, and no events")

	return cmd
}

// audit is one run of the command.
type audit struct {
	from, to           int64
	prove, sendersOnly bool

	cmd *cobra.Command
	cfg *config.Config
	db  *database.Database
	led *ledger.Ledger
	src *chain.Source

	followed *registry.Followed // the factories
}

// run compares events and senders. A difference is the answer no.
func (a *audit) run(ctx context.Context, cfg *config.Config, db *database.Database) (err error) {
	a.cfg, a.db, a.led = cfg, db, relayer.NewLedger(cfg, db)
	if err := a.limit(ctx); err != nil {
		return err
	}

	if a.prove {
		cfg.Proof = chain.ProveWhole
	}

	src, stop, err := startSource(ctx, cfg)
	if err != nil {
		return err
	}
	defer stop()
	a.src = src

	events := 0
	if !a.sendersOnly {
		if events, err = a.events(ctx); err != nil {
			return err
		}
	}

	senders, err := a.senders(ctx)
	if err == nil && events+senders > 0 {
		err = errQuiet
	}

	return err
}

// limit determines the range of blocks to compare.
func (a *audit) limit(ctx context.Context) error {
	if a.sendersOnly {
		return nil
	}

	stored, err := a.led.Verifiable(ctx)
	if err != nil {
		return err
	}

	a.followed = registry.NewFollowed()
	if err := a.followed.Refresh(ctx, a.db.Pool, a.cfg.ChainID); err != nil {
		return err
	}

	start, err := registry.Start(ctx, a.db.Pool, a.cfg.ChainID)
	if err != nil {
		return err
	}

	if a.to == 0 {
		a.to = stored.To
	}

	a.from = max(a.from, start)
	if a.from > a.to {
		return fmt.Errorf("nothing to audit from block %d to %d", a.from, a.to)
	}

	if a.to > stored.To {
		return fmt.Errorf("--to %d: only blocks up to %d are stored as a whole; audit up to there", a.to, stored.To)
	}

	return nil
}

// events compares the events of the range, and returns how many differ.
func (a *audit) events(ctx context.Context) (int, error) {
	v := relayer.NewVerifier(a.cfg, a.src, a.followed, relayer.NewFilters(a.cfg, a.followed), a.led, logger(a.cfg),
		verify.NewMetrics(prometheus.NewRegistry()))
	say := a.cmd.ErrOrStderr()
	count := map[string]int{}
	err := v.Compare(ctx, a.from, a.to, func(_, last int64, found []verify.Difference) error {
		for _, d := range found {
			if count[d.Kind]++; d.Kind == verify.Pruned {
				continue
			}

			e := d.Chain
			if e.Name == "" {
				e = d.Stored
			}

			fmt.Fprintf(a.cmd.OutOrStdout(), "%-9s %s %s escrow %s block %d %s\n", d.Kind, d.ID(), e.Name, e.Escrow,
				e.BlockNumber, d.Why)
		}

		progress(say, last-a.from+1, a.to-a.from+1, "blocks")
		return nil
	})
	if err != nil {
		return 0, err
	}

	missing, extra, differing := count[verify.Missing], count[verify.Extra], count[verify.Differing]
	fmt.Fprintf(say, "audited blocks %d to %d: %d missing, %d extra, %d differing\n", a.from, a.to, missing, extra,
		differing)
	unknown := count[verify.Undecodable] + count[verify.Unannounced]
	if unknown > 0 {
		fmt.Fprintf(say, "followed contracts do what the ABI does not know: %d logs, %d blocks with creations; complete "+
			"FACTORY_ABI or ESCROW_ABI\n", count[verify.Undecodable], count[verify.Unannounced])
	}

	for _, factory := range a.followed.Addresses() {
		fmt.Fprintf(say, "the nonce of factory %s %s\n", factory, v.Counts(factory))
	}

	if n := count[verify.Pruned]; n > 0 {
		fmt.Fprintf(say, "%d events of ended escrows are not compared: RETENTION has removed them\n", n)
	}

	return missing + extra + differing + unknown, nil
}

// senders compares every transaction of the senders of commands, and returns how many differ.
func (a *audit) senders(ctx context.Context) (int, error) {
	count := map[string]int{}
	done, err := send.Audit(ctx, a.db.Pool, a.cfg.ChainID, evm.NewNodes(a.src), func(f send.Finding) error {
		count[f.Kind]++
		fmt.Fprintf(a.cmd.OutOrStdout(), "%-10s sender %s nonce %d command %s: %s\n", f.Kind, f.Sender, f.Nonce, f.Command,
			f.Why)

		return nil
	})
	if err != nil {
		return 0, err
	}

	foreign, differing := count[send.FindingForeign], count[send.FindingDiffering]
	unanswered := count[send.FindingUnanswered]
	if done.Senders > 0 || a.sendersOnly {
		fmt.Fprintf(a.cmd.ErrOrStderr(),
			"audited %d transactions of %d senders for %d commands: %d foreign, %d differing, %d unanswered\n", done.Nonces,
			done.Senders, done.Commands, foreign, differing, unanswered)
	}

	return foreign + differing + unanswered, nil
}

// progress shows on a terminal how much of a run is done. What is written next takes its place.
func progress(w io.Writer, n, of int64, what string) {
	if logging.Terminal(w) {
		fmt.Fprintf(w, "%d of %d %s\r", n, of, what)
	}
}

// startSource runs a source until stop is called, and returns once the chain of its endpoints is
// known.
func startSource(ctx context.Context, cfg *config.Config) (src *chain.Source, stop func(), err error) {
	src = relayer.NewSource(cfg, logger(cfg), prometheus.NewRegistry())
	for _, f := range cfg.Factories {
		if err := src.Check(ctx, f.Address); err != nil {
			return nil, nil, err
		}
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
		if src.View().Trust != chain.Undecided {
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
