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
