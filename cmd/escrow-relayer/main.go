// Command escrow-relayer watches an escrow factory and every escrow it deploys, and publishes each
// event to Google Pub/Sub.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// version, commit and date (of the commit) are set by the Makefile and a release.
// Otherwise the values that Go puts into every binary are used.
var version, commit, date string

func main() {
	ctx, stop := interruptible(context.Background())
	err := root().ExecuteContext(ctx)
	stop()

	if err != nil && !errors.Is(err, errQuiet) {
		fmt.Fprintln(os.Stderr, "escrow-relayer:", err)
	}

	os.Exit(exitCode(err))
}

// interruptible returns a context that ends with the first SIGTERM, SIGINT or SIGHUP (the terminal was
// closed). One that comes at least a second later ends the process at once: sooner it is the same wish, told twice, as
// a terminal and a supervisor do.
func interruptible(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)

	go func() { // lives as long as the process
		<-signals
		cancel()

		first := time.Now()
		for s := range signals {
			if time.Since(first) < time.Second {
				continue
			}

			fmt.Fprintln(os.Stderr, "escrow-relayer: second signal, exiting at once")
			code := 128
			if n, ok := s.(syscall.Signal); ok {
				code += int(n)
			}

			os.Exit(code)
		}
	}()

	return ctx, func() { signal.Stop(signals); cancel() }
}

func root() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:           "escrow-relayer",
		Short:         "Publishes every event of an escrow factory and its escrows to Google Pub/Sub, once and in order",
		Version:       versionLine(), // the flags --version and -v
		SilenceErrors: true,
		SilenceUsage:  true,
	})
	cmd.SetVersionTemplate("{{.Version}}\n")
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w: see %s --help", err, c.CommandPath())
	})
	cmd.AddCommand(runCommand(), migrateCommand(), statusCommand(), auditCommand(), replayCommand(), doctorCommand(),
		planCommand(), rewindCommand(), factoryCommand(), senderCommand(), commandCommand(), configCommand(),
		versionCommand())
	addChainFlags(cmd)

	refuseArguments(cmd)
	describeExits(cmd)

	return cmd
}

// refuseArguments makes every command below cmd refuse arguments, unless it declares them.
func refuseArguments(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		refuseArguments(c)
		if c.Args != nil {
			continue
		}

		c.Args = func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("%s takes no arguments, got %q", c.Name(), args)
			}

			return nil
		}
	}
}

// built identifies the binary: its version, its commit, and the commit's time.
func built() fleet.Build {
	b := fleet.Build{Version: version, Commit: commit, Date: date}
	if info, ok := debug.ReadBuildInfo(); ok {
		b.Version = cmp.Or(b.Version, info.Main.Version)
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = cmp.Or(b.Commit, s.Value)
			case "vcs.time":
				b.Date = cmp.Or(b.Date, s.Value)
			}
		}
	}

	return fleet.Build{
		Version: cmp.Or(b.Version, "(devel)"), Commit: cmp.Or(b.Commit, "unknown"), Date: cmp.Or(b.Date, "unknown"),
	}
}
