// Command escrow-demo runs the relayer's binary on chains, a Postgres and a Pub/Sub server that it
// starts: `escrow-demo` shows a fleet on two chains that loses a leader and gets a factory,
// `escrow-demo dev` keeps one relayer running for developing a consumer. It is separate from the deployed binary.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/internal/demo"
)

// Exit codes, those of escrow-relayer.
const (
	exitNo          = 1   // the audit found something
	exitRefused     = 2   // it could not begin, or could not go on
	exitInterrupted = 130 // there was no audit
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := root().ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "escrow-demo:", err)
	}

	os.Exit(exitCode(err))
}

func exitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, demo.ErrDirty):
		return exitNo
	case errors.Is(err, demo.ErrInterrupted):
		return exitInterrupted
	}

	return exitRefused
}

func root() *cobra.Command {
	o := demo.Options{}
	cmd := &cobra.Command{
		Use:   "escrow-demo",
		Short: "Run a fleet on two chains of its own, kill a leader, add a factory, and audit what was published",
		Long: `Run a fleet on two chains, a Postgres and a Pub/Sub server of its own; needs no configuration.

Each relayer follows both chains, and each chain has a leader. The leader of the first one is killed. It comes back with
a second factory of that chain in its configuration, and what that factory had deployed before is read beside the rest.
Later the leader of the second chain is stopped gracefully, and at the end a reorganisation of the first one takes back
blocks that were published. Then each chain is audited against what was published.

Ctrl-C ends everything that was started; with --keep it ends the traffic, and the audit follows.
Exit codes: 0 well; 1 an event is missing, unknown or out of order; 2 it could not run; 130 interrupted.`,
		Args: cobra.NoArgs, SilenceErrors: true, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.Instances < 1 || o.Instances > 20 {
				return fmt.Errorf("--instances %d: must be 1 to 20", o.Instances)
			}

			if o.Duration < 10*time.Second {
				return fmt.Errorf("--duration %s: must be 10s or longer", o.Duration)
			}

			if o.Bin, err = relayer(o.Bin); err != nil {
				return err
			}

			o.Out = cmd.OutOrStdout()

			return demo.Run(cmd.Context(), o)
		},
	}
	cmd.PersistentFlags().StringVar(&o.Bin, "relayer", "",
		"program escrow-relayer; default: the one beside this program, else the one in PATH")
	cmd.Flags().IntVar(&o.Instances, "instances", 3, "relayer processes, 1 to 20")
	cmd.Flags().DurationVar(&o.Duration, "duration", time.Minute,
		"of the traffic; what happens to the instances fills the first minute of it at most")
	cmd.Flags().Uint64Var(&o.Seed, "seed", 1, "decides accounts and traffic")
	cmd.Flags().BoolVar(&o.Keep, "keep", false, "keep the traffic running until interrupted")
	cmd.AddCommand(devCommand(&o.Bin))

	return cmd
}

// relayer finds the relayer's binary.
func relayer(named string) (string, error) {
	if named != "" {
		return named, nil
	}

	const name = "escrow-relayer"
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), name)
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}

	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("find the program %s beside this one or in PATH: %w; make build, or name it by --relayer",
			name, err)
	}

	return path, nil
}
