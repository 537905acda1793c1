package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

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
	}

	for _, m := range regexp.MustCompile("(?m)(?:`|run: |^)make ([a-z]+)").FindAllStringSubmatch(all, -1) {
		require.Contains(t, string(makefile), "\n"+m[1]+":", "there is no make %s", m[1])
	}
}
