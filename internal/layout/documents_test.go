package layout

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	// What a document says of the tree: a link to a file of ours, a path in backticks, the name of a test.
	linked = regexp.MustCompile(`\]\(([^)#:\s]+)(?:#[^)]*)?\)`)
	quoted = regexp.MustCompile("`([A-Za-z0-9_.-]*(?:/[A-Za-z0-9_.-]+)+)`")
	// (with … at its end: of several tests).
	tested = regexp.MustCompile(`\b((?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9]+)(…?)`)
	called = regexp.MustCompile(`func ((?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9]+)\(`)
)

// A document that names a file or a test that is gone sends its reader nowhere.
func TestDocumentsNameWhatExists(t *testing.T) {
	const root = "../.."
	var tests []string
	for _, file := range tracked(t, root, "*_test.go") {
		for _, found := range called.FindAllStringSubmatch(read(t, root, file), -1) {
			tests = append(tests, found[1])
		}
	}

	top, err := os.ReadDir(root)
	require.NoError(t, err)
	folders := map[string]bool{}
	for _, entry := range top {
		folders[entry.Name()] = entry.IsDir()
	}

	documents := tracked(t, root, "*.md")
	require.Greater(t, len(documents), 20)
	var gone []string
	for _, document := range documents {
		if filepath.Base(document) == "CHANGELOG.md" {
			continue // it tells of what was
		}

		text := read(t, root, document)
		here := filepath.Join(root, filepath.Dir(document))
		for _, found := range linked.FindAllStringSubmatch(text, -1) {
			if !exists(filepath.Join(here, found[1])) {
				gone = append(gone, document+" links "+found[1])
			}
		}

		for _, found := range quoted.FindAllStringSubmatch(text, -1) {
			path := found[1]
			first, _, _ := strings.Cut(path, "/")
			if folders[first] && !exists(filepath.Join(root, path)) && !exists(filepath.Join(here, path)) {
				gone = append(gone, document+" names "+path)
			}
		}

		for _, found := range tested.FindAllStringSubmatch(text, -1) {
			if !slices.ContainsFunc(tests, func(name string) bool {
				return name == found[1] || found[2] != "" && strings.HasPrefix(name, found[1])
			}) {
				gone = append(gone, document+" names the test "+found[1])
			}
		}
	}

	require.Empty(t, gone)
}

// tracked lists the files of the repository that match, new ones too, relative to its root.
func tracked(t *testing.T, root, pattern string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "--cached", "--others",
		"--exclude-standard", pattern).Output()
	require.NoError(t, err)

	return strings.Fields(string(out))
}

// read is a tracked file; empty: it was deleted, and that is not committed yet.
func read(t *testing.T, root, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if !os.IsNotExist(err) {
		require.NoError(t, err)
	}

	return string(text)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// The top of the tree is agreed: what is not among these has a folder, or begins with a dot.
func TestTopOfTheTree(t *testing.T) {
	allowed := strings.Fields(`ARCHITECTURE.md CHANGELOG.md LICENSE Makefile README.md cmd deploy election go.mod go.sum
		internal migrations partition registry relayer`)
	for _, file := range tracked(t, filepath.Join("..", ".."), "*") {
		top, _, _ := strings.Cut(file, "/")
		require.True(t, strings.HasPrefix(top, ".") || slices.Contains(allowed, top), file)
	}
}
