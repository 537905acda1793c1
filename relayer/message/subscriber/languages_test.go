//go:build languages

package subscriber_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testpg"
)

// The packages in other languages pass their own tests: on the same messages, stories and vectors,
// and against a Postgres.
func TestPython(t *testing.T) {
	run(t, "../python", "/usr/bin/python3", "-m", "unittest") // Debian's, which has psycopg and cryptography
}

func TestTypeScript(t *testing.T) { run(t, "../typescript", "npm", "test") }

func run(t *testing.T, dir, program string, args ...string) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "DATABASE_URL="+testpg.Bare(t), "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("%s", out)
}
