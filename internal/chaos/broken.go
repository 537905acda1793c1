package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Breakage is a mistake of a relayer that the oracle has to see. It is made at build time: the
// repository's own file with one passage changed.
type Breakage struct {
	Name string
	What string // it does
	Says string // what a verdict says of it, a regular expression

	// Chance says that the mistake shows only if a transaction happens to be replaced and mined: the daily
	// tests leave it out.
	Chance bool

	file     string // of the repository
	old, new string // every occurrence of old
}

// Breakages are the mistakes that the oracles are tried with.
var Breakages = []Breakage{
	{
		Name: "believes", What: "believes what an endpoint says of a block",
		// The second reading may have come to it, and mended it.
		Says: "a consumer has |an event_id that is not", file: "relayer/chain/endpoint/receipts.go",
		old: "under, found := rooted(q.Encoded, h.Receipts)", new: "under, found := len(q.Encoded), h.Number > 0",
	},
	{
		Name: "forgets-layouts", What: "reads nothing again when its ABIs grow",
		Says: "a consumer lacks ", file: "registry/layouts.go",
		old: "return began && !slices.Contains(before, l)", new: "return began && len(before) < 0",
	},
	{
		Name: "broadcast-first", What: "broadcasts before it records the attempt",
		Says: "C2: broadcast before it was recorded", file: "relayer/command/send/admit.go",
		old: "\tstored, err := s.store.launch(",
		new: "\ts.broadcast(ctx, fresh)\n\tstored, err := s.store.launch(",
	},
	{
		Name: "waits-for-all", What: "waits for what every endpoint says of a transaction",
		Says: "the sender waits", file: "relayer/chain/call.go",
		old: "\ts.mu.Unlock()\n\n\tvar errs", new: "\ts.mu.Unlock()\n\ts.offers.Wait()\n\tvar errs",
	},
	{
		Name: "early-answer", What: "answers before finality",
		Says: "C4: answered before finality", file: "relayer/chain/view.go",
		old: "return o.cfg.Confirmations", new: "return 0",
	},
	{
		Name: "no-conflicts", What: "signs without checking for a conflict",
		Says: "C5: ", file: "relayer/command/intake/store.go",
		old: "when k.command_id = c.id then", new: "when true then",
	},
	{
		Name: "refuses-allowed", What: "refuses what the policy allows",
		Says: "C8: refused though the policy allows it", file: "relayer/command/send/permit.go",
		old: "if why := cfg.Policy.Refuses(requester, &m.Command); why", new: "if why := \"not today\"; why",
	},
	{
		Name: "fresh-nonce", What: "takes another nonce when it replaces a transaction",
		Says: "C1: ", Chance: true, file: "relayer/command/send/attempts.go",
		old: "uint64(s.cfg.ChainID), f.Nonce, gas", new: "uint64(s.cfg.ChainID), f.Nonce+uint64(len(f.Attempts)), gas",
	},
	{
		Name: "no-answer", What: "stores final states without their answers",
		Says: "C4: in the table, but not answered", file: "relayer/command/send/finish.go",
		old: "if err := outbox.AddAnswers(ctx, tx, s.chainID, answers); err != nil {",
		new: "if err := outbox.AddAnswers(ctx, tx, s.chainID, answers[:0]); err != nil {",
	},
}

// FindBreakage returns the one of that name.
func FindBreakage(name string) (Breakage, error) {
	names := make([]string, len(Breakages))
	for i, b := range Breakages {
		if names[i] = b.Name; b.Name == name {
			return b, nil
		}
	}

	return Breakage{}, fmt.Errorf("there is no mistake %q: use one of %s", name, strings.Join(names, ", "))
}

// Seen reports whether a verdict names the mistake.
func (b Breakage) Seen(v *Verdict) bool {
	return slices.ContainsFunc(v.Wrong, regexp.MustCompile(`^(`+b.Says+`)`).MatchString)
}

// Plan is a short run in which the mistake shows, whatever the machine does: an endpoint that changes events, ABIs that
// grow, or one fault at most, one sender, many conflicts, and full blocks, since only then is anything replaced.
func (b Breakage) Plan() Plan {
	switch b.Name {
	case "believes":
		return lyingPlan(1)
	case "forgets-layouts": // the traffic has used the older factory by then, on a busy machine too
		return planOf(10*sec, Fault{Kind: Grow, At: 8 * sec, For: sec})
	}

	p := NewCommandsPlan(1)
	p.Probe, p.Length, p.BlockTime, p.Faults = time.Second, 6*time.Second, 250*time.Millisecond, nil
	p.Commands.Senders, p.Commands.InFlight, p.Commands.Keeper, p.Commands.Tight = 1, 1, false, false
	switch b.Name {
	case "fresh-nonce":
		p.Faults = []Fault{{At: time.Second, Kind: Spike, N: 8}, {At: 4 * time.Second, Kind: Spike, N: 8}}
	case "waits-for-all":
		p.Faults = []Fault{{At: time.Second, Kind: SendHang, For: 4 * time.Second}}
	}

	return p
}

// BuildBroken builds a relayer that makes the mistake, from the repository at root.
func BuildBroken(ctx context.Context, b Breakage, root, dir, bin string) error {
	source, err := filepath.Abs(filepath.Join(root, b.file))
	if err != nil {
		return err
	}

	text, err := os.ReadFile(source)
	if err != nil {
		return err
	}

	broken := strings.ReplaceAll(string(text), b.old, b.new)
	if broken == string(text) {
		return fmt.Errorf("make the mistake %s: %s has no %q any more", b.Name, b.file, b.old)
	}

	changed := filepath.Join(dir, b.Name+".go")
	if err := os.WriteFile(changed, []byte(broken), 0o600); err != nil {
		return err
	}

	overlay := filepath.Join(dir, b.Name+".json")
	if err := buildWith(ctx, overlay, map[string]string{source: changed}, root, bin, false); err != nil {
		return fmt.Errorf("build the relayer that %s: %w", b.What, err)
	}

	return nil
}

// buildWith builds the relayer of the repository at root, with other files in the place of its own and of
// Go's, by their paths, and with the race detector, which needs C. overlay is the file that tells the compiler.
func buildWith(ctx context.Context, overlay string, replace map[string]string, root, bin string, race bool) error {
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}

	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		return err
	}

	build := exec.CommandContext(ctx, "go", "build", "-overlay", overlay, "-o", bin)
	build.Dir, build.Stderr = root, os.Stderr
	if race {
		build.Args, build.Env = append(build.Args, "-race"), append(os.Environ(), "CGO_ENABLED=1")
	}

	build.Args = append(build.Args, "./cmd/escrow-relayer")

	return build.Run()
}
