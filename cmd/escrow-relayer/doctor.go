package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/relayer"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/redact"
	"github.com/fusion-prime/escrow-relayer/relayer/start"
)

// doctorLimit bounds an examination. Database, topics and endpoints are examined concurrently, so
// that one that hangs leaves the others their time.
const doctorLimit = 18 * time.Second

func doctorCommand() *cobra.Command {
	var asJSON bool
	var limit time.Duration
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Try a start, and test everything an instance needs: database, topics, every RPC endpoint",
		Long: `Do the steps of a start of an instance with this configuration, of every chain or the one of --chain, and leave nothing behind: what run refuses is refused in the same words. Test
further the rights in the database, that it takes a commit, its clock; the right to publish; and of each RPC endpoint the chain, the head, safe and finalized, how many blocks it gives the logs of at
once, how far back its headers, logs and state go, what its answers prove (headers by their hash, logs by receipts), and how fast
it is (at most some 200 requests each); and the file of HTTP_TOKEN_FILE; and who can read it, and the files with keys that SENDERS_FILE names.
Configuration as for run.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := loadAll(cmd, config.Load)
			if err != nil {
				return err
			}

			ctx, cancel := context.WithTimeout(cmd.Context(), limit)
			defer cancel()
			doctors := make([]doctor, len(all))
			var wg sync.WaitGroup
			for i, cfg := range all {
				doctors[i] = doctor{Chain: cfg.ChainID, cfg: cfg, secrets: cfg.Secrets(), Findings: []finding{}}
				wg.Go(func() { doctors[i].examine(ctx) })
			}

			wg.Wait()
			if err := cmd.Context().Err(); err != nil {
				return unlessInterrupted(cmd.Context(), err)
			}

			return answer(cmd.OutOrStdout(), doctors, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	cmd.Flags().DurationVar(&limit, "timeout", doctorLimit,
		"what has not answered by then is reported so; endpoints that limit their rate need longer")

	return cmd
}

// answer shows what was found, and is errQuiet when something of it needs a person.
func answer(w io.Writer, doctors []doctor, asJSON bool) error {
	var shown any = doctors
	if len(doctors) == 1 {
		shown = doctors[0]
	}

	if asJSON {
		if err := printJSON(w, shown); err != nil {
			return err
		}
	}

	var err error
	for i := range doctors {
		if doctors[i].Sick {
			err = errQuiet
		}

		if !asJSON {
			doctors[i].print(w)
		}
	}

	return err
}

// examine does the steps of a start, and examines concurrently what they do not look at. It reports all of it in a
// fixed order.
func (d *doctor) examine(ctx context.Context) {
	var warned strings.Builder
	var err error
	d.of = "start"
	log := slog.New(slog.NewTextHandler(&warned, &slog.HandlerOptions{Level: slog.LevelWarn,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if slices.Contains([]string{slog.TimeKey, slog.LevelKey, "instance", "component"}, a.Key) {
				return slog.Attr{}
			}

			return a
		}}))
	var end func()
	if d.start, end, err = relayer.NewTrial(ctx, d.cfg, log, built()); err != nil {
		d.judge("files", "", err)
		return
	}

	defer end()
	database, topics, chain, files := d.part("database"), d.part("topics"), d.part("chain"), d.part("files")
	var wg sync.WaitGroup
	wg.Go(func() { database.database(ctx) })
	wg.Go(func() { topics.topics(ctx) })
	wg.Go(func() { chain.chain(ctx) })
	wg.Go(func() {
		if files.files(); d.cfg.SendersFile != "" {
			files.steps(ctx, "keys")
		}
	})
	wg.Wait()
	for line := range strings.Lines(warned.String()) {
		d.say(note, "warning", "%s", strings.TrimPrefix(strings.TrimSpace(line), "msg="))
	}

	d.add(database, topics, chain, files)
}

// part returns a doctor for one thing; add merges its findings into those of d.
func (d *doctor) part(of string) *doctor {
	return &doctor{cfg: d.cfg, secrets: d.secrets, start: d.start, of: of}
}

// steps does these steps of the start, and reports each. It returns whether all of them hold.
func (d *doctor) steps(ctx context.Context, names ...string) bool {
	return d.start.Try(ctx, d.judge, names...)
}

func (d *doctor) add(parts ...*doctor) {
	for _, p := range parts {
		d.Sick = d.Sick || p.Sick
		d.Findings = append(d.Findings, p.Findings...)
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
	Of      string  `json:"of"` // start, database, topics, files, an endpoint's scheme and host
	What    string  `json:"what"`
	Found   string  `json:"found"`
}

// doctor collects findings on a chain. One goroutine uses it.
type doctor struct {
	cfg     *config.Config
	secrets *redact.Secrets
	start   *start.Checks
	of      string // what it examines, as in finding.Of

	Chain    int64     `json:"chain"`
	Sick     bool      `json:"sick"` // something needs a person
	Findings []finding `json:"findings"`
}

func (d *doctor) say(v verdict, what, format string, args ...any) {
	d.Sick = d.Sick || v == wrong
	text := strings.ReplaceAll(d.secrets.Mask(fmt.Sprintf(format, args...)), "\n", "; ")
	d.Findings = append(d.Findings, finding{v, d.of, what, text})
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

// print writes a line for each finding.
func (d *doctor) print(w io.Writer) {
	fmt.Fprintf(w, "chain %d\n", d.Chain)
	for _, f := range d.Findings {
		fmt.Fprintf(w, "%-7s %-8s %-12s %s\n", f.Verdict, f.Of, f.What, f.Found)
	}
}
