package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
	"github.com/fusion-prime/escrow-relayer/relayer/redact"
)

// readTimeout bounds one reading of the database for an operator: it takes milliseconds, but a
// broken connection may stay silent for ever.
const readTimeout = 4 * time.Second

// question is what a command asks of an open database.
type question func(context.Context, *config.Config, *database.Database) error

// askDatabase runs a command that needs only the database.
func askDatabase(cmd *cobra.Command, ask question) error {
	return askWith(cmd, config.LoadDatabase, ask)
}

// askWith loads the configuration of one chain, opens its database, and runs ask. Its error
// explains, without secrets, why the question failed.
func askWith(cmd *cobra.Command, load loader, ask question) error {
	cfg, err := loadOne(cmd, load)
	if err != nil {
		return err
	}

	return askOf(cmd, cfg, ask)
}

// askEach is askWith for every chain of the configuration, or the one of --chain. All are asked. A
// failed question takes precedence over the answer no.
func askEach(cmd *cobra.Command, load loader, ask question) error {
	all, err := loadAll(cmd, load)
	if err != nil {
		return err
	}

	var failed, answer error
	for _, cfg := range all {
		err := askOf(cmd, cfg, ask)
		switch {
		case len(all) == 1:
			return err
		case exitCode(err) == exitNo:
			answer = cmp.Or(answer, err)
		case err != nil:
			failed = errors.Join(failed, fmt.Errorf("chain %d: %w", cfg.ChainID, err))
		}
	}

	return cmp.Or(failed, answer)
}

// askOf opens the database of a chain and runs ask.
func askOf(cmd *cobra.Command, cfg *config.Config, ask question) error {
	db, err := database.Open(cmd.Context(), cfg)
	if err != nil {
		return explain(cfg, err)
	}
	defer db.Close()

	return unlessInterrupted(cmd.Context(), explain(cfg, ask(cmd.Context(), cfg, db)))
}

// explain translates an error, without any secret of the configuration.
func explain(cfg *config.Config, err error) error { return cfg.Secrets().Error(database.Explain(err)) }

// unlessInterrupted returns err, or that the command was interrupted before it had a result.
func unlessInterrupted(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return interrupted{context.Cause(ctx)}
	}

	return err
}

// readFleet reads the current fleet.
func readFleet(ctx context.Context, cfg *config.Config, db *database.Database) (f fleet.Fleet, err error) {
	err = database.Within(ctx, readTimeout, func(ctx context.Context) error {
		return fleet.Naming(ctx, db.Session, func(ctx context.Context) error {
			f, err = fleet.Read(ctx, db.Pool, cfg.ChainID)
			return err
		})
	})

	return f, explain(cfg, err)
}

// readInput reads standard input, at most so many bytes.
func readInput(cmd *cobra.Command, most int64) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), most))
	if err != nil {
		return nil, fmt.Errorf("read standard input: %w", err)
	}

	return raw, nil
}

// printJSON writes a value indented, for people.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")

	return e.Encode(v)
}

// newTable returns a table that Render writes to w.
func newTable(w io.Writer, columns ...any) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(printable{w})
	t.SetStyle(table.StyleLight)
	t.AppendHeader(columns)

	return t
}

// printable removes control characters: the texts of rows and sessions must not move a terminal's
// cursor.
type printable struct{ io.Writer }

func (p printable) Write(b []byte) (int, error) {
	if _, err := io.WriteString(p.Writer, redact.Printable(string(b))); err != nil {
		return 0, err
	}

	return len(b), nil
}
