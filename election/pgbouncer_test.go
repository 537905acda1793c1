//go:build pgbouncer

package election_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/election"
	"github.com/fusion-prime/escrow-relayer/internal/port"
)

// bouncer starts PgBouncer (Debian: pgbouncer) in front of the test's database and returns its URL.
func bouncer(t *testing.T, f fixture, mode string) string {
	conn, err := pgx.ParseConfig(f.url)
	require.NoError(t, err)
	reserved, err := port.Reserve()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, reserved.Close()) })
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	ini := filepath.Join(dir, "pgbouncer.ini")
	require.NoError(t, os.WriteFile(ini, fmt.Appendf(nil, `[databases]
%[1]s = host=%[2]s port=%[3]d dbname=%[1]s user=%[4]s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %[5]d
unix_socket_dir =
auth_type = any
pool_mode = %[6]s
`, conn.Database, conn.Host, conn.Port, conn.User, reserved.Number, mode), 0o644))
	args := []string{ini}
	if os.Getuid() == 0 {
		args = []string{"-u", "nobody", ini}
	}

	cmd := exec.CommandContext(t.Context(), "pgbouncer", args...)
	cmd.Stderr = t.Output()
	require.NoError(t, cmd.Start(), "install PgBouncer: apt-get install pgbouncer")
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	url := fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?sslmode=disable", conn.User, reserved.Number, conn.Database)
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", reserved.Addr())
		if err == nil {
			_ = c.Close()
		}

		return err == nil
	}, time.Minute, 20*time.Millisecond)

	return url
}

func TestPools(t *testing.T) {
	f := setup(t)
	check := func(url string) error {
		conn, err := pgx.ParseConfig(url)
		require.NoError(t, err)
		return election.CheckPooling(t.Context(), conn)
	}
	require.NoError(t, check(f.url))
	require.NoError(t, check(bouncer(t, f, "session")))
	err := check(bouncer(t, f, "transaction"))
	require.ErrorIs(t, err, election.ErrPooled)
	require.ErrorContains(t, err, "SESSION_DATABASE_URL")
}
