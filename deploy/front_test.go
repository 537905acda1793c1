package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// filePath is a path of this repository in a page.
var filePath = regexp.MustCompile(`(?:^|[^A-Za-z0-9_./$-])` +
	`((?:cmd|relayer|registry|election|partition|migrations|deploy|internal)/[A-Za-z0-9_./-]*[A-Za-z0-9_/-])`)

// Every file that a page names is there: a reader who copies a command finds what it needs.
func TestPagesNameExistingFiles(t *testing.T) {
	t.Parallel()
	named := 0
	for _, pattern := range []string{"../*.md", "../.github/*.md", "*.md", "runbooks/*.md", "../relayer/*/*.md",
		"../internal/*/*.md", "../partition/*/*.md"} {
		pages, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, page := range pages {
			text, err := os.ReadFile(page)
			require.NoError(t, err)
			for _, m := range filePath.FindAllStringSubmatch(string(text), -1) {
				_, err := os.Stat(filepath.Join("..", m[1]))
				require.NoError(t, err, "%s names %s", page, m[1])
				named++
			}
		}
	}

	require.Greater(t, named, 100)
}

// What CONTRIBUTING.md tells a newcomer to open exists, and so do the targets that it and the workflows run.
func TestTheFrontDoorIsTrue(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../.github/CONTRIBUTING.md")
	require.NoError(t, err)
	named := regexp.MustCompile("`((?:cmd|relayer|registry|election|partition|migrations|deploy|internal)(?:/[A-Za-z0-9_./-]+)?)`").FindAllStringSubmatch(string(text), -1)
	require.Greater(t, len(named), 20)
	for _, m := range named {
		_, err := os.Stat(filepath.Join("..", m[1]))
		require.NoError(t, err, "CONTRIBUTING.md names %s", m[1])
	}

	// `folder/file.go` (name), or `Type.name` (`folder/file.go`): declared there.
	names := regexp.MustCompile("`([a-z0-9/_]+\\.go)`\\s\\(([A-Za-z.]+)\\)").FindAllStringSubmatch(string(text), -1)
	before := regexp.MustCompile("`([A-Za-z.]+)`\\s\\(`([a-z0-9/_]+\\.go)`\\)")
	for _, m := range before.FindAllStringSubmatch(string(text), -1) {
		names = append(names, []string{m[0], m[2], m[1]})
	}

	require.GreaterOrEqual(t, len(names), 3)
	for _, m := range names {
		source, err := os.ReadFile(filepath.Join("..", m[1]))
		require.NoError(t, err)
		name := m[2][strings.LastIndex(m[2], ".")+1:]
		require.Regexp(t, `(?m)^(func (\([^)]*\) )?|type |var |const )`+name+`\b`, string(source),
			"CONTRIBUTING.md: %s", m[0])
	}

	makefile, err := os.ReadFile("../Makefile")
	require.NoError(t, err)
	files, err := filepath.Glob("../.github/workflows/*.yml")
	require.NoError(t, err)
	require.Len(t, files, 3)
	all := string(text)
	for _, f := range files {
		workflow, err := os.ReadFile(f)
		require.NoError(t, err)
		var parsed map[string]any
		require.NoError(t, yaml.Unmarshal(workflow, &parsed), f)
		all += string(workflow)
		workflowIsPinned(t, f, string(workflow))
	}

	for _, m := range regexp.MustCompile("(?m)(?:`|run: |^)make ([a-z]+)").FindAllStringSubmatch(all, -1) {
		require.Contains(t, string(makefile), "\n"+m[1]+":", "there is no make %s", m[1])
	}
}

// What a workflow runs of others is named by commit, with its version beside it, and gets no credentials on disk.
func workflowIsPinned(t *testing.T, file, workflow string) {
	t.Helper()
	require.NotContains(t, workflow, "@latest", file)
	uses := regexp.MustCompile(`(?m)^.*uses: (.+)$`).FindAllStringSubmatchIndex(workflow, -1)
	require.NotEmpty(t, uses, file)
	for _, at := range uses {
		what := workflow[at[2]:at[3]]
		require.Regexp(t, `^(\./\S+|[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+)$`, what, file)
		if strings.HasPrefix(what, "actions/checkout@") {
			next, _, _ := strings.Cut(workflow[at[1]+1:], "\n")
			require.Contains(t, next, "persist-credentials: false", "%s: the line behind %s", file, what)
		}
	}
}
