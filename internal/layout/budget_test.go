package layout

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// budgets are how many lines a reader may be asked to read. Growth is decided, not drifted into: the commit that needs
// more raises the number, and says why. Tests and generated files do not count.
var budgets = map[string]int{
	"product":  47_312, // Go outside of internal; the aim is 38,000
	"internal": 17_237, // Go that serves tests, the demo and releases; the aim is 15,000
	"Markdown": 3_837,  // the aim is 3,200
}

func TestLinesStayInTheBudget(t *testing.T) {
	const root = "../.."
	lines := map[string]int{}
	for _, file := range slices.Concat(tracked(t, root, "*.go"), tracked(t, root, "*.md")) {
		text := read(t, root, file)
		switch {
		case path.Ext(file) == ".md":
			lines["Markdown"] += strings.Count(text, "\n")
		case strings.HasSuffix(file, "_test.go") || strings.Contains(text, "\n// Code generated ") ||
			strings.HasPrefix(text, "// Code generated "):
		case within(file, "internal"):
			lines["internal"] += strings.Count(text, "\n")
		default:
			lines["product"] += strings.Count(text, "\n")
		}
	}

	for part, most := range budgets {
		t.Logf("%s: %d lines of %d", part, lines[part], most)
		require.Positive(t, lines[part], part)
		require.LessOrEqual(t, lines[part], most,
			"%s grows beyond its budget: delete something, or raise the number here and say why in the commit", part)
	}
}
