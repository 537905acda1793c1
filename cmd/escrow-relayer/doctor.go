package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/redact"
)

// doctorLimit bounds an examination. Database, topics and endpoints are examined concurrently, so
// that one that hangs leaves the others their time.
const doctorLimit = 18 * time.Second

func doctorCommand() *cobra.Command {
	var asJSON, operator bool
	var limit time.Duration
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Test everything an instance needs: database, session, schema, topics, every RPC endpoint",
		Long: `Test everything that an instance with this configuration needs, and leave nothing behind: the database, its rights, that it takes a commit, its clock, that a connection is one server
session; the schema; the topics and the right to publish; and of each RPC endpoint the chain, the head, safe and finalized, how many blocks it gives the logs of at
once, how far back its headers, logs and state go, what its answers prove (headers by their hash, logs by receipts, deployments by the factory's nonce), and how fast
it is (at most some 200 requests each); and the file of HTTP_TOKEN_FILE; and who can read it, and the files with keys that SENDERS_FILE names. Prints the variables to set.
Configuration as for run.

With --operator it examines the database login of a person instead: what it may read, and which tasks of the runbooks it cannot do. A right to write that is
missing is no fault then. Configuration: CHAIN_ID and DATABASE_URL.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			load, examine := config.Load, (*doctor).examine
			if operator {
				load, examine = config.LoadDatabase, (*doctor).examineOperator
			}

			cfg, err := loadOne(cmd, load)
			if err != nil {
				return err
			}

			ctx, cancel := context.WithTimeout(cmd.Context(), limit)
			defer cancel()
			d := &doctor{cfg: cfg, secrets: cfg.Secrets(), Findings: []finding{}, Set: []setting{}}
			if err := errors.Join(examine(d, ctx), cmd.Context().Err()); err != nil {
				return unlessInterrupted(cmd.Context(), d.secrets.Error(err))
			}

			if err := d.print(cmd.OutOrStdout(), asJSON); err != nil {
				return err
			}

			if d.Sick {
				return errQuiet
			}

			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	cmd.Flags().BoolVar(&operator, "operator", false, "examine the database login of a person, who may only read")
	cmd.Flags().DurationVar(&limit, "timeout", doctorLimit,
		"what has not answered by then is reported so; endpoints that limit their rate need longer")

	return cmd
}

// examine examines everything concurrently, and reports it in a fixed order.
func (d *doctor) examine(ctx context.Context) error {
	database, topics, chain, files := d.part("database"), d.part("topics"), d.part("chain"), d.part("files")
	var failed error
	var wg sync.WaitGroup
	wg.Go(func() { database.database(ctx) })
	wg.Go(func() { topics.topics(ctx) })
	wg.Go(func() { failed = chain.chain(ctx) })
	wg.Go(func() { files.files() })
	wg.Wait()
	d.add(database, topics, chain, files)

	return failed
}

// part returns a doctor for one thing; add merges its findings into those of d.
func (d *doctor) part(of string) *doctor { return &doctor{cfg: d.cfg, secrets: d.secrets, of: of} }

func (d *doctor) add(parts ...*doctor) {
	for _, p := range parts {
		d.Sick = d.Sick || p.Sick
		d.Findings = append(d.Findings, p.Findings...)
		d.Set = append(d.Set, p.Set...)
	}
}

// verdict is the result for one thing.
type verdict string

const (
	fine    verdict = "ok"
	note    verdict = "note"    // works, with room for improvement
	unknown verdict = "unknown" // could not be tested
	wrong   verdict = "WRONG"   // needs a person
)

// finding is one thing that was tested.
type finding struct {
	Verdict verdict `json:"verdict"`
	Of      string  `json:"of"` // database, topics, files, an endpoint's scheme and host
	What    string  `json:"what"`
	Found   string  `json:"found"`
}

// setting is a recommended variable.
type setting struct {
	Variable string `json:"variable"`
	Value    string `json:"value"`
	Reason   string `json:"reason"`
}

// doctor collects findings. One goroutine uses it.
type doctor struct {
	cfg     *config.Config
	secrets *redact.Secrets
	of      string // what it examines, as in finding.Of

	Sick     bool      `json:"sick"` // something needs a person
	Findings []finding `json:"findings"`
	Set      []setting `json:"set"`
}

func (d *doctor) say(v verdict, what, format string, args ...any) {
	d.Sick = d.Sick || v == wrong
	d.Findings = append(d.Findings, finding{v, d.of, what, d.secrets.Mask(fmt.Sprintf(format, args...))})
}

// judge reports what was found, or the error; it returns whether there is none.
func (d *doctor) judge(what, found string, err error) bool {
	if err != nil {
		d.say(wrong, what, "%s", d.secrets.Error(err))
		return false
	}

	d.say(fine, what, "%s", found)

	return true
}

// set recommends a variable.
func (d *doctor) set(variable, value, format string, args ...any) {
	d.Set = append(d.Set, setting{variable, value, fmt.Sprintf(format, args...)})
}

// print writes a table to a terminal, lines elsewhere, or JSON.
func (d *doctor) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return printJSON(w, d)
	}

	if isTerminal(w) {
		t := newTable(w, "", "of", "what", "found")
		t.SetColumnConfigs([]table.ColumnConfig{{Number: 4, WidthMax: 100}})
		for _, f := range d.Findings {
			t.AppendRow(table.Row{f.Verdict, f.Of, f.What, f.Found})
		}

		t.Render()
	} else {
		for _, f := range d.Findings {
			fmt.Fprintf(w, "%-7s %-8s %-12s %s\n", f.Verdict, f.Of, f.What, f.Found)
		}
	}

	if len(d.Set) > 0 {
		fmt.Fprintln(w, "\nset:")
	}

	for _, s := range d.Set {
		fmt.Fprintf(w, "%s=%s   # %s\n", s.Variable, s.Value, s.Reason)
	}

	return nil
}
