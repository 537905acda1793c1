//go:build !production

package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/fusion-prime/escrow-relayer/internal/demo"
)

// demonstrations are the commands that bring a chain, a database server and a Pub/Sub server of
// their own. What is deployed is built with the tag production and has none of that: half the size,
// and no test server in it.
func demonstrations() []*cobra.Command { return []*cobra.Command{demoCommand()} }

// leftOut says of each command that this build does not have where it is.
var leftOut map[string]string

func demoCommand() *cobra.Command {
	o := demo.Options{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a fleet on a chain of its own, kill its leader, and audit what subscribers received",
		Long: `Run a fleet on a chain, a Postgres and a Pub/Sub server of its own; needs no configuration.

The leader is killed, comes back, and later an instance is stopped gracefully; then the chain is audited against what a subscriber received.
With --commands a service also signs commands (approve, release; some of them twice) and hands them
over by HTTP and Pub/Sub. The relayers have the key of the account that acts, an arbiter's. Its owner is
killed with the leader, while transactions are under way, and another instance goes on. In the end every
transaction of the account, read from the chain, is compared with the answers: each accepted command took
effect once, none twice, and each has its answer.
Ctrl-C ends everything that was started; with --keep it ends the traffic,
and the audit follows.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Instances < 1 || o.Instances > 20 {
				return usage{fmt.Errorf("--instances %d: must be 1 to 20", o.Instances)}
			}

			if o.Duration < 10*time.Second {
				return usage{fmt.Errorf("--duration %s: must be 10s or longer", o.Duration)}
			}

			return runDemo(cmd, o)
		},
	}
	cmd.Flags().IntVar(&o.Instances, "instances", 3, "relayer processes, 1 to 20")
	cmd.Flags().DurationVar(&o.Duration, "duration", time.Minute,
		"of the traffic; what happens to the instances fills the first minute of it at most")
	cmd.Flags().Uint64Var(&o.Seed, "seed", 1, "decides accounts and traffic")
	cmd.Flags().BoolVar(&o.Keep, "keep", false, "keep the traffic running until interrupted")
	cmd.Flags().BoolVar(&o.Commands, "commands", false,
		"also approve and release by signed commands, and audit their effects and answers")

	return cmd
}

// runDemo runs it, drawn on the terminal if there is one, and gives each way to end its exit code.
func runDemo(cmd *cobra.Command, o demo.Options) (err error) {
	if o.Bin, err = os.Executable(); err != nil {
		return fmt.Errorf("find this binary: %w", err)
	}

	o.Out = cmd.OutOrStdout()
	if fd := int(os.Stdout.Fd()); term.IsTerminal(fd) {
		o.Size = func() (int, int) {
			width, height, err := term.GetSize(fd)
			if err != nil || width == 0 {
				return 80, 24
			}

			return width, height
		}
	}

	err = demo.Run(cmd.Context(), o)
	if errors.Is(err, demo.ErrInterrupted) {
		return interrupted{err}
	}

	if errors.Is(err, demo.ErrDirty) || errors.Is(err, demo.ErrCommands) {
		return no{err}
	}

	return err
}
