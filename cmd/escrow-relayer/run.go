package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/relayer"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/logging"
)

func runCommand() *cobra.Command {
	var variables bytes.Buffer
	config.Help(&variables)

	return &cobra.Command{
		Use:   "run",
		Short: "Run one instance, of one chain or of several, until SIGTERM or SIGINT",
		Long: `Run one instance until SIGTERM or SIGINT; another one, a second or more later, exits at once.

The configuration of one chain comes from the environment. --config, or CONFIG_FILE, names a YAML file that lists
several chains and what they have in common, by the same names in lower case; what fails for one of them leaves the
others alone. relayer/config/README.md describes the file.


` + variables.String() + `
Traces are off. OTEL_TRACES_EXPORTER=otlp or console switches them on; where to, and what is sampled, say the standard variables of
OpenTelemetry: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_PROTOCOL (http/protobuf or grpc), OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME,
OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER, OTEL_TRACES_SAMPLER_ARG, OTEL_SDK_DISABLED.

DATABASE_URL, RPC_URL, RPC_URLS and OTEL_EXPORTER_OTLP_HEADERS hold secrets; they are shown nowhere.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := loadAll(cmd, config.Load)
			if err != nil {
				return err
			}

			limitMemory()
			log, build := logger(all...), built()
			p, err := relayer.NewProcess(all, log, build)
			if err != nil {
				return err
			}

			log.InfoContext(cmd.Context(), "starting", slog.String("version", build.Version),
				slog.String("revision", build.Commit), slog.String("instance", all[0].InstanceID),
				slog.String("follows", names(all)))
			if err := within(cmd.Context(), all[0].StopTimeout, p.Run); err != nil {
				return no{config.Secrets(all...).Error(database.Explain(err))}
			}

			return nil
		},
	}
}

// within runs a service, and once ctx has ended waits for it for grace at most. The other instances
// take over what remains: the end of the process frees its locks.
func within(ctx context.Context, grace time.Duration, run func(context.Context) error) error {
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }() // if it outlives the grace, it ends with the process
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}

	select {
	case err := <-ended:
		return err
	case <-time.After(grace):
		return fmt.Errorf("not stopped within STOP_TIMEOUT=%s: ending as it is; nothing is lost, and the other instances take over", grace)
	}
}

// logger is the log of a process, without the secrets of any of its chains.
func logger(all ...*config.Config) *slog.Logger {
	return logging.New(os.Stderr, all[0].LogFormat, all[0].LogLevel, config.Secrets(all...))
}
