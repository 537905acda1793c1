package layout

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a consumer of the messages has to trust beside this module: a project that imports package
// message alone is tidied, from the modules that are here already.
func TestConsumersNeedLittle(t *testing.T) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("main.go", "package main\n\nimport _ \""+module+"relayer/message\"\n\nfunc main() {}\n")
	path := strings.TrimSuffix(module, "/")
	write("go.mod", "module example.com/consumer\n\ngo 1.26.0\n\nrequire "+path+" v0.0.0\n\n"+
		"replace "+path+" => "+root+"\n")
	// with the checksums of this module, nobody has to be asked for them; tidy keeps those that are needed
	known, err := os.ReadFile(filepath.Join(root, "go.sum"))
	require.NoError(t, err)
	write("go.sum", string(known))

	tidy := exec.CommandContext(t.Context(), "go", "mod", "tidy")
	tidy.Dir, tidy.Env = dir, append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off")
	out, err := tidy.CombinedOutput()
	require.NoError(t, err, "%s", out)
	sums, err := os.ReadFile(filepath.Join(dir, "go.sum"))
	require.NoError(t, err)
	require.Less(t, strings.Count(string(sums), "\n"), 10, "%s", sums)
}

// Package subscriber brings pgx and what pgx brings, and nothing else.
func TestSubscriberNeedsPgxOnly(t *testing.T) {
	list := func(packages ...string) []string {
		out, err := exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps", "-f",
			"{{if not .Standard}}{{.ImportPath}}{{end}}"}, packages...)...).Output()
		require.NoError(t, err)

		return strings.Fields(string(out))
	}
	require.ElementsMatch(t, append(list("github.com/jackc/pgx/v5"), module+"relayer/message",
		module+"relayer/message/members", module+"relayer/message/subscriber"), list(module+"relayer/message/subscriber"))
}
