package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

// blocks are the fenced blocks of one language in a page, also those that are indented in a list.
func blocks(page, language string) (found []string) {
	var block []string
	indent, inside := "", false
	for line := range strings.SplitSeq(page, "\n") {
		trimmed := strings.TrimLeft(line, " ")
		switch {
		case !inside && trimmed == "```"+language:
			inside, indent, block = true, line[:len(line)-len(trimmed)], nil
		case inside && trimmed == "```":
			inside = false
			found = append(found, strings.Join(block, "\n"))
		case inside:
			block = append(block, strings.TrimPrefix(line, indent))
		}
	}

	return found
}

func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	require.NoError(t, filepath.WalkDir(".", func(name string, _ os.DirEntry, err error) error {
		if err == nil && filepath.Ext(name) == ".md" {
			var text []byte
			if text, err = os.ReadFile(name); err == nil {
				found[name] = string(text)
			}
		}

		return err
	}))
	require.NotEmpty(t, found)

	return found
}

// Every statement that a page tells an operator to run is run here against the real schema.
func TestRunbookStatementsRun(t *testing.T) {
	t.Parallel()
	pool := testpg.Pool(t)
	ran := 0
	for name, page := range pages(t) {
		for _, block := range blocks(page, "sql") {
			err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), strings.ReplaceAll(block, ":chain", "11155111"))
				if err == nil {
					err = tx.Rollback(t.Context())
				}

				return err
			})
			if err != nil {
				require.ErrorIs(t, err, pgx.ErrTxClosed, "%s:\n%s", name, block)
			}

			ran++
		}
	}

	require.Greater(t, ran, 20)
}

var (
	kubectl = regexp.MustCompile("kubectl [^`\n#]+")
	named   = regexp.MustCompile(`\b(?:(?:pod|port-forward|statefulset/|deployment/|secret generic|edit secret|configmap) ?)([a-z][a-z0-9-]+)`)
)

// Every line for kubectl names what the chart makes for a release of the name that deploy/README.md gives it.
func TestRunbooksNameWhatTheChartMakes(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/chart_names.txt")
	require.NoError(t, err)
	values, err := os.ReadFile("chart/values.yaml")
	require.NoError(t, err)
	made := regexp.MustCompile(`[a-z]+ (StatefulSet|Deployment|ConfigMap) `).ReplaceAllString(string(text), "")
	seen := 0
	for name, page := range pages(t) {
		for _, line := range kubectl.FindAllString(page, -1) {
			require.Regexp(t, `^kubectl (create namespace|-n) escrow-relayer\b`, line, name)
			for _, m := range named.FindAllStringSubmatch(line, -1) {
				seen++
				if strings.Contains(m[0], "secret ") {
					require.Regexp(t, `ecret: `+m[1]+`( #|\n)`, string(values), "%s: %s: no secret of that name is read", name, line)
					continue
				}

				workload := regexp.MustCompile(`-\d+$`).ReplaceAllString(m[1], "")
				require.Contains(t, strings.Split(made, "\n"), workload, "%s: %s", name, line)
			}
		}
	}

	require.GreaterOrEqual(t, seen, 7)
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	for name, page := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(page, -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}

			file := name
			if target != "" {
				file = filepath.Join(filepath.Dir(name), target)
				_, err := os.Stat(file)
				require.NoError(t, err, "%s links to %s", name, m[1])
			}

			if anchor != "" {
				text, err := os.ReadFile(file)
				require.NoError(t, err)
				require.Contains(t, anchors(string(text)), anchor, "%s links to %s", name, m[1])
			}
		}
	}
}

// anchors are the headings of a page as GitHub names them.
func anchors(page string) (found []string) {
	for _, m := range regexp.MustCompile(`(?m)^#{1,6} (.+)$`).FindAllStringSubmatch(page, -1) {
		name := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		found = append(found, strings.ReplaceAll(name, " ", "-"))
	}

	return found
}
