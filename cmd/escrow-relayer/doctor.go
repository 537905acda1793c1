package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/redact"
)

// doctorLimit is how long an examination may take, whatever hangs. Database, topics and endpoints
// are examined at once, so that one of them that hangs takes no time from the others.
const doctorLimit = 18 * time.Second

func doctorCommand() *cobra.Command {
	var asJSON, operator bool
	var limit time.Duration
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Test everything an instance needs: database, session, schema, topics, every RPC endpoint",
		Long: "Test everything that an instance with this configuration needs, and change nothing: the database, its " +
			"rights, its clock, that a connection is one server\n" +
			"session; the schema; the topics and the right to publish; and of each RPC endpoint the chain, the head, safe and " +
			"finalized, how many blocks it gives the logs of at\n" +
			"once, how far back it goes, and how fast it is (at most some 100 requests each); and who can read the files with\n" +
			"keys that SENDERS_FILE names. Prints the variables to set.\n" +
			"Configuration as for run.\n\n" +
			"With --operator it examines the database login of a person instead: what it may read, and which tasks of the " +
			"runbooks it cannot do. A right to write that is\n" +
			"missing is no fault then. Configuration: CHAIN_ID and DATABASE_URL.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			load, examine := config.Load, (*doctor).examine
			if operator {
				load, examine = config.LoadDatabase, (*doctor).examineOperator
			}

			cfg, err := load(config.Environ())
			if err != nil {
				return err
			}

			ctx, cancel := context.WithTimeout(cmd.Context(), limit)
			defer cancel()
			d := &doctor{cfg: cfg, secrets: cfg.Secrets(), Findings: []finding{}, Set: []setting{}}
			if err := examine(d, ctx); err != nil {
				return d.secrets.Error(err)
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

// examine looks at everything at once, and reports it in a fixed order.
func (d *doctor) examine(ctx context.Context) error {
	parts := [4]doctor{}
	var failed error
	var wg sync.WaitGroup
	for i, part := range []func(*doctor){
		func(p *doctor) { p.database(ctx) },
		func(p *doctor) { p.topics(ctx) },
		func(p *doctor) { failed = p.chain(ctx) },
		func(p *doctor) { p.files() },
	} {
		parts[i] = doctor{cfg: d.cfg, secrets: d.secrets}
		wg.Go(func() { part(&parts[i]) })
	}

	wg.Wait()

	for i := range parts {
		d.Sick = d.Sick || parts[i].Sick
		d.Findings = append(d.Findings, parts[i].Findings...)
		d.Set = append(d.Set, parts[i].Set...)
	}

	return failed
}

// verdict on one thing.
type verdict string

const (
	fine    verdict = "ok"
	note    verdict = "note"    // works, and could be better
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

// setting is a variable that should be set so.
type setting struct {
	Variable string `json:"variable"`
	Value    string `json:"value"`
	Reason   string `json:"reason"`
}

// doctor collects findings.
type doctor struct {
	cfg     *config.Config
	secrets *redact.Secrets

	Sick     bool      `json:"sick"` // something needs a person
	Findings []finding `json:"findings"`
	Set      []setting `json:"set"`
}

func (d *doctor) say(v verdict, of, what, format string, args ...any) {
	d.Sick = d.Sick || v == wrong
	d.Findings = append(d.Findings, finding{v, of, what, d.secrets.Mask(fmt.Sprintf(format, args...))})
}

// judge says what was found, or what is wrong; it returns whether all is well.
func (d *doctor) judge(of, what, found string, err error) bool {
	if err != nil {
		d.say(wrong, of, what, "%s", d.secrets.Error(err))
		return false
	}

	d.say(fine, of, what, "%s", found)

	return true
}

func (d *doctor) set(variable, value, format string, args ...any) {
	d.Set = append(d.Set, setting{variable, value, fmt.Sprintf(format, args...)})
}

// print writes a table to a terminal, lines elsewhere, or JSON.
func (d *doctor) print(w io.Writer, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(d)
	}

	if f, ok := w.(*os.File); ok && isatty.IsTerminal(f.Fd()) {
		t := table.NewWriter()
		t.SetOutputMirror(w)
		t.SetStyle(table.StyleLight)
		t.AppendHeader(table.Row{"", "of", "what", "found"})
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
