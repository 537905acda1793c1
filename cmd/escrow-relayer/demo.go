package main

import (
	"fmt"
	"os"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/internal/demo"
)

func demoCommand() *cobra.Command {
	o := demo.Options{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a fleet on a chain of its own, kill its leader, and audit what subscribers received",
		Long:  "Run a fleet on a chain, a Postgres and a Pub/Sub server of its own; needs no configuration. Exit code 0 only if nothing is missing, duplicated or out of order.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Instances < 1 || o.Instances > 20 {
				return usage{fmt.Errorf("--instances %d: must be 1 to 20", o.Instances)}
			}
			if o.Duration < 10*time.Second {
				return usage{fmt.Errorf("--duration %s: must be 10s or longer", o.Duration)}
			}
			var err error
			if o.Bin, err = os.Executable(); err != nil {
				return fmt.Errorf("find this binary: %w", err)
			}
			o.Out, o.Terminal = cmd.OutOrStdout(), isatty.IsTerminal(os.Stdout.Fd())
			return demo.Run(cmd.Context(), o)
		},
	}
	cmd.Flags().IntVar(&o.Instances, "instances", 3, "relayer processes")
	cmd.Flags().DurationVar(&o.Duration, "duration", time.Minute, "of the traffic")
	cmd.Flags().Uint64Var(&o.Seed, "seed", 1, "decides accounts and traffic")
	cmd.Flags().BoolVar(&o.Keep, "keep", false, "keep the traffic running until interrupted")
	return cmd
}
